"""Rules of the parallel dimensions and the pipeline's messages.

Sources: megatron-core 0.16.1's own checks (ModelParallelConfig, TransformerConfig), Megatron-LM core_v0.16.1
arguments.py, Megatron-Bridge 0.3.1 config.py.
"""

from __future__ import annotations

import math

from perfdoc.knobs.configuration import Undecided, View
from perfdoc.knobs.constraints.definition import Constraint
from perfdoc.knobs.pipeline_layout import LAYOUT

TP, PP, CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
VPP, EP = "virtual_pipeline_model_parallel_size", "expert_model_parallel_size"
FIRST, LAST = "num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"
EMBEDDING, LOSS = "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"


def _uneven(v: View) -> bool:
    return v(FIRST) is not None or v(LAST) is not None


def _layers_do_not_divide(v: View) -> bool:
    if v.pp * v.vpp == 1 or v(LAYOUT) is not None or _uneven(v):
        return False
    return (v.number("num_layers") + v.on(EMBEDDING) + v.on(LOSS)) % (v.pp * v.vpp) != 0


def _uneven_rest_does_not_divide(v: View) -> bool:
    ends = [v.number(name) for name in (FIRST, LAST) if v(name) is not None]
    if not ends:
        return False
    rest, stages = v.number("num_layers") - sum(ends), v.pp - len(ends)
    if rest < 0 or stages < 0 or (stages == 0) != (rest == 0):
        return True
    return any(size % v.vpp for size in ends) or (stages > 0 and rest % (stages * v.vpp) != 0)


def _micro_batches(v: View) -> int:
    samples = v.number("micro_batch_size") * v.dp
    if v.number("global_batch_size") % samples:
        raise Undecided("global_batch_size")  # another rule says so
    return v.number("global_batch_size") // samples


def _cp_types(v: View) -> tuple[object, ...]:
    return v.items("cp_comm_type")


