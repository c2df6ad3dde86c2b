"""What sections say of many ranks at once: sums, the worst of them, and one name for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from perfdoc.reports.devices import on_host
from perfdoc.results import Rank, figures
from perfdoc.results.names import shorten


def windows_ns(ranks: Iterable[Rank]) -> int:
    """The windows together."""
    return sum(rank.window.duration_ns for rank in ranks)


def frac(part: int, whole: int) -> float | None:
    """part / whole; None of nothing."""
    return part / whole if whole > 0 else None


def devices_of(ranks: Iterable[Rank]) -> str:
    """What the ranks compute on: `the GPU`, `the GPUs`, `the CPU ranks`."""
    ranks = list(ranks)
    what = "CPU rank" if ranks and all(on_host(rank) for rank in ranks) else "GPU"
    return f"the {what}" + ("" if len(ranks) == 1 else "s")


@dataclass(frozen=True, kw_only=True)
class Total:
    """A figure of every rank, added up."""

    sum_ns: int
    worst: str
    """Label of the rank with the most of it; empty for a single rank and where all have none."""
    worst_ns: int


def total_of(ranks: Iterable[Rank], figure: Callable[[Rank], int | None]) -> Total:
    """The sum over the ranks that have the figure, and the rank that has the most of it."""
    known = [(value, rank.label) for rank in ranks if (value := figure(rank)) is not None]
    worst = max(known, key=lambda row: row[0], default=(0, ""))
    return Total(
        sum_ns=sum(value for value, _ in known),
        worst=shorten(worst[1], 64) if len(known) > 1 and worst[0] else "",
        worst_ns=worst[0],
    )


def worst_of(total: Total) -> str:
    """`; most on rank 3: 1.200 ms`, or nothing."""
    return f"; most on {total.worst}: {figures.duration(total.worst_ns)}" if total.worst else ""
