"""Rules of recomputation, offloading and the optimizer's formats.

Sources: megatron-core 0.16.1 TransformerConfig and OptimizerConfig, Megatron-LM core_v0.16.1 arguments.py.
"""

from __future__ import annotations

from perfdoc.knobs.configuration import View
from perfdoc.knobs.constraints.definition import Constraint
from perfdoc.knobs.knob import MEGATRONS, Dialect

GRANULARITY, METHOD, LAYERS = "recompute_granularity", "recompute_method", "recompute_num_layers"
MODULES, OFFLOAD, AWARE = "recompute_modules", "cpu_offloading", "use_precision_aware_optimizer"


_CORES: tuple[Dialect, ...] = (*MEGATRONS, "perfdoc")
"""NeMo 1 recomputes by code of its own, where selective takes a method and a number of layers too."""
_NOTHING = (None, ("core_attn",))
"""What recompute_modules is where nobody set it."""


def _selective(v: View, module: str) -> bool:
    return v(GRANULARITY) == "selective" and module in v.items(MODULES)


MEMORY: tuple[Constraint, ...] = (
    Constraint(
        name="full-recompute-needs-method",
        subject=GRANULARITY,
        kind="forbidden",
        broken=lambda v: v(GRANULARITY) == "full" and (v(METHOD) is None or v(LAYERS) is None),
        rule="recompute_granularity full needs recompute_method and recompute_num_layers",
        fix=((METHOD, "uniform"), (LAYERS, 1)),
        needs_companion=True,
        dialects=_CORES,
    ),
    Constraint(
        name="selective-recompute-has-no-layers",
        subject=LAYERS,
        kind="forbidden",
        broken=lambda v: v(GRANULARITY) == "selective" and v(LAYERS) is not None,
        rule="selective recomputation takes recompute_modules, not recompute_num_layers",
        fix=((LAYERS, None),),
        dialects=_CORES,
    ),
    Constraint(
        name="selective-recompute-has-no-method",
        subject=METHOD,
        kind="ineffective",
        broken=lambda v: v(GRANULARITY) == "selective" and v(METHOD) is not None,
        rule="recompute_method belongs to full recomputation; selective ignores it, and Megatron-LM refuses "
        "it",
        fix=((METHOD, None),),
        dialects=_CORES,
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-needs-granularity",
            subject=name,
            kind="ineffective",
            broken=lambda v, name=name: v(name) not in _NOTHING and v(GRANULARITY) is None,  # type: ignore[misc]
            rule=f"{name} is read with recompute_granularity only",
            fix=((GRANULARITY, granularity),),
            needs_companion=True,
            dialects=_CORES,
        )
        for name, granularity in ((METHOD, "full"), (LAYERS, "full"), (MODULES, "selective"))
    ),
    Constraint(
        name="modules-need-selective",
        subject=MODULES,
        kind="ineffective",
        broken=lambda v: v(MODULES) not in _NOTHING and v(GRANULARITY) == "full",
        rule="recompute_modules is read with recompute_granularity selective only",
        fix=((GRANULARITY, "selective"), (METHOD, None), (LAYERS, None)),
    ),
    Constraint(
        name="recompute-layers-of-a-stage",
        subject=LAYERS,
        kind="ineffective",
        broken=lambda v: (
            v(LAYERS) is not None
            and v(METHOD) == "block"
            and v.number(LAYERS) > max(1, v.number("num_layers") // (v.pp * v.vpp))
        ),
        rule="recompute_num_layers counts the layers of one pipeline stage (or virtual stage), and there are "
        "fewer",
    ),
    Constraint(
        name="moe-act-needs-grouped-gemm",
        subject=MODULES,
        kind="forbidden",
        broken=lambda v: _selective(v, "moe_act") and not v.on("moe_grouped_gemm"),
        rule="recompute_modules moe_act needs moe_grouped_gemm",
        fix=(("moe_grouped_gemm", True),),
    ),
    Constraint(
        name="mla-up-proj-needs-mla",
        subject=MODULES,
        kind="forbidden",
        broken=lambda v: _selective(v, "mla_up_proj") and not v.on("multi_latent_attention"),
        rule="recompute_modules mla_up_proj needs a model with multi-latent attention",
    ),
    Constraint(
        name="shared-experts-recompute",
        subject=MODULES,
        kind="forbidden",
        broken=lambda v: (
            _selective(v, "shared_experts")
            and v.on("moe_shared_expert_overlap")
            and v("moe_shared_expert_intermediate_size") is not None
        ),
        rule="recompute_modules shared_experts excludes moe_shared_expert_overlap",
        fix=(("moe_shared_expert_overlap", False),),
    ),
    Constraint(
        name="fp8-delayed-excludes-recompute-modules",
        subject=MODULES,
        kind="forbidden",
        broken=lambda v: (
            v("fp8") is not None
            and v("fp8_recipe") == "delayed"
            and (_selective(v, "moe_act") or _selective(v, "layernorm"))
        ),
        rule="recompute_modules moe_act and layernorm do not work with delayed FP8 scaling",
    ),
    Constraint(
        name="distributed-activations",
        subject="distribute_saved_activations",
        kind="forbidden",
        broken=lambda v: (
            v.on("distribute_saved_activations") and v(GRANULARITY) is not None and v.on("sequence_parallel")
        ),
        rule="distribute_saved_activations excludes sequence_parallel, which divides them already",
        fix=(("distribute_saved_activations", False),),
    ),
    Constraint(
        name="offload-needs-pp-1",
        subject=OFFLOAD,
        kind="forbidden",
        broken=lambda v: v.on(OFFLOAD) and v.pp > 1,
        rule="cpu_offloading works with PP 1 only",
        fix=((OFFLOAD, False),),
    ),
    Constraint(
        name="offload-excludes-recompute",
        subject=OFFLOAD,
        kind="forbidden",
        broken=lambda v: v.on(OFFLOAD) and v(GRANULARITY) is not None,
        rule="cpu_offloading excludes recomputation",
        fix=((GRANULARITY, None),),
    ),
    Constraint(
        name="offload-excludes-graphs",
        subject=OFFLOAD,
        kind="forbidden",
        broken=lambda v: v.on(OFFLOAD) and v("cuda_graph_impl") != "none",
        rule="cpu_offloading excludes CUDA graphs",
        fix=(("cuda_graph_impl", "none"),),
    ),
    Constraint(
        name="offload-below-layers",
        subject="cpu_offloading_num_layers",
        kind="forbidden",
        broken=lambda v: v.on(OFFLOAD) and v.number("cpu_offloading_num_layers") >= v.number("num_layers"),
        rule="cpu_offloading_num_layers must be below num_layers",
    ),
    Constraint(
        name="offload-layers-need-offload",
        subject="cpu_offloading_num_layers",
        kind="ineffective",
        broken=lambda v: v.number("cpu_offloading_num_layers") > 0 and not v.on(OFFLOAD),
        rule="cpu_offloading_num_layers is read with cpu_offloading only",
        fix=((OFFLOAD, True),),
        needs_companion=True,
        dialects=("megatron_core", "megatron_bridge", "nemo", "verl", "perfdoc"),
    ),
    Constraint(
        name="two-kinds-of-offload",
        subject="fine_grained_activation_offloading",
        kind="forbidden",
        broken=lambda v: v.on("fine_grained_activation_offloading") and v.on(OFFLOAD),
        rule="fine_grained_activation_offloading and cpu_offloading exclude each other",
        fix=((OFFLOAD, False),),
    ),
    Constraint(
        name="fine-grained-offload-needs-modules",
        subject="fine_grained_activation_offloading",
        kind="forbidden",
        broken=lambda v: v.on("fine_grained_activation_offloading") and not v.items("offload_modules"),
        rule="fine_grained_activation_offloading needs offload_modules",
        fix=(("offload_modules", ("core_attn",)),),
    ),
    Constraint(
        name="attn-proj-needs-core-attn",
        subject="offload_modules",
        kind="forbidden",
        broken=lambda v: (
            v.on("fine_grained_activation_offloading")
            and "attn_proj" in v.items("offload_modules")
            and "core_attn" not in v.items("offload_modules")
        ),
        rule="offload_modules attn_proj needs core_attn too",
    ),
    Constraint(
        name="offload-modules-need-switch",
        subject="offload_modules",
        kind="ineffective",
        broken=lambda v: bool(v.items("offload_modules")) and not v.on("fine_grained_activation_offloading"),
        rule="offload_modules is read with fine_grained_activation_offloading only",
        fix=(("fine_grained_activation_offloading", True),),
        needs_companion=True,
    ),
    Constraint(
        name="aware-optimizer-needs-sharding",
        subject=AWARE,
        kind="forbidden",
        broken=lambda v: v.on(AWARE) and not v.on("use_distributed_optimizer"),
        rule="use_precision_aware_optimizer needs use_distributed_optimizer",
        fix=(("use_distributed_optimizer", True),),
    ),
    Constraint(
        name="aware-optimizer-needs-adam",
        subject=AWARE,
        kind="forbidden",
        broken=lambda v: v.on(AWARE) and v("optimizer_name") != "adam",
        rule="use_precision_aware_optimizer works with adam only",
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-needs-aware-optimizer",
            subject=name,
            kind="forbidden",
            broken=lambda v, name=name: v(name) not in (None, "fp32") and not v.on(AWARE),  # type: ignore[misc]
            rule=f"{name} stays fp32 without use_precision_aware_optimizer",
            fix=((AWARE, True),),
        )
        for name in ("exp_avg_dtype", "exp_avg_sq_dtype", "main_grads_dtype", "main_params_dtype")
    ),
    Constraint(
        name="optimizer-offload-needs-aware-optimizer",
        subject="optimizer_cpu_offload",
        kind="forbidden",
        broken=lambda v: v.on("optimizer_cpu_offload") and not v.on(AWARE),
        rule="optimizer_cpu_offload needs use_precision_aware_optimizer",
        fix=((AWARE, True),),
        dialects=("megatron_lm", "perfdoc"),
    ),
    Constraint(
        name="optimizer-offload-of-nothing",
        subject="optimizer_cpu_offload",
        kind="ineffective",
        broken=lambda v: v.on("optimizer_cpu_offload") and v("optimizer_offload_fraction") == 0,
        rule="optimizer_cpu_offload moves the fraction optimizer_offload_fraction, which is 0",
        fix=(("optimizer_offload_fraction", 1.0),),
    ),
    Constraint(
        name="optimizer-copies-need-offload",
        subject="overlap_cpu_optimizer_d2h_h2d",
        kind="ineffective",
        broken=lambda v: v.on("overlap_cpu_optimizer_d2h_h2d") and not v.on("optimizer_cpu_offload"),
        rule="overlap_cpu_optimizer_d2h_h2d is read with optimizer_cpu_offload only",
        fix=(("optimizer_cpu_offload", True),),
        needs_companion=True,
    ),
)
