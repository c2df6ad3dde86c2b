"""Whether a mapping is estimated to fit: memory formulas applied to the job's known facts."""

from __future__ import annotations

from perfdoc.analyzers.memory.formula import Batch, Degrees, need_bytes
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.degrees import sequence_of

FIT_FRAC = 0.7
"""Of the device's memory, upper limit of an estimate: the rest is for the CUDA context, NCCL buffers,
workspaces, fragmentation and what the formulas omit."""


def batch_of(case: Case, at: Degrees) -> Batch | None:
    """The job's batch under another mapping of the same ranks; None if too little is known.

    Memory savings count only if known to be on: an estimate may be too high, not too low.
    """
    batch, each = case.number("global_batch_size"), case.number("micro_batch_size")
    sequence = sequence_of(case)
    if not batch or not each or not sequence or batch % (each * at.dp):
        return None
    return Batch(
        sequence=sequence,
        micro_sequences=each,
        micro_batches=batch // (each * at.dp),
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
