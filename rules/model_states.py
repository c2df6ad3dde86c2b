"""Bytes of weights, gradients and optimizer states on one GPU.

megatron-core's own estimate (theoretical_memory_usage.py): a parameter takes 6 bytes for its bf16 weight and
fp32 gradient, and 12 for its fp32 master and Adam's two moments, these divided over DP x CP by the
distributed optimizer.
"""

from __future__ import annotations

from perfdoc.rules.case import Case

_OPTIMIZER_BYTES, _OTHER_BYTES = 12, 6


def parameters_of_gpu(case: Case, tp: int | None = None) -> float | None:
    """Parameters of a dense model that a GPU holds, at another TP if given; None where that is not known."""
    model = case.job.facts.model
    tp = tp or case.degree("tensor_model_parallel_size")
    pp = case.degree("pipeline_model_parallel_size")
    if model is None or model.parameters is None or model.experts or not tp or not pp:
        return None
    return model.parameters / (tp * pp)


def optimizer_bytes(case: Case, domain: int) -> float | None:
    """Masters and moments on a GPU where `domain` ranks share them.

    8e9 parameters, TP 1, shared by 64: 8e9 x 12 / 64 = 1.5e9.
    """
    held = parameters_of_gpu(case)
    return None if held is None or domain < 1 else held * _OPTIMIZER_BYTES / domain


def state_bytes(case: Case, tp: int, domain: int) -> float | None:
    """All model states on a GPU at another TP; `domain` is 1 without a distributed optimizer."""
    held = parameters_of_gpu(case, tp)
    return None if held is None else held * (_OTHER_BYTES + _OPTIMIZER_BYTES / domain)


def headroom_bytes(case: Case) -> int | None:
    """Least memory of any GPU that was never reserved, as snapshots show; None without."""
    if case.memory is None or case.memory.state != "measured":
        return None
    free = [d.headroom_bytes for r in case.memory.ranks for d in r.devices if d.headroom_bytes is not None]
    return min(free, default=None)


def gib(size_bytes: float) -> str:
    """Bytes for people."""
    return f"{size_bytes / 2**30:.3g} GiB"
