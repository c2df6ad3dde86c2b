"""What a run's settings must not be, checked before a process starts.

The catalogue of knobs holds the constraints, those of the trainer alone in constraints/trainer.yaml. Here is
what it cannot say: what concerns the device, the layout, or settings that are no knobs. Names of settings
for which the same holds are in config/tables.yaml.
"""

import json
from collections.abc import Callable, Collection, Iterator
from types import SimpleNamespace
from typing import Any

from perfdoc.knobs.check import violations
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.load import catalogue
from perfdoc.trainer.config.resolve import KEYS
from perfdoc.trainer.config.schema import Config
from perfdoc.trainer.config.tables import TABLES

ENGINE = "transformer_engine"
PACKAGES: tuple[str, ...] = (*TABLES.on_gpus, "einops")

Rule = tuple[str, Callable[[Any], Any], str]
"""(the setting to name, whether a run breaks the rule, the rule in words). A run is asked for every setting,
for what its layout makes of the sizes (`tp`, `edp`), for its `device`, the `packages` that are installed and
whether its layers are Transformer Engine's (`engine`)."""


def _of_tables() -> list[Rule]:
    needs = "needs Transformer Engine's layers, which are not in use here"
    unread = "has no effect: it is read by Transformer Engine's layers, which are not in use here"
    found: list[Rule] = []
    for name, more in TABLES.cuda_only.items():
        found.append((name, lambda r, n=name: r.device == "cpu" and getattr(r, n), f"needs CUDA{more}"))  # type: ignore[misc]
    for name, package in TABLES.needs_package.items():
        words = f"needs {TABLES.on_gpus[package]}, and a GPU"
        found.append((name, lambda r, n=name, p=package: getattr(r, n) and p not in r.packages, words))  # type: ignore[misc]
    for name in TABLES.needs_layers:
        found.append((name, lambda r, n=name: getattr(r, n) and not r.engine, needs))  # type: ignore[misc]
    for name in TABLES.read_by_layers:
        found.append((name, lambda r, n=name: getattr(r, n) not in (None, "auto") and not r.engine, unread))  # type: ignore[misc]
    return found


RULES: tuple[Rule, ...] = (
    (
        "make_vocab_size_divisible_by",
        lambda r: r.make_vocab_size_divisible_by % r.tp,
        "not divisible by tensor_model_parallel_size",
    ),
    (
        "num_distributed_optimizer_instances",
        lambda r: r.edp % r.num_distributed_optimizer_instances,
        "does not divide the experts' DP",
    ),
    (
        "use_tp_pp_dp_mapping",
        lambda r: r.stages_inside and r.pp > 1 and r.edp != r.dp,
        "needs the same groups of stages for dense layers and experts: EP x expert-TP must be TP x CP",
    ),
    (
        "use_torch_fsdp2",
        lambda r: r.use_torch_fsdp2 and not r.untie_embeddings_and_output_weights,
        "shards the embedding apart from the output layer: needs untie_embeddings_and_output_weights=true",
    ),
    (
        "save",
        lambda r: r.use_torch_fsdp2 and (r.save or r.load),
        "checkpoints of FSDP2 runs are not written yet",
    ),
    (
        "save",
        lambda r: r.use_megatron_fsdp and (r.save or r.load),
        "checkpoints of Megatron FSDP runs (fsdp_dtensor) are not written yet",
    ),
    (
        "overlap_param_gather_with_optimizer_step",
        lambda r: (
            r.overlap_param_gather_with_optimizer_step and (r.save or (r.load and not r.load_weights_only))
        ),
        "one optimizer per chunk has no checkpoints: needs checkpoint.save=null, and load_weights_only=true "
        "with checkpoint.load",
    ),
    (
        "expert_tensor_parallel_size",
        lambda r: r.etp > 1 and r.ep > 1 and r.device == "cpu",
        "above 1 with EP fails on gloo, whose all-gather needs equal sizes",
    ),
    (
        "cp_comm_type",
        lambda r: r.cp > 1 and not r.engine and r.cp_comm_type != "all_gather",
        "without Transformer Engine keys and values are gathered: only all_gather",
    ),
    (
        "deallocate_pipeline_outputs",
        lambda r: r.device == "cpu" and r.overlap_p2p_comm and r.deallocate_pipeline_outputs,
        "on gloo an output's memory would go while it is still being sent: silently wrong gradients",
    ),
    ("cuda_graph_impl", lambda r: r.cuda_graph_impl != "none" and r.device == "cpu", "needs CUDA"),
    (
        "transformer_impl",
        lambda r: r.transformer_impl == ENGINE and ENGINE not in r.packages,
        "it is not installed, or there is no GPU",
    ),
    (
        "moe_token_dispatcher_type",
        lambda r: r.num_moe_experts and r.moe_token_dispatcher_type == "flex" and "deep_ep" not in r.packages,
        "flex needs DeepEP, and a GPU",
    ),
    (
        "num_distributed_optimizer_instances",
        lambda r: r.num_distributed_optimizer_instances > 1 and "einops" not in r.packages,
        "above 1 needs einops",
    ),
    (
        "moe_grouped_gemm",
        lambda r: r.moe_grouped_gemm and not (r.engine or "grouped_gemm" in r.packages),
        "needs Transformer Engine's layers or grouped_gemm, of which neither is here",
    ),
    (
        "cross_entropy_fusion_impl",
        lambda r: r.cross_entropy_fusion_impl == "te" and ENGINE not in r.packages,
        "needs Transformer Engine, and a GPU",
    ),
    *_of_tables(),
    ("min_lr", lambda r: r.min_lr > r.lr, "above lr"),
    (
        "lr_warmup_iters",
        lambda r: r.lr_warmup_iters >= (r.lr_decay_iters or r.train_iters),
        "not below lr_decay_iters (where that is null, train_iters): a short run wants a smaller one",
    ),
    (
        "split",
        lambda r: r.eval_interval and not any(float(share) for share in r.split.split(",")[1:2]),
        "gives validation nothing although eval_interval is set; set eval_interval=null",
    ),
    ("split", lambda r: float(r.split.split(",")[0]) == 0, "gives training nothing"),
    ("save_interval", lambda r: r.save_interval and not r.save, "needs checkpoint.save"),
    ("load_step", lambda r: r.load_step and not r.load, "needs checkpoint.load"),
    (
        "profile_ranks",
        lambda r: max(r.profile_ranks or (0,)) >= r.world_size,
        "names a rank that the run does not have",
    ),
)