PARALLEL: tuple[Constraint, ...] = (
    Constraint(
        name="heads-over-tp",
        subject=TP,
        kind="forbidden",
        broken=lambda v: v.tp > 1 and v.number("num_attention_heads") % v.tp != 0,
        rule="num_attention_heads must be divisible by tensor_model_parallel_size",
    ),
    Constraint(
        name="query-groups-over-tp",
        subject=TP,
        kind="forbidden",
        broken=lambda v: (
            v("num_query_groups") is not None
            and v.number("num_query_groups") % v.tp != 0
            and v.tp % v.number("num_query_groups") != 0
        ),
        rule="num_query_groups must be a multiple or a divisor of tensor_model_parallel_size",
    ),
    Constraint(
        name="ranks-over-degrees",
        subject=TP,
        kind="forbidden",
        broken=lambda v: v.number("world_size") % (v.tp * v.pp * v.cp) != 0,
        rule="the number of ranks must be divisible by TP x PP x CP",
    ),
    Constraint(
        name="sequence-parallel-needs-tp",
        subject="sequence_parallel",
        kind="forbidden",
        broken=lambda v: v.on("sequence_parallel") and v.tp == 1,
        rule="sequence_parallel needs tensor_model_parallel_size above 1",
        fix=(("sequence_parallel", False),),
        dialects=("megatron_core", "megatron_bridge", "nemo", "perfdoc"),
    ),
    Constraint(
        name="sequence-parallel-without-tp",
        subject="sequence_parallel",
        kind="ineffective",
        broken=lambda v: v.on("sequence_parallel") and v.tp == 1,
        rule="sequence_parallel is silently switched off with tensor_model_parallel_size 1",
        dialects=("megatron_lm", "nemo1"),
    ),
    Constraint(
        name="experts-with-tp-need-sequence-parallel",
        subject="sequence_parallel",
        kind="forbidden",
        broken=lambda v: (
            v("num_moe_experts") is not None and v.ep > 1 and v.tp > 1 and not v.on("sequence_parallel")
        ),
        rule="expert parallelism with tensor parallelism needs sequence_parallel",
        fix=(("sequence_parallel", True),),
    ),
    Constraint(
        name="vpp-needs-pp",
        subject=VPP,
        kind="forbidden",
        broken=lambda v: v.vpp > 1 and v.pp == 1,
        rule="virtual stages need pipeline_model_parallel_size above 1",
        fix=((VPP, None),),
    ),
    Constraint(
        name="two-stages-interleaved-need-p2p-overlap",
        subject=VPP,
        kind="forbidden",
        broken=lambda v: v.vpp > 1 and v.pp == 2 and not v.on("overlap_p2p_comm"),
        rule="two interleaved stages need overlap_p2p_comm",
        fix=(("overlap_p2p_comm", True),),
        dialects=("megatron_lm", "perfdoc"),
    ),
    Constraint(
        name="layers-over-stages",
        subject=PP,
        kind="forbidden",
        broken=_layers_do_not_divide,
        rule="num_layers (and 1 for each account_for_… switch) must be divisible by PP x VPP, unless the "
        "first or last stage has a size of its own",
    ),
    Constraint(
        name="uneven-stages-exclude-accounting",
        subject=FIRST,
        kind="forbidden",
        broken=lambda v: _uneven(v) and (v.on(EMBEDDING) or v.on(LOSS)),
        rule="a size for the first or last stage excludes account_for_embedding/loss_in_pipeline_split",
    ),
    Constraint(
        name="uneven-stages-do-not-fit",
        subject=FIRST,
        kind="forbidden",
        broken=_uneven_rest_does_not_divide,
        rule="the layers that the first and last stage leave must divide over the other stages, and each "
        "stage's over VPP",
    ),
    Constraint(
        name="interleaving-needs-multiple-of-pp",
        subject="global_batch_size",
        kind="forbidden",
        broken=lambda v: (
            v.vpp > 1 and v("microbatch_group_size_per_vp_stage") is None and _micro_batches(v) % v.pp != 0
        ),
        rule="the interleaved schedule needs micro-batches per step (global batch / micro-batch / DP) "
        "divisible by PP",
    ),
    Constraint(
        name="global-batch-over-dp",
        subject="global_batch_size",
        kind="forbidden",
        broken=lambda v: v.number("global_batch_size") % (v.number("micro_batch_size") * v.dp) != 0,
        rule="global_batch_size must be divisible by micro_batch_size x DP",
        dialects=("megatron_core", "megatron_bridge", "megatron_lm", "nemo", "nemo1", "perfdoc"),
    ),
    Constraint(
        name="vp-group-needs-vpp",
        subject="microbatch_group_size_per_vp_stage",
        kind="ineffective",
        broken=lambda v: v("microbatch_group_size_per_vp_stage") is not None and v.vpp == 1,
        rule="microbatch_group_size_per_vp_stage is read with virtual stages only",
    ),
    Constraint(
        name="sequence-over-cp",
        subject=CP,
        kind="forbidden",
        broken=lambda v: v.cp > 1 and v.number("seq_length") % (2 * v.cp) != 0,
        rule="seq_length must be divisible by 2 x context_parallel_size",
    ),
    Constraint(
        name="data-and-model-length",
        subject="dataset_seq_length",
        kind="forbidden",
        broken=lambda v: v.number("dataset_seq_length") != v.number("seq_length"),
        rule="the data set's sequence length must be the model's seq_length",
        dialects=("megatron_bridge", "nemo1"),
    ),
    Constraint(
        name="ulysses-heads-over-cp",
        subject="cp_comm_type",
        kind="forbidden",
        broken=lambda v: (
            "a2a" in _cp_types(v) and v.cp > 1 and v.number("num_attention_heads") % (v.cp * v.tp) != 0
        ),
        rule="cp_comm_type a2a hands whole heads around, so the heads of a rank (heads / TP) must be "
        "divisible by context_parallel_size",
    ),
    Constraint(
        name="hierarchical-cp-needs-sizes",
        subject="cp_comm_type",
        kind="forbidden",
        broken=lambda v: (
            "a2a+p2p" in _cp_types(v)
            and v.cp > 1
            and math.prod(int(str(n)) for n in v.items("hierarchical_context_parallel_sizes")) != v.cp
        ),
        rule="cp_comm_type a2a+p2p needs hierarchical_context_parallel_sizes whose product is "
        "context_parallel_size",
    ),
    Constraint(
        name="hierarchical-sizes-need-a2a-p2p",
        subject="hierarchical_context_parallel_sizes",
        kind="ineffective",
        broken=lambda v: (
            v("hierarchical_context_parallel_sizes") is not None
            and v.cp > 1
            and "a2a+p2p" not in _cp_types(v)
        ),
        rule="hierarchical_context_parallel_sizes is read with cp_comm_type a2a+p2p only",
    ),
    Constraint(
        name="cp-type-per-layer",
        subject="cp_comm_type",
        kind="forbidden",
        broken=lambda v: len(_cp_types(v)) > 1 and v.cp > 1 and len(_cp_types(v)) != v.number("num_layers"),
        rule="a list in cp_comm_type needs one entry per layer",
    ),
    Constraint(
        name="experts-over-ep",
        subject=EP,
        kind="forbidden",
        broken=lambda v: v.ep > 1 and v.number("num_moe_experts") % v.ep != 0,
        rule="num_moe_experts must be divisible by expert_model_parallel_size",
    ),
    Constraint(
        name="ep-needs-experts",
        subject=EP,
        kind="forbidden",
        broken=lambda v: v.ep > 1 and v("num_moe_experts") is None,
        rule="expert_model_parallel_size above 1 needs a model with experts (num_moe_experts)",
    ),
    Constraint(
        name="overlap-p2p-needs-vpp",
        subject="overlap_p2p_comm",
        kind="ineffective",
        broken=lambda v: v.on("overlap_p2p_comm") and v.vpp == 1,
        rule="overlap_p2p_comm works between virtual stages only; without them it is switched off",
        fix=(("overlap_p2p_comm", False),),
    ),
    Constraint(
        name="overlap-p2p-excludes-batching",
        subject="batch_p2p_comm",
        kind="forbidden",
        broken=lambda v: v.on("batch_p2p_comm") and v.on("overlap_p2p_comm") and v.vpp > 1,
        rule="overlap_p2p_comm and batch_p2p_comm exclude each other",
        fix=(("batch_p2p_comm", False),),
    ),
    Constraint(
        name="warmup-overlap-needs-p2p-overlap",
        subject="overlap_p2p_comm_warmup_flush",
        kind="forbidden",
        broken=lambda v: (
            v.on("overlap_p2p_comm_warmup_flush") and (not v.on("overlap_p2p_comm") or v.on("batch_p2p_comm"))
        ),
        rule="overlap_p2p_comm_warmup_flush needs overlap_p2p_comm and no batch_p2p_comm",
        fix=(("overlap_p2p_comm", True), ("batch_p2p_comm", False)),
    ),
    Constraint(
        name="deferred-wgrad-needs-pp",
        subject="defer_embedding_wgrad_compute",
        kind="forbidden",
        broken=lambda v: (
            v.on("defer_embedding_wgrad_compute") and (v.pp == 1 or not v.on("gradient_accumulation_fusion"))
        ),
        rule="defer_embedding_wgrad_compute needs PP above 1 and gradient_accumulation_fusion",
    ),
    Constraint(
        name="deferral-limit-needs-deferral",
        subject="wgrad_deferral_limit",
        kind="ineffective",
        broken=lambda v: v.number("wgrad_deferral_limit") > 0 and not v.on("defer_embedding_wgrad_compute"),
        rule="wgrad_deferral_limit is read with defer_embedding_wgrad_compute only",
        fix=(("defer_embedding_wgrad_compute", True),),
        needs_companion=True,
    ),
    Constraint(
        name="negative-deferral-limit",
        subject="wgrad_deferral_limit",
        kind="forbidden",
        broken=lambda v: v.on("defer_embedding_wgrad_compute") and v.number("wgrad_deferral_limit") < 0,
        rule="wgrad_deferral_limit must not be negative",
        fix=(("wgrad_deferral_limit", 0),),
    ),
)
