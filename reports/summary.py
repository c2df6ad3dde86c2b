"""What every report calls its ranks and inputs, and which ranks it draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.reports.leaves import add_up, leaf_values
from perfdoc.reports.names import base_name, shorten
from perfdoc.reports.units import plural
from perfdoc.results import Diagnosis, Rank

DRAW_ALL_UP_TO = 64
"""Ranks; above it only those at the ends and in the middle are drawn."""
DRAWN_OF_EACH = 8


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """Which ranks get a bar of their own, as indices into Diagnosis.ranks, in the order of drawing."""

    groups: list[tuple[str, list[int]]]
    """(heading, indices); the heading is empty where all are drawn."""
    left_out: int

    @property
    def indices(self) -> list[int]:
        """All of them."""
        return [i for _, group in self.groups for i in group]


def rank_labels(ranks: Sequence[Rank]) -> list[str]:
    """What reports call the ranks, fit to be shown."""
    return [shorten(rank.label, 64) for rank in ranks]


def choose_drawn(ranks: Sequence[Rank]) -> Drawn:
    """All ranks up to DRAW_ALL_UP_TO; beyond it those with the longest, middle and shortest windows."""
    order = sorted(range(len(ranks)), key=lambda i: (-ranks[i].window.duration_ns, i))
    if len(order) <= DRAW_ALL_UP_TO:
        return Drawn(groups=[("", list(range(len(order))))], left_out=0)
    middle = (len(order) - DRAWN_OF_EACH) // 2
    groups = [
        ("longest windows", order[:DRAWN_OF_EACH]),
        ("around the median", order[middle : middle + DRAWN_OF_EACH]),
        ("shortest windows", order[-DRAWN_OF_EACH:]),
    ]
    return Drawn(groups=groups, left_out=len(order) - 3 * DRAWN_OF_EACH)


def total_values(diagnosis: Diagnosis) -> list[int]:
    """Leaf values in ns over all ranks, in the order of LEAVES."""
    return add_up(leaf_values(rank.ledger_ns) for rank in diagnosis.ranks)


def source_line(diagnosis: Diagnosis) -> str:
    """What was read, in a few words: files, ranks, GPU."""
    files = [base_name(item.path) for item in diagnosis.inputs]
    names = sorted({shorten(rank.gpu.name, 64) for rank in diagnosis.ranks if rank.gpu.name})
    parts = [
        ", ".join(files) if len(files) <= 2 else f"{files[0]} and {plural(len(files) - 1, 'more file')}",
        plural(len(diagnosis.ranks), "rank"),
        ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else ""),
    ]
    return " · ".join(part for part in parts if part)