def problems(config: Config, layout: Any, device: str, packages: Collection[str]) -> Iterator[str]:
    """What is refused of a run, each as `section.key = value: rule`. layout: a `layout.Layout`; packages:
    those of PACKAGES that are installed where it is to run."""
    settings = {name: getattr(getattr(config, section), name) for name, section in KEYS.items()}
    for name, rule in catalogue_problems(config, layout.world_size):
        yield f"{KEYS[name]}.{name} = {_as_written(settings[name])}: {rule}"
    packages = {name for name in packages if device == "cuda" or name not in TABLES.on_gpus}
    engine = ENGINE in packages and config.kernels.transformer_impl != "local"
    run = SimpleNamespace(**settings, **vars(layout), device=device, packages=packages, engine=engine)
    for name, is_broken, rule in RULES:
        if is_broken(run):
            yield f"{KEYS[name]}.{name} = {_as_written(settings[name])}: {rule}"


def as_knobs(config: Config, world_size: int) -> Configuration:
    """The run as the catalogue knows it; a setting that tunes nothing has no knob and is left out."""
    known = {
        name: getattr(getattr(config, section), name) for name, section in KEYS.items() if name in catalogue()
    }
    dtype = config.precision.params_dtype
    facts = {"world_size": world_size, "bf16": dtype == "bf16", "fp16": dtype == "fp16"}
    return Configuration(values={**TABLES.not_here, **known, **facts}, dialect="perfdoc", complete=True)


def catalogue_problems(config: Config, world_size: int) -> Iterator[tuple[str, str]]:
    """(setting, the constraint in words and what decided it) of what the catalogue refuses."""
    run = as_knobs(config, world_size)
    for found in violations(run):
        constraint = found.constraint
        if constraint is None or not (
            constraint.kind == "forbidden" or constraint.name in TABLES.without_effect
        ):
            continue
        read = {name: run.values[name] for name in sorted(found.read & KEYS.keys() - {found.knob})}
        # The other settings that decided it, as far as they are on: ` (num_layers = 5)`.
        shown = [
            f"{name} = {_as_written(value)}" for name, value in read.items() if value not in (None, False, ())
        ]
        words = found.words + (f" ({', '.join(shown)})" if shown else "")
        if found.knob not in KEYS:  # a fact of this trainer, such as its optimizer
            raise ValueError(words)
        yield found.knob, words


def _as_written(value: object) -> str:
    """A value as a person writes it in the file."""
    return value if isinstance(value, str) else json.dumps(value)
