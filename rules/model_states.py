"""Bytes of optimizer states on one GPU, and what GPUs have left.

megatron-core's own estimate (theoretical_memory_usage.py): of a parameter's 18 bytes 12 are its fp32 master
and Adam's two moments, which the distributed optimizer divides over DP x CP.
"""

from __future__ import annotations

from perfdoc.rules.case import Case

_OPTIMIZER_BYTES = 12


def optimizer_bytes(case: Case, domain: int) -> float | None:
    """Masters and moments on a GPU of a dense model where `domain` ranks share them; None where that is not
    known.

    8e9 parameters, TP 1, shared by 64: 8e9 x 12 / 64 = 1.5e9.
    """
    model = case.job.facts.model
    tp, pp = case.degree("tensor_model_parallel_size"), case.degree("pipeline_model_parallel_size")
    if model is None or model.parameters is None or model.experts or not tp or not pp or domain < 1:
        return None
    return model.parameters / (tp * pp) * _OPTIMIZER_BYTES / domain


def headroom_bytes(case: Case) -> int | None:
    """Least memory of any GPU that was never reserved, as snapshots show; None without."""
    if case.memory is None or case.memory.state != "measured":
        return None
    free = [d.headroom_bytes for r in case.memory.ranks for d in r.devices if d.headroom_bytes is not None]
    return min(free, default=None)
