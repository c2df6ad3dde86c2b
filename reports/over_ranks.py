"""What is said of many ranks and steps at once: sums, the worst, what they compute on, median and mean."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perfdoc.records import dataclass
from perfdoc.results import Rank, figures
from perfdoc.results.names import shorten
from perfdoc.results.ranks import in_steps, units_of

_APART_FRAC = 0.03
"""Of the median: a mean that differs by more is another figure. Shares and gains are of the mean."""


def apart(median_ns: float, mean_ns: float | None) -> bool:
    """Whether they are too far apart for one to stand for both.

    >>> apart(200.7, 754.2), apart(100.0, 102.9)
    (True, False)
    """
    return mean_ns is not None and abs(mean_ns - median_ns) > _APART_FRAC * median_ns


def mean_beside(median_ns: float, mean_ns: float | None) -> str:
    """The mean, to be said behind the median; empty where it is the same to a reader.

    >>> mean_beside(200_700_000, 754_200_000)
    ' (mean 754.200 ms)'
    """
    said = "" if mean_ns is None else f" (mean {figures.duration(round(mean_ns))})"
    return said if apart(median_ns, mean_ns) else ""


def on_host(rank: Rank) -> bool:
    """Whether it trains on the CPU."""
    return rank.gpu.name == "CPU"


def device_word(ranks: Iterable[Rank]) -> str:
    """What one of them computes on: a rank of a run on CPUs is what a GPU is elsewhere."""
    return "rank" if (each := list(ranks)) and all(map(on_host, each)) else "GPU"


def windows_ns(ranks: Iterable[Rank]) -> int:
    """The windows together."""
    return sum(rank.window.duration_ns for rank in ranks)


def mean_words(ns: int, ranks: Sequence[Rank]) -> str:
    """A sum over ranks and steps as the ledger shows it, `4.418 ms a step`, else of a rank's window."""
    of = " a step" if in_steps(ranks) else " a window" if len(ranks) > 1 else ""
    return f"{figures.duration(round(ns / sum(units_of(ranks))))}{of}"


def frac(part: int, whole: int) -> float | None:
    """part / whole; None of nothing."""
    return part / whole if whole > 0 else None


def devices_of(ranks: Iterable[Rank]) -> str:
    """What the ranks compute on: `the GPU`, `the GPUs`, `the CPU ranks`."""
    ranks = list(ranks)
    what = "CPU rank" if device_word(ranks) == "rank" else "GPU"
    return f"the {what}" + ("" if len(ranks) == 1 else "s")


@dataclass(frozen=True, kw_only=True)
class Total:
    """A figure of every rank, added up."""

    sum_ns: int
    worst: str
    """Label of the rank with the most of it; empty for a single rank and where all have none."""
    worst_ns: int
    worst_frac: float | None
    """Of that rank's window."""


def total_of(ranks: Iterable[Rank], figure: Callable[[Rank], int | None]) -> Total:
    """The sum over the ranks that have the figure, and the rank that has the most of it."""
    known = [(value, rank) for rank in ranks if (value := figure(rank)) is not None]
    worst_ns, worst = max(known, key=lambda row: row[0], default=(0, None))
    return Total(
        sum_ns=sum(value for value, _ in known),
        worst=shorten(worst.label, 64) if worst is not None and len(known) > 1 and worst_ns else "",
        worst_ns=worst_ns,
        worst_frac=None if worst is None else frac(worst_ns, worst.window.duration_ns),
    )


def worst_of(total: Total) -> str:
    """`; most on rank 3: 12.0 %`, or nothing."""
    return f"; most on {total.worst}: {figures.share(total.worst_frac)}" if total.worst else ""
