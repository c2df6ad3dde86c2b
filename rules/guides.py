"""The guides that rules rest on: what they call by a number, by title."""

from __future__ import annotations

GUIDES = {
    "seed 000": "Megatron-Bridge, performance tuning guide",
    "seed 001": "NeMo Framework, performance tuning guide",
    "seed 002": "Megatron-Bridge, performance tuning guide for LLM training (an abridged form)",
    "seed 003": "Megatron-LM, system optimizations",
    "seed 004": "notes on megatron-core's performance options",
    "DESIGN section 3": "perfdoc's own definitions (docs/ledger.md)",
}


def title_of(source: str) -> str:
    """The title behind one of `Meta.sources`; a source of another rule's, which has no number, as it is."""
    return GUIDES.get(source, source)
