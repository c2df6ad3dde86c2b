"""What the first lines of every report say: labels of ranks and inputs, headline figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from perfdoc.diagnosis import Diagnosis, Rank
from perfdoc.reports.leaves import LEAVES, add_up, family_shares, family_values, leaf_shares, leaf_values
from perfdoc.reports.names import base_name, prose, shorten
from perfdoc.reports.units import duration, plural, share

DRAW_ALL_UP_TO = 64
"""Ranks; above it only those at the ends and in the middle are drawn."""
DRAWN_OF_EACH = 8


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One headline number."""

    label: str
    value: str
    notes: list[str]
    key: str
    """Colour family of the ledger, or empty."""
    ns: int | None
    known: bool


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


def _range(low: str, high: str) -> str:
    return f"{low} on every rank" if low == high else f"ranks {low} to {high}"


def _time_figure(ranks: Sequence[Rank]) -> Figure:
    kinds = sorted({rank.window.kind for rank in ranks})
    steps = [step.duration_ns for rank in ranks for step in rank.window.step_list]
    if steps and kinds == ["steps"]:
        middle = median_low(steps)
        notes = [f"median of {plural(len(steps), 'step')}" + ("" if len(ranks) == 1 else " over all ranks")]
        if duration(min(steps)) != duration(max(steps)):
            notes.append(f"{duration(min(steps))} to {duration(max(steps))}")
        return Figure(label="Step time", value=duration(middle), notes=notes, key="", ns=middle, known=True)
    lengths = [rank.window.duration_ns for rank in ranks]
    longest = max(lengths)
    counted = sorted({rank.window.steps for rank in ranks})
    notes = [_WINDOW_WORDS[kinds[0]] if len(kinds) == 1 else "kinds: " + ", ".join(kinds)]
    if counted[-1]:
        notes.append(plural(counted[-1], "step"))
    if duration(min(lengths)) != duration(longest):
        notes.append(f"longest rank; shortest {duration(min(lengths))}")
    return Figure(label="Window", value=duration(longest), notes=notes, key="", ns=longest, known=True)


_WINDOW_WORDS = {
    "steps": "made of steps",
    "capture": "whole capture: no steps found",
    "user": "given by the user",
}


def _share_figure(label: str, family: str, ranks: Sequence[Rank], values: Sequence[int]) -> Figure:
    notes = []
    leaves = sorted(
        (
            (value, leaf.label.removeprefix("exposed comm ").removeprefix("idle "), part)
            for leaf, value, part in zip(LEAVES, values, leaf_shares(values), strict=True)
            if leaf.family == family and value
        ),
        key=lambda row: -row[0],
    )
    if len(leaves) == 1 and family != leaves[0][1]:
        notes.append(f"all {leaves[0][1]}")
    elif len(leaves) > 1:
        notes.append(", ".join(f"{words} {part}" for _, words, part in leaves[:2]))
    if len(ranks) > 1:
        own = [
            family_values(leaf_values(rank.ledger_ns))[family] / rank.ledger_ns.total
            for rank in ranks
            if rank.ledger_ns.total > 0
        ]
        if own:
            notes.append(_range(share(min(own)), share(max(own))))
    elif ranks:
        notes.append(duration(family_values(values)[family]))
    return Figure(
        label=label,
        value=family_shares(values)[family],
        notes=notes,
        key=family,
        ns=family_values(values)[family],
        known=True,
    )


def headline(diagnosis: Diagnosis) -> list[Figure]:
    """Step time or window, compute, exposed communication, idle, MFU. Shares are of all ranks' windows
    together. Without ranks only MFU."""
    figures = []
    ranks = diagnosis.ranks
    if ranks:
        values = total_values(diagnosis)
        figures = [
            _time_figure(ranks),
            _share_figure("Compute", "compute", ranks, values),
            _share_figure("Exposed communication", "exposed_comm", ranks, values),
            _share_figure("Idle", "idle", ranks, values),
        ]
    mfu = diagnosis.mfu
    if mfu.value is None:
        figures.append(
            Figure(label="MFU", value="unknown", notes=[prose(mfu.reason, 200)], key="", ns=None, known=False)
        )
    else:
        notes = [prose(text, 120) for text in (mfu.convention, mfu.reason) if text]
        figures.append(Figure(label="MFU", value=share(mfu.value), notes=notes, key="", ns=None, known=True))
    return figures
