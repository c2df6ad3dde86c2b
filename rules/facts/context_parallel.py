"""Limits of context parallelism: divisibility, and how much of the transfer attention hides."""

from __future__ import annotations

from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.degrees import batch_divides, heads_of, sequence_of
from perfdoc.rules.facts.exposed import time_ns

_LARGEST = 1 << 16
"""No group has more ranks; a settings file may hold any number."""


def sequence_allows(case: Case, cp: int) -> bool:
    """Whether the sequence length is known to be a multiple of 2 x CP, as megatron-core requires."""
    length = sequence_of(case)
    return cp == 1 or (length is not None and length % (2 * cp) == 0)


def key_value_heads(case: Case) -> int | None:
    """Key and value heads; multi-latent attention has one shared latent."""
    model = case.job.facts.model
    if case.is_set_to("multi_latent_attention", True) or (model is not None and model.kv_lora_rank):
        return 1
    known, groups = case.setting("num_query_groups")
    if known and isinstance(groups, int) and not isinstance(groups, bool):
        return groups
    return heads_of(case) if known else None if model is None else model.query_groups


def divisors(number: int) -> list[int]:
    """All up to 65,536, ascending."""
    return [n for n in range(1, min(number, _LARGEST) + 1) if number % n == 0]


def transfer_over_attention(case: Case) -> float | None:
    """CP communication time over attention time, all ranks; None if attention is unknown."""
    attention = [rank.kernel_parts.attention_ns for rank in case.ranks]
    total = sum(ns or 0 for ns in attention)
    return None if None in attention or not total else time_ns(case, "cp") / total


def covered_cp(case: Case, cp: int, ratio: float) -> int | None:
    """The largest smaller degree at which attention hides the ring's transfer; None if by `ratio` it already
    does, or if the batch is not known to divide over the additional replicas.

    Each of `cp` ranks moves (cp - 1) / cp of the keys and values and computes 1 / cp of attention: transfer
    over attention grows with cp - 1. 1.5 at cp 8 is 1.5 x 3 / 7 = 0.64 at 4.
    """
    if ratio <= 1.0 or cp < 2 or case.dp is None:
        return None
    smaller = [c for c in divisors(cp) if c < cp and ratio * (c - 1) / (cp - 1) <= 1.0]
    return next((c for c in reversed(smaller) if batch_divides(case, case.dp * cp // c)), None)


def two_levels(case: Case, cp: int) -> tuple[int, int] | None:
    """(ranks of the all-to-all, ranks of each ring): the first as large as fits one NVLink domain and divides
    the heads of a rank. None if one of these is unknown, or there is no such split."""
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
