"""Rules of mixtures of experts.

Sources: megatron-core 0.16.1 TransformerConfig, Megatron-Bridge 0.3.1 comm_overlap.py and
flex_dispatcher_backend.py.
"""

from __future__ import annotations

from perfdoc.knobs.configuration import View
from perfdoc.knobs.constraints.definition import Constraint

OVERLAP, DISPATCHER = "overlap_moe_expert_parallel_comm", "moe_token_dispatcher_type"
BACKEND, CAPACITY = "moe_flex_dispatcher_backend", "moe_expert_capacity_factor"


def _dense(v: View) -> bool:
    return v("num_moe_experts") is None


def _overlap_needs(name: str, rule: str, broken: object, *fix: tuple[str, object]) -> Constraint:
    check = broken if callable(broken) else None
    assert check is not None
    return Constraint(
        name=f"ep-overlap-{name}",
        subject=OVERLAP,
        kind="forbidden",
        broken=lambda v: v.on(OVERLAP) and bool(check(v)),
        rule=f"overlap_moe_expert_parallel_comm {rule}",
        fix=fix,  # type: ignore[arg-type]
    )


EXPERTS: tuple[Constraint, ...] = (
    Constraint(
        name="bias-needs-etp-1",
        subject="expert_tensor_parallel_size",
        kind="forbidden",
        broken=lambda v: v.on("add_bias_linear") and not _dense(v) and v.etp != 1,
        rule="experts with a bias need expert_tensor_parallel_size 1",
        fix=(("expert_tensor_parallel_size", 1),),
    ),
    Constraint(
        name="etp-follows-tp",
        subject="expert_tensor_parallel_size",
        kind="inadvisable",
        broken=lambda v: v("expert_tensor_parallel_size") is None and not _dense(v) and v.ep > 1 and v.tp > 1,
        rule="expert_tensor_parallel_size that is not set follows tensor_model_parallel_size, which splits "
        "every expert's small GEMMs",
        fix=(("expert_tensor_parallel_size", 1),),
        dialects=("megatron_core", "megatron_bridge", "megatron_lm", "nemo", "verl"),
    ),
    _overlap_needs("needs-ep", "needs expert_model_parallel_size above 1", lambda v: v.ep == 1),
    _overlap_needs(
        "needs-all-to-all",
        "needs the alltoall or flex dispatcher",
        lambda v: v(DISPATCHER) not in ("alltoall", "flex"),
        (DISPATCHER, "alltoall"),
    ),
    _overlap_needs("needs-vpp", "with PP above 1 needs virtual stages", lambda v: v.pp > 1 and v.vpp == 1),
    _overlap_needs(
        "excludes-full-recompute",
        "excludes full recomputation",
        lambda v: v("recompute_granularity") == "full",
        ("recompute_granularity", "selective"),
    ),
    _overlap_needs(
        "excludes-recompute-layers",
        "excludes recompute_method and recompute_num_layers",
        lambda v: v("recompute_method") is not None or v("recompute_num_layers") is not None,
        ("recompute_method", None),
        ("recompute_num_layers", None),
    ),
    _overlap_needs(
        "excludes-shared-overlap",
        "excludes moe_shared_expert_overlap",
        lambda v: v.on("moe_shared_expert_overlap"),
        ("moe_shared_expert_overlap", False),
    ),
    _overlap_needs(
        "needs-16-bit", "needs bf16 or fp16 weights", lambda v: not v.on("bf16") and not v.on("fp16")
    ),
    _overlap_needs("mtp", "takes one multi-token layer at most", lambda v: (v("mtp_num_layers") or 0) > 1),
    _overlap_needs(
        "mtp-needs-pp",
        "with a multi-token layer needs PP above 1",
        lambda v: v("mtp_num_layers") == 1 and v.pp == 1,
    ),
    _overlap_needs(
        "graphs",
        "takes only CUDA graphs of Transformer Engine, without scopes moe and mlp",
        lambda v: (
            v("cuda_graph_impl") != "none"
            and (
                v("cuda_graph_impl") != "transformer_engine"
                or bool({"moe", "mlp"} & {str(s) for s in v.items("cuda_graph_scope")})
            )
        ),
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-needs-ep-overlap",
            subject=name,
            kind="forbidden",
            broken=lambda v, name=name: v.on(name) and not v.on(OVERLAP),  # type: ignore[misc]
            rule=f"{name} needs overlap_moe_expert_parallel_comm",
            fix=((OVERLAP, True),),
        )
        for name in ("delay_wgrad_compute", "ep_overlap_early_attn_memory_release")
    ),
    Constraint(
        name="shared-overlap-needs-alltoall",
        subject="moe_shared_expert_overlap",
        kind="forbidden",
        broken=lambda v: (
            v.on("moe_shared_expert_overlap")
            and v("moe_shared_expert_intermediate_size") is not None
            and v(DISPATCHER) != "alltoall"
        ),
        rule="moe_shared_expert_overlap works with the alltoall dispatcher only",
        fix=((DISPATCHER, "alltoall"),),
    ),
    Constraint(
        name="shared-overlap-needs-shared-experts",
        subject="moe_shared_expert_overlap",
        kind="ineffective",
        broken=lambda v: (
            v.on("moe_shared_expert_overlap") and v("moe_shared_expert_intermediate_size") is None
        ),
        rule="moe_shared_expert_overlap needs shared experts (moe_shared_expert_intermediate_size)",
    ),
    Constraint(
        name="deepep-needs-flex",
        subject="moe_enable_deepep",
        kind="forbidden",
        broken=lambda v: v.on("moe_enable_deepep") and v(DISPATCHER) != "flex",
        rule="DeepEP needs the flex dispatcher",
        fix=((DISPATCHER, "flex"), (BACKEND, "deepep")),
    ),
    Constraint(
        name="deepep-excludes-hybridep",
        subject="moe_enable_deepep",
        kind="forbidden",
        broken=lambda v: v.on("moe_enable_deepep") and v(BACKEND) == "hybridep",
        rule="moe_enable_deepep excludes moe_flex_dispatcher_backend hybridep",
        fix=((BACKEND, "deepep"),),
    ),
    *(
        Constraint(
            name=f"{name.replace('_', '-')}-needs-flex",
            subject=name,
            kind="ineffective",
            broken=lambda v, name=name: v(name) is not None and v(DISPATCHER) != "flex",  # type: ignore[misc]
            rule=f"{name} is read by the flex dispatcher only",
            fix=((DISPATCHER, "flex"),),
            needs_companion=True,
            dialects=("megatron_core", "megatron_lm", "nemo", "verl", "perfdoc"),
        )
        for name in (BACKEND, "moe_deepep_num_sms", "moe_hybridep_num_sms")
    ),
    Constraint(
        name="padding-needs-capacity",
        subject="moe_pad_expert_input_to_capacity",
        kind="forbidden",
        broken=lambda v: v.on("moe_pad_expert_input_to_capacity") and v(CAPACITY) is None,
        rule="moe_pad_expert_input_to_capacity needs moe_expert_capacity_factor",
        fix=((CAPACITY, 1.0),),
        needs_companion=True,
    ),
    Constraint(
        name="padding-excludes-deepep",
        subject="moe_pad_expert_input_to_capacity",
        kind="forbidden",
        broken=lambda v: (
            v.on("moe_pad_expert_input_to_capacity") and v(DISPATCHER) == "flex" and v(BACKEND) == "deepep"
        ),
        rule="DeepEP takes no inputs padded to a capacity",
        fix=(("moe_pad_expert_input_to_capacity", False),),
    ),
    Constraint(
        name="capacity-excludes-sinkhorn",
        subject=CAPACITY,
        kind="forbidden",
        broken=lambda v: v(CAPACITY) is not None and "sinkhorn" in v.items("moe_router_load_balancing_type"),
        rule="moe_expert_capacity_factor does not work with sinkhorn load balancing",
        fix=(("moe_router_load_balancing_type", "aux_loss"),),
    ),
    Constraint(
        name="padding-for-quantization",
        subject="moe_router_padding_for_quantization",
        kind="ineffective",
        broken=lambda v: (
            v.on("moe_router_padding_for_quantization") and v("fp8") is None and v("fp4") is None
        ),
        rule="moe_router_padding_for_quantization pads for FP8 or FP4, and neither is on",
    ),
)
