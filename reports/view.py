"""What the HTML template draws, worked out from the diagnosis: bars, step strips, tables, the waterfall."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median_low

from perfdoc.reports.heat import Heat, heat_of
from perfdoc.reports.leaves import (
    FINE,
    LEAVES,
    Leaf,
    Segment,
    leaf_shares,
    leaf_values,
    stack,
)
from perfdoc.reports.middle import beside
from perfdoc.reports.shares import PP, bubble_of
from perfdoc.reports.summary import Drawn, choose_drawn, rank_labels, total_values
from perfdoc.results import Diagnosis, KernelsOnly, Rank, Step
from perfdoc.results.figures import Scale, apportion, duration, plural, scale_for, share
from perfdoc.results.names import shorten
from perfdoc.results.roles import RolesAnalysis

_CSS = {leaf.path: leaf.css for leaf in LEAVES}


@dataclass(frozen=True, kw_only=True)
class Fall:
    """One bar, as per cents of the whole; it begins where the one above it ends, from the right."""

    x: str
    width: str
    css: str


def falls_of(diagnosis: Diagnosis) -> list[Fall]:
    """A bar for each row of the MFU section, the sum's left out. Losses are taken from 100 % one after the
    other, the last in the ledger first, until the ideal is left at the left edge."""
    shown = [bar for bar in diagnosis.mfu.waterfall if bar.total_ns]
    widths = apportion([bar.total_ns for bar in shown], FINE)
    falls = []
    at = 0
    for bar, width in zip(shown, widths, strict=True):
        css = _CSS.get(bar.name, "compute")
        falls.append(
            Fall(x=_of_whole(at), width=_of_whole(width), css="ideal" if bar.name == "ideal" else css)
        )
        at += width
    return falls


def _of_whole(parts: int) -> str:
    return f"{100 * parts / FINE:.3f}".rstrip("0").rstrip(".") + "%"


STEP_BARS = 200
"""Of one strip at most."""
ALL_STEP_BARS = 4_000
"""Of all strips together."""
OPEN_STEP_STRIPS = 4

HATCHES = {
    "exposed_comm.dp": "M-2 2 2-2M0 8 8 0M6 10 10 6",
    "exposed_comm.tp": "M-2 6 2 10M0 0 8 8M6-2 10 2",
    "exposed_comm.cp": "M2 0V8M6 0V8",
    "exposed_comm.ep": "M0 2H8M0 6H8",
    "exposed_comm.pp": "M0 0 8 8M0 8 8 0",
    "exposed_comm.other": "M1.5 2h2M5.5 6h2",
    "exposed_comm.unknown": "M0 4H8M4 0V8",
    "exposed_memcpy": "M0 0 4 8 8 0",
    "idle.host": "M-2 2 2-2M0 8 8 0M6 10 10 6",
    "idle.gc": "M4 0V8",
    "idle.data": "M0 4H8",
    "idle.dependency": "M0 0 8 8M0 8 8 0",
    "idle.launch_latency": "M3.5 2h1M3.5 6h1",
}
"""Lines over each leaf's colour, as an 8 by 8 tile that repeats; compute and unexplained are plain."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """The ledger of one rank, or of all, as a stacked bar."""

    label: str
    segments: list[Segment]
    spoken: str
    """The bar in words."""
    length_ns: int
    detail: str


@dataclass(frozen=True, kw_only=True)
class LeafRow:
    """One leaf in the table under the bar."""

    leaf: Leaf
    label: str
    share: str
    ns: int
    low_ns: int
    """Least of any rank."""
    high_ns: int


@dataclass(frozen=True, kw_only=True)
class StepBar:
    """One upright bar of a step strip, in per cent of the strip."""

    x: str
    width: str
    y: str
    height: str
    title: str
    ns: int


@dataclass(frozen=True, kw_only=True)
class StepStrip:
    """The steps of one rank."""

    label: str
    bars: list[StepBar]
    summary: str
    merged: int
    """How many steps share a bar, which shows the longest of them; 1 where each has its own."""


@dataclass(frozen=True, kw_only=True)
class RankRow:
    """One rank of the exact table."""

    label: str
    values: list[int]
    """Leaves, only those that some rank has."""
    total_ns: int
    window_ns: int


@dataclass(frozen=True, kw_only=True)
class TimeView:
    """Everything in the section on where the time goes."""

    overall: Bar
    rows: list[LeafRow]
    zero: list[Leaf]
    total_ns: int
    windows_ns: int
    groups: list[tuple[str, list[Bar]]]
    """Bars per rank, empty for a single rank."""
    drawn: int
    """How many bars that are."""
    leaves: list[Leaf]
    """Columns of the exact table."""
    table: list[RankRow]
    """Empty where roles come first."""
    scale: Scale
    heat: Heat
    falls: list[Fall]
    """Empty where MFU is not known."""


def _bar(label: str, values: Sequence[int], length_ns: int, detail: str = "") -> Bar:
    shares = leaf_shares(values)
    rows = [
        (leaf.path, leaf.css, leaf.letter, f"{leaf.label}: {share}, {duration(ns)}", ns)
        for leaf, share, ns in zip(LEAVES, shares, values, strict=True)
    ]
    words = [f"{leaf.label} {share}" for leaf, share, ns in zip(LEAVES, shares, values, strict=True) if ns]
    return Bar(
        label=label,
        segments=stack(rows),
        spoken=f"{label}: " + (", ".join(words) or "no time in the window"),
        length_ns=length_ns,
        detail=detail,
    )


