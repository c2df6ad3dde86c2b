"""How far context parallelism can go here: what attention covers, and which two-level split fits."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.degrees import batch_divides, heads_of
from perfdoc.rules.hidden import time_ns
from perfdoc.rules.relayout import divisors, key_value_heads


def transfer_over_attention(case: Case) -> float | None:
    """Time of CP communication by that of attention, over all ranks; None where attention is not known."""
    attention = [rank.kernel_parts.attention_ns for rank in case.ranks]
    total = sum(ns or 0 for ns in attention)
    return None if None in attention or not total else time_ns(case, "cp") / total


def covered_cp(case: Case, cp: int, ratio: float) -> int | None:
    """The largest smaller degree at which attention covers the ring's transfer; None where `ratio` shows that
    it does already, or where the batch is not known to divide over the replicas that become free.

    Of `cp` ranks each moves (cp - 1) / cp of the keys and values and computes 1 / cp of attention, so that
    transfer over attention grows with cp - 1. 1.5 at cp 8 is 1.5 x 3 / 7 = 0.64 at 4.
    """
    if ratio <= 1.0 or cp < 2 or case.dp is None:
        return None
    smaller = [c for c in divisors(cp) if c < cp and ratio * (c - 1) / (cp - 1) <= 1.0]
    return next((c for c in reversed(smaller) if batch_divides(case, case.dp * cp // c)), None)


def two_levels(case: Case, cp: int) -> tuple[int, int] | None:
    """(ranks that exchange heads, ranks of each ring): the first as many as lie in one NVLink domain and as
    divide the heads of a rank. None where one of these is not known, or there is no such split."""
    gpu, tp = case.gpu, case.degree("tensor_model_parallel_size")
    query, shared = heads_of(case), key_value_heads(case)
    if gpu is None or gpu.nvlink_domain is None or not tp or query is None or shared is None:
        return None
    fits = [
        a
        for a in divisors(cp)
        if 1 < a < cp and a * tp <= gpu.nvlink_domain and query % (tp * a) == 0 and shared % (tp * a) == 0
    ]
    return (fits[-1], cp // fits[-1]) if fits else None
