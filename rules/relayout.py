"""Whether a job may be laid out with other degrees: what has to divide what."""

from __future__ import annotations

from perfdoc.rules.case import Case


def batch_allows(case: Case, dp: int) -> bool:
    """Whether the global batch divides over so many replicas, as far as it is known."""
    batch, each = case.number("global_batch_size"), case.number("micro_batch_size")
    return batch is None or not each or batch % (each * dp) == 0


def sequence_allows(case: Case, cp: int) -> bool:
    """Whether the sequence is known to divide over so many ranks, twice as finely as megatron-core wants."""
    length = sequence_length(case)
    return cp == 1 or (length is not None and length % (2 * cp) == 0)


def sequence_length(case: Case) -> int | None:
    """Tokens of a sequence."""
    facts = case.job.facts
    shape = None if facts.model is None else facts.model.sequence_length
    return case.number("seq_length") or facts.sequence_length or shape


def hidden_size(case: Case) -> int | None:
    """Width of the model."""
    model = case.job.facts.model
    return case.number("hidden_size") or (None if model is None else model.hidden_size)


def heads(case: Case) -> int | None:
    """Query heads of a layer."""
    model = case.job.facts.model
    return case.number("num_attention_heads") or (None if model is None else model.attention_heads)


def key_value_heads(case: Case) -> int | None:
    """Heads of keys and values; multi-latent attention has one latent that all share."""
    model = case.job.facts.model
    if case.is_set_to("multi_latent_attention", True) or (model is not None and model.kv_lora_rank):
        return 1
    known, groups = case.setting("num_query_groups")
    if known and isinstance(groups, int) and not isinstance(groups, bool):
        return groups
    return heads(case) if known else None if model is None else model.query_groups


_LARGEST = 1 << 16
"""No group has more ranks; a settings file may say anything."""


def divisors(number: int) -> list[int]:
    """All up to 65,536, ascending."""
    return [n for n in range(1, min(number, _LARGEST) + 1) if number % n == 0]