def _detail(rank: Rank) -> str:
    gpu = shorten(rank.gpu.name, 64) if rank.gpu.name else "GPU model unknown"
    return f"GPU {rank.device}, pid {rank.pid}, {gpu}; window {rank.window.kind}"


def time_view(diagnosis: Diagnosis, roles: RolesAnalysis | None) -> TimeView:
    """Where the time goes. The diagnosis must have a rank; roles are those of `roles_of`."""
    ranks = diagnosis.ranks
    labels = rank_labels(ranks)
    per_rank = [leaf_values(rank.ledger_ns) for rank in ranks]
    total = total_values(diagnosis)
    shares = leaf_shares(total)
    shown = [i for i, value in enumerate(total) if value]
    windows_ns = sum(rank.window.duration_ns for rank in ranks)
    bubble_ns = bubble_of(diagnosis)
    bubble = f" ({share(bubble_ns / windows_ns)} pipeline bubble)" if bubble_ns and windows_ns else ""
    drawn: Drawn = choose_drawn(ranks, roles)
    groups = [
        (
            heading,
            [_bar(labels[i], per_rank[i], ranks[i].window.duration_ns, _detail(ranks[i])) for i in members],
        )
        for heading, members in drawn.groups
    ]
    return TimeView(
        overall=_bar("all ranks" if len(ranks) > 1 else labels[0], total, windows_ns),
        rows=[
            LeafRow(
                leaf=LEAVES[i],
                label=LEAVES[i].label + (bubble if LEAVES[i].path == PP else ""),
                share=shares[i],
                ns=total[i],
                low_ns=min(row[i] for row in per_rank),
                high_ns=max(row[i] for row in per_rank),
            )
            for i in shown
        ],
        zero=[leaf for leaf, value in zip(LEAVES, total, strict=True) if not value],
        total_ns=sum(total),
        windows_ns=windows_ns,
        groups=groups if len(ranks) > 1 else [],
        drawn=len(drawn.indices),
        leaves=[LEAVES[i] for i in shown],
        table=[
            RankRow(
                label=labels[i],
                values=[per_rank[i][j] for j in shown],
                total_ns=sum(per_rank[i]),
                window_ns=ranks[i].window.duration_ns,
            )
            for i in (range(len(ranks)) if roles is None else ())
        ],
        scale=scale_for(max(total, default=0)),
        heat=heat_of(diagnosis),
        falls=falls_of(diagnosis),
    )


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.2f}%" if whole > 0 else "0%"


def _strip(label: str, steps: Sequence[Step], tallest_ns: int, most: int) -> StepStrip:
    merged = -(-len(steps) // most)
    longest = [
        max(steps[at : at + merged], key=lambda step: step.duration_ns) for at in range(0, len(steps), merged)
    ]
    widths = apportion([1] * len(longest), 10_000)
    bars = []
    at = 0
    for step, width in zip(longest, widths, strict=True):
        height = max(step.duration_ns, 0)
        bars.append(
            StepBar(
                x=_percent(at, 10_000),
                width=_percent(width, 10_000),
                y=_percent(tallest_ns - height, tallest_ns),
                height=_percent(height, tallest_ns),
                title=f"{shorten(step.name, 64)}: {duration(step.duration_ns)}",
                ns=step.duration_ns,
            )
        )
        at += width
    lengths = [step.duration_ns for step in steps]
    slowest = max(steps, key=lambda step: step.duration_ns)
    low, middle, high = (duration(ns) for ns in (min(lengths), median_low(lengths), max(lengths)))
    if low == high:
        summary = f"{plural(len(steps), 'step')} of {high}"
    else:
        summary = (
            f"{len(steps):,} steps, median {middle}{beside(median_low(lengths), fmean(lengths))}, "
            f"{low} to {high}, longest {shorten(slowest.name, 64)}"
        )
    return StepStrip(label=label, bars=bars, summary=summary, merged=merged)


def step_strips(diagnosis: Diagnosis, roles: RolesAnalysis | None) -> list[StepStrip]:
    """A strip per drawn rank that has steps; all to one height."""
    labels = rank_labels(diagnosis.ranks)
    chosen = [i for i in choose_drawn(diagnosis.ranks, roles).indices if diagnosis.ranks[i].window.step_list]
    tallest = max(
        (step.duration_ns for i in chosen for step in diagnosis.ranks[i].window.step_list), default=0
    )
    most = min(STEP_BARS, ALL_STEP_BARS // max(1, len(chosen)))
    return [_strip(labels[i], diagnosis.ranks[i].window.step_list, tallest, most) for i in chosen]


def kernels_only_rows(
    diagnosis: Diagnosis, roles: RolesAnalysis | None
) -> list[tuple[str, str, KernelsOnly]]:
    """(rank, extent, figures) for the drawn ranks, two rows each."""
    labels = rank_labels(diagnosis.ranks)
    rows = []
    for i in choose_drawn(diagnosis.ranks, roles).indices:
        rows.append((labels[i], "window", diagnosis.ranks[i].kernels_only_window))
        rows.append((labels[i], "capture", diagnosis.ranks[i].kernels_only_capture))
    return rows
