"""Memory of a mapping by formula, and whether it is estimated to fit.

Sources: megatron-core's theoretical_memory_usage.py (states; activations with sequence parallelism and fused
attention); Korthikanti et al., arXiv:2205.05198 (without sequence parallelism)."""

import math

from perfdoc.analyzers.memory import formula as memory_formula
from perfdoc.analyzers.memory.formula import Batch, Degrees, need_bytes
from perfdoc.knobs.configuration import Undecided, View
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.degrees import CP, PP, TP, sequence_of


def tp_of(case: Case) -> int | None:
    """Tensor-parallel degree, by the settings, else by the job's facts."""
    return case.degree(TP) or case.job.facts.tp


def pp_of(case: Case) -> int | None:
    """Pipeline-parallel degree, likewise."""
    return case.degree(PP) or case.job.facts.pp


def cp_of(case: Case) -> int | None:
    """Context-parallel degree, likewise."""
    return case.degree(CP) or case.job.facts.cp


def vpp_of(case: Case) -> int | None:
    """Chunks of layers per stage."""
    try:
        return View(case.configuration).vpp
    except Undecided:
        return case.job.facts.vpp


def parameters_per_rank(case: Case) -> int | None:
    """Parameters of a dense model on a rank, even over TP and PP; None with experts, which have their own
    layout, or if a factor is unknown."""
    model, tp, pp = case.job.facts.model, tp_of(case), pp_of(case)
    if model is None or model.parameters is None or (model.experts or 1) > 1 or not tp or not pp:
        return None
    return model.parameters // (tp * pp)


def micro_batch_of(case: Case) -> int | None:
    """Sequences of a micro-batch."""
    found = case.number("micro_batch_size")
    return found if found is not None else case.job.facts.micro_batch_sequences


def sequence_parallel_of(case: Case) -> bool | None:
    """Whether sequence parallelism is on."""
    known, value = case.setting("sequence_parallel")
    return value is True if known else case.job.facts.sequence_parallel


def _tokens_by_hidden(case: Case) -> int | None:
    """s x b x h of a micro-batch on one context-parallel rank."""
    model, size, cp = case.job.facts.model, micro_batch_of(case), cp_of(case)
    if model is None or not size or not cp:
        return None
    length = case.number("seq_length") or case.job.facts.sequence_length or model.sequence_length
    return length * size * model.hidden_size // cp


def layer_activation_bytes(case: Case, *, sequence_parallel: bool | None = None) -> int | None:
    """Stored activations of one dense layer and one micro-batch on a rank, assuming fused attention; None
    with experts, whose tokens vary. sequence_parallel: overrides the setting."""
    model, tp, sbh = case.job.facts.model, tp_of(case), _tokens_by_hidden(case)
    divided = sequence_parallel_of(case) if sequence_parallel is None else sequence_parallel
    if tp == 1:
        divided = True  # the two formulas agree
    if model is None or not tp or sbh is None or divided is None or (model.experts or 1) > 1:
        return None
    return round(memory_formula.layer_activation_bytes(model, sbh, tp, sequence_parallel=divided))


def layer_input_bytes(case: Case) -> int | None:
    """What a fully recomputed layer stores: its input."""
    tp, sbh = tp_of(case), _tokens_by_hidden(case)
    if sbh is None or not tp:
        return None
    divided = sequence_parallel_of(case) is True
    return int(memory_formula.layer_input_bytes(sbh, tp, sequence_parallel=divided))


def micro_batches_in_flight(case: Case) -> int | None:
    """Micro-batches whose activations the first stage holds at once, rounded up; assumes many micro-batches
    if their number is unknown."""
    pp, m = pp_of(case), case.micro_batches
    if not pp:
        return None
    if pp == 1:
        return 1
    vpp = vpp_of(case)
    if vpp is None:
        return None
    many = pp if m is None else m
    return math.ceil(memory_formula.micro_batches_in_flight(pp=pp, vpp=vpp, micro_batches=many))


FIT_FRAC = 0.7
"""Of the device's memory, upper limit of an estimate: the rest is for the CUDA context, NCCL buffers,
workspaces, fragmentation and what the formulas omit."""


def batch_of(case: Case, at: Degrees) -> Batch | None:
    """The job's batch under another mapping of the same ranks; None if too little is known.

    Memory savings count only if known to be on: an estimate may be too high, not too low.
    """
    each, count = case.number("micro_batch_size"), case.micro_batches_over(at.dp)
    sequence = sequence_of(case)
    if not each or not count or not sequence:
        return None
    return Batch(
        sequence=sequence,
        micro_sequences=each,
        micro_batches=count,
        sharded_optimizer=case.is_set_to("use_distributed_optimizer", True),
        sequence_parallel=case.is_set_to("sequence_parallel", True),
        recompute=case.is_set_to("recompute_granularity", "full"),
    )


def device_bytes(case: Case) -> int | None:
    """Memory of the smallest GPU; None if one is unknown."""
    sizes = [rank.device.memory_bytes for rank in case.ranks]
    return None if None in sizes or not sizes else min(s for s in sizes if s is not None)


def measured_peak_bytes(case: Case) -> int | None:
    """Largest peak of reserved memory in any snapshot; None without one."""
    devices = [] if case.memory is None else case.memory.devices
    peaks = [d.peak_reserved_bytes for d in devices if d.peak_reserved_bytes]
    return max(peaks, default=None)


def estimates(case: Case, now: Degrees, then: Degrees) -> tuple[int, int] | None:
    """(bytes now, bytes then) of the fullest GPU; None if an input is unknown.

    If a snapshot's peak exceeds the estimate of the current mapping, both are scaled up to it.
    """
    shape = case.job.facts.model
    before, after = batch_of(case, now), batch_of(case, then)
    if shape is None or before is None or after is None or min(shape.layers, shape.hidden_size) < 1:
        return None
    a, b = need_bytes(shape, now, before), need_bytes(shape, then, after)
    if a is None or b is None or not a:
        return None
    factor = max(1.0, (measured_peak_bytes(case) or 0) / a)
    return round(a * factor), round(b * factor)


def fits(case: Case, now: Degrees, then: Degrees) -> tuple[int, int] | None:
    """The estimates, if the second fits with enough headroom; None if not, or unknown."""
    found, memory = estimates(case, now, then), device_bytes(case)
    return found if found is not None and memory is not None and found[1] <= FIT_FRAC * memory else None


def too_large(case: Case, now: Degrees, then: Degrees | None) -> bool:
    """Whether a mapping is impossible or estimated not to fit. False also without an estimate: the advice
    then has to state the cost."""
    if then is None or then.expert_dp is None:
        return True
    known = estimates(case, now, then) is not None and device_bytes(case) is not None
    return known and fits(case, now, then) is None
