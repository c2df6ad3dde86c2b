"""Rules of number formats, CUDA graphs, host work and data.

Sources: megatron-core 0.16.1 TransformerConfig, Megatron-Bridge 0.3.1 config.py and mixed_precision.py,
Megatron-LM core_v0.16.1 arguments.py.
"""

from __future__ import annotations

from perfdoc.knobs.configuration import View
from perfdoc.knobs.constraints.definition import Constraint

GRAPHS, SCOPE = "cuda_graph_impl", "cuda_graph_scope"
GATHER, REUSE = "fp8_param_gather", "reuse_grad_buf_for_mxfp8_param_ag"


def _graphs(v: View) -> bool:
    return v(GRAPHS) not in ("none", None)


def _scope(v: View) -> set[str]:
    return {str(s) for s in v.items(SCOPE)} - {"full"}


KERNELS: tuple[Constraint, ...] = (
    Constraint(
        name="fp8-excludes-fp4",
        subject="fp4",
        kind="forbidden",
        broken=lambda v: v("fp4") is not None and v("fp8") is not None,
        rule="fp8 and fp4 exclude each other",
        fix=(("fp8", None),),
    ),
    Constraint(
        name="bf16-excludes-fp16",
        subject="fp16",
        kind="forbidden",
        broken=lambda v: v.on("fp16") and v.on("bf16"),
        rule="weights are bf16 or fp16, not both",
    ),
    Constraint(
        name="fp8-recipe-needs-fp8",
        subject="fp8_recipe",
        kind="ineffective",
        broken=lambda v: v("fp8_recipe") is not None and v("fp8") is None,
        rule="fp8_recipe is read with fp8 only",
        fix=(("fp8", "hybrid"),),
        needs_companion=True,
    ),
    Constraint(
        name="fp8-gather-needs-fp8",
        subject=GATHER,
        kind="forbidden",
        broken=lambda v: v.on(GATHER) and v("fp8") is None,
        rule="fp8_param_gather keeps parameters in FP8, which needs fp8",
        fix=(("fp8", "hybrid"),),
    ),
    Constraint(
        name="fp8-gather-needs-sharding",
        subject=GATHER,
        kind="forbidden",
        broken=lambda v: (
            v.on(GATHER)
            and not v.on("use_distributed_optimizer")
            and not v.on("use_megatron_fsdp")
            and not v.on("use_torch_fsdp2")
        ),
        rule="fp8_param_gather needs the distributed optimizer or FSDP",
        fix=(("use_distributed_optimizer", True),),
        dialects=("megatron_lm", "perfdoc"),
    ),
    Constraint(
        name="mxfp8-gather-needs-reuse",
        subject=GATHER,
        kind="forbidden",
        broken=lambda v: v.on(GATHER) and v("fp8_recipe") == "mxfp8" and not v.on(REUSE),
        rule="fp8_param_gather with the mxfp8 recipe needs reuse_grad_buf_for_mxfp8_param_ag",
        fix=((REUSE, True),),
        dialects=("megatron_bridge", "megatron_lm"),
    ),
    Constraint(
        name="reuse-needs-fp8-gather",
        subject=REUSE,
        kind="forbidden",
        broken=lambda v: v.on(REUSE) and not v.on(GATHER),
        rule="reuse_grad_buf_for_mxfp8_param_ag needs fp8_param_gather",
        fix=((GATHER, True),),
    ),
    Constraint(
        name="reuse-excludes-fsdp",
        subject=REUSE,
        kind="forbidden",
        broken=lambda v: v.on(REUSE) and v.on("use_megatron_fsdp"),
        rule="reuse_grad_buf_for_mxfp8_param_ag does not work with Megatron FSDP",
        fix=((REUSE, False),),
        dialects=("megatron_lm",),
    ),
    Constraint(
        name="fp8-gather-with-optimizer-offload",
        subject="optimizer_cpu_offload",
        kind="forbidden",
        broken=lambda v: v.on("optimizer_cpu_offload") and v.on(GATHER) and v("fp8_recipe") != "delayed",
        rule="optimizer_cpu_offload with fp8_param_gather works with the delayed recipe only",
        fix=(("fp8_recipe", "delayed"),),
        dialects=("megatron_lm",),
    ),
    Constraint(
        name="first-last-bf16-excludes-delayed",
        subject="first_last_layers_bf16",
        kind="forbidden",
        broken=lambda v: (
            v.on("first_last_layers_bf16") and v("fp8") is not None and v("fp8_recipe") == "delayed"
        ),
        rule="first_last_layers_bf16 does not work with delayed FP8 scaling",
        fix=(("fp8_recipe", "tensorwise"),),
    ),
    Constraint(
        name="graphs-need-rng-tracker",
        subject=GRAPHS,
        kind="forbidden",
        broken=lambda v: _graphs(v) and not v.on("use_te_rng_tracker"),
        rule="CUDA graphs need the random state of Transformer Engine (use_te_rng_tracker)",
        fix=(("use_te_rng_tracker", True),),
        needs_companion=True,
        dialects=("megatron_bridge", "megatron_lm", "perfdoc"),
    ),
    Constraint(
        name="scope-needs-graphs",
        subject=SCOPE,
        kind="ineffective",
        broken=lambda v: bool(_scope(v)) and not _graphs(v),
        rule="cuda_graph_scope is read with cuda_graph_impl only",
        fix=((GRAPHS, "transformer_engine"),),
        needs_companion=True,
    ),
    Constraint(
        name="full-iteration-needs-local",
        subject=SCOPE,
        kind="forbidden",
        broken=lambda v: "full_iteration" in _scope(v) and v(GRAPHS) == "transformer_engine",
        rule="the scope full_iteration needs cuda_graph_impl local",
        fix=((GRAPHS, "local"),),
    ),
    Constraint(
        name="full-iteration-excludes-nan-check",
        subject="check_for_nan_in_grad",
        kind="forbidden",
        broken=lambda v: _graphs(v) and "full_iteration" in _scope(v) and v.on("check_for_nan_in_grad"),
        rule="a graph of the full iteration excludes check_for_nan_in_grad, which waits for the device",
        fix=(("check_for_nan_in_grad", False),),
        dialects=("megatron_lm", "megatron_bridge", "perfdoc"),
    ),
    Constraint(
        name="full-recompute-with-graphs",
        subject=GRAPHS,
        kind="forbidden",
        broken=lambda v: (
            _graphs(v) and v("recompute_granularity") == "full" and _scope(v) != {"full_iteration"}
        ),
        rule="full recomputation works with a graph of the full iteration only",
    ),
    Constraint(
        name="moe-scopes",
        subject=SCOPE,
        kind="forbidden",
        broken=lambda v: _graphs(v) and {"moe", "moe_router"} <= _scope(v),
        rule="cuda_graph_scope takes moe or moe_router, not both",
    ),
    Constraint(
        name="preprocess-scope-needs-router",
        subject=SCOPE,
        kind="forbidden",
        broken=lambda v: (
            v(GRAPHS) == "transformer_engine"
            and "moe_preprocess" in _scope(v)
            and "moe_router" not in _scope(v)
        ),
        rule="the scope moe_preprocess needs moe_router too",
    ),
    Constraint(
        name="moe-scope-needs-experts",
        subject=SCOPE,
        kind="forbidden",
        broken=lambda v: (
            _graphs(v)
            and bool({"moe", "moe_router"} & _scope(v))
            and (v("num_moe_experts") is None or v("num_moe_experts") == 1)
        ),
        rule="the scopes moe and moe_router need a model with experts",
    ),
    Constraint(
        name="moe-scope-needs-padding",
        subject=SCOPE,
        kind="forbidden",
        broken=lambda v: (
            _graphs(v)
            and "moe" in _scope(v)
            and (v("moe_expert_capacity_factor") is None or not v.on("moe_pad_expert_input_to_capacity"))
        ),
        rule="the scope moe needs experts with inputs padded to a capacity; without: moe_router",
    ),
    Constraint(
        name="gc-interval-needs-manual-gc",
        subject="manual_gc_interval",
        kind="ineffective",
        broken=lambda v: v.number("manual_gc_interval") > 0 and not v.on("manual_gc"),
        rule="manual_gc_interval does nothing without manual_gc",
        fix=(("manual_gc", True),),
        needs_companion=True,
        dialects=("megatron_bridge", "megatron_lm", "perfdoc"),
    ),
    Constraint(
        name="manual-gc-never-runs",
        subject="manual_gc",
        kind="inadvisable",
        broken=lambda v: v.on("manual_gc") and v("manual_gc_interval") == 0,
        rule="manual_gc with an interval of 0 never collects between steps, and host memory may grow",
        fix=(("manual_gc_interval", 100),),
        dialects=("megatron_bridge", "megatron_lm", "perfdoc"),
    ),
    Constraint(
        name="fusion-impl-needs-fusion",
        subject="cross_entropy_fusion_impl",
        kind="ineffective",
        broken=lambda v: v("cross_entropy_fusion_impl") == "te" and not v.on("cross_entropy_loss_fusion"),
        rule="cross_entropy_fusion_impl is read with cross_entropy_loss_fusion only",
        fix=(("cross_entropy_loss_fusion", True),),
    ),
    Constraint(
        name="rope-fusion-needs-rope",
        subject="apply_rope_fusion",
        kind="ineffective",
        broken=lambda v: (
            v.on("apply_rope_fusion") and v("position_embedding_type") not in ("rope", "yarn", "mrope")
        ),
        rule="apply_rope_fusion is switched off without rotary positions",
        dialects=("megatron_bridge",),
    ),
    Constraint(
        name="packing-needs-micro-batch-1",
        subject="sequence_packing_size",
        kind="forbidden",
        broken=lambda v: (
            v("sequence_packing_size") is not None
            and v.number("sequence_packing_size") > 0
            and v.number("micro_batch_size") > 1
        ),
        rule="packed sequences need micro_batch_size 1: use longer packs instead of a larger batch",
        fix=(("micro_batch_size", 1),),
    ),
    Constraint(
        name="two-profilers",
        subject="use_pytorch_profiler",
        kind="forbidden",
        broken=lambda v: v.on("use_pytorch_profiler") and v.on("use_nsys_profiler"),
        rule="one profiler at a time: use_nsys_profiler or use_pytorch_profiler",
        dialects=("megatron_bridge",),
    ),
    Constraint(
        name="profile-window-backwards",
        subject="profile_step_end",
        kind="forbidden",
        broken=lambda v: v.number("profile_step_end") < v.number("profile_step_start"),
        rule="profile_step_end lies before profile_step_start",
    ),
)
