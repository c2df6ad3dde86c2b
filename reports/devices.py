"""What ranks compute on, in words."""

from __future__ import annotations

from collections.abc import Iterable

from perfdoc.results import Rank


def on_host(rank: Rank) -> bool:
    """Whether it trains on the CPU."""
    return rank.gpu.name == "CPU"


def device_word(ranks: Iterable[Rank]) -> str:
    """What one of them computes on: a rank of a run on CPUs is what a GPU is elsewhere."""
    return "rank" if (each := list(ranks)) and all(map(on_host, each)) else "GPU"
