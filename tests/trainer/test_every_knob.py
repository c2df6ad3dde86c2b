"""Every knob of the catalogue is a setting that reaches megatron-core, or is refused with a reason."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from perfdoc.knobs.load import catalogue
from perfdoc.trainer.config import resolve
from perfdoc.trainer.config.resolve import KEYS, name_here, why_refused
from perfdoc.trainer.config.tables import TABLES
from perfdoc.trainer.layout import plan
from tests.megatron_core import import_core
from tests.trainer.launch import need_megatron
from tests.trainer.overrides import KERNELS


def test_no_knob_of_the_catalogue_is_an_unknown_key() -> None:
    for name in catalogue():
        assert (name in KEYS) != bool(why_refused(name)), f"{name}: a setting, or refused: one of the two"
        if name not in KEYS:
            with pytest.raises(ValueError, match=r".") as caught:
                resolve("tiny", [f"{name}=null"])
            assert "unknown key" not in str(caught.value)
            assert why_refused(name) in str(caught.value)


def test_the_refused_are_in_the_catalogue_and_the_reason_says_what_to_do() -> None:
    assert set(TABLES.refused) <= set(catalogue())
    assert all(len(why) > 15 for why in TABLES.refused.values())


@pytest.mark.parametrize(
    ("written", "here"),
    [
        ("profile_start_step", "profile_step_start"),
        ("profiling.profile_end_step", "profile_step_end"),
        ("comm_overlap.tp_comm_overlap_cfg", "tp_comm_overlap_cfg"),
        ("PipelineOverlapCfg.num_sm", "tp_overlap_num_sm"),
        ("ddp_bucket_size", "bucket_size"),
        ("train.manual_gc_eval", "manual_gc_eval"),
        ("GarbageCollectionCallback.gc_interval_val", "manual_gc_interval_val"),
        ("use_custom_fsdp", "use_megatron_fsdp"),
        ("enable_cuda_graph", "cuda_graph_impl"),
    ],
)
def test_a_name_of_a_guide_is_told_what_it_is_here(written: str, here: str) -> None:
    assert name_here(written) == here
    with pytest.raises(ValueError, match=rf"\.{here}(\?| here)"):
        resolve("tiny", [f"{written}=1"])


CORE = [
    spelling.name
    for knob in catalogue().values()
    if knob.id in KEYS
    for spelling in knob.spelled("megatron_core")
]
PP2_EP2 = [
    *["pipeline_model_parallel_size=2", "virtual_pipeline_model_parallel_size=2", "overlap_p2p_comm=true"],
    *["num_moe_experts=4", "moe_router_topk=3", "expert_model_parallel_size=2", "params_dtype=bf16"],
    *["recompute_granularity=selective", "recompute_modules=[mlp]", "lr=0.5", "kv_channels=64"],
    *["optimizer_cpu_offload=true", "use_precision_aware_optimizer=true", "exp_avg_dtype=bf16"],
]
WORKED_OUT = {
    *("params_dtype", "batch_p2p_comm", "deallocate_pipeline_outputs", "attention_backend"),
    *("recompute_modules", "offload_modules", "cuda_graph_scope", "fp8_recipe", "transformer_impl"),
    *("moe_ffn_hidden_size", "exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype", "main_params_dtype"),
}
"""Fields that have a setting's name and not its value: of another type, or from several settings."""


@pytest.mark.parametrize("overrides", [[], PP2_EP2], ids=["dense", "experts"])
def test_settings_reach_megatron_core_by_their_names(
    overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The real dataclasses are built, so what they refuse fails here.
    need_megatron()
    import_core("megatron.core.transformer.transformer_config")
    theirs = importlib.import_module("perfdoc.trainer.model")
    monkeypatch.setattr(theirs, "uses_transformer_engine", lambda config: True)
    optimizer = importlib.import_module("megatron.core.optimizer.optimizer_config")
    monkeypatch.setattr(optimizer, "is_te_min_version", lambda version: True)
    config = resolve("tiny", ["data_parallel_size=null", "global_batch_size=32", *overrides]).config
    layout = plan(config, 4, "cuda", KERNELS)
    built = {
        type(one).__name__: one
        for one in (
            theirs.transformer_config(config, layout),
            theirs.ddp_config(config),
            theirs.optimizer_config(config),
        )
    }
    for owner, _, name in (spelled.partition(".") for spelled in CORE):
        is_expert_s = KEYS[name] == "moe" and not overrides
        if owner in built and name not in WORKED_OUT and not is_expert_s:
            ours = getattr(getattr(config, KEYS[name]), name)
            # Where nothing is set megatron-core may work something out.
            assert ours is None or getattr(built[owner], name) == ours, name
    made = built["TransformerConfig"]
    assert (made.bf16, str(made.params_dtype)) == (
        (True, "torch.bfloat16") if overrides else (False, "torch.float32")
    )
    assert made.recompute_modules == (["mlp"] if overrides else ["core_attn"])
    assert made.batch_p2p_comm is (not overrides)
    assert str(built["OptimizerConfig"].exp_avg_dtype) == ("torch.bfloat16" if overrides else "torch.float32")


def test_groups_are_made_with_their_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    need_megatron()
    state = import_core("megatron.core.parallel_state")
    session = importlib.import_module("perfdoc.trainer.session")
    given: dict[str, Any] = {}

    class Stop(Exception):
        pass

    def initialize(**arguments: Any) -> None:
        given.update(arguments)
        raise Stop

    monkeypatch.setattr(state, "initialize_model_parallel", initialize)
    more = ["use_sharp=true", "sharp_enabled_group=dp", "high_priority_stream_groups=[dp]"]
    config = resolve("tiny", [*more, "nccl_communicator_config_path=x.yaml"]).config
    with pytest.raises(Stop):
        session.start_layout(config, plan(config, 2, "cuda", KERNELS))
    names = [name for owner, _, name in (s.partition(".") for s in CORE) if owner.startswith("initialize_")]
    assert {name: given[name] for name in names} == {
        "use_sharp": True,
        "sharp_enabled_group": "dp",
        "high_priority_stream_groups": ["dp"],
        "nccl_communicator_config_path": "x.yaml",
        **dict.fromkeys(["tensor_model_parallel_size", "pipeline_model_parallel_size"], 1),
        **dict.fromkeys(["context_parallel_size", "expert_model_parallel_size"], 1),
        **dict.fromkeys(["expert_tensor_parallel_size", "num_distributed_optimizer_instances"], 1),
        **dict.fromkeys(["virtual_pipeline_model_parallel_size", "hierarchical_context_parallel_sizes"]),
    }
