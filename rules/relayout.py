"""What has to divide what where ranks share sequences and heads."""

from __future__ import annotations

from perfdoc.rules.case import Case
from perfdoc.rules.degrees import heads_of, sequence_of

_LARGEST = 1 << 16
"""No group has more ranks; a settings file may say anything."""


def sequence_allows(case: Case, cp: int) -> bool:
    """Whether the sequence is known to divide over so many ranks, twice as finely as megatron-core wants."""
    length = sequence_of(case)
    return cp == 1 or (length is not None and length % (2 * cp) == 0)


def key_value_heads(case: Case) -> int | None:
    """Heads of keys and values; multi-latent attention has one latent that all share."""
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
