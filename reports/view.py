"""What the HTML template draws, worked out from the diagnosis: bars, ranks at a glance, tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from markupsafe import Markup

from perfdoc.records import dataclass
from perfdoc.reports.inlined import island
from perfdoc.reports.leaves import (
    BUBBLE,
    LEAVES,
    PP,
    Leaf,
    Part,
    Segment,
    leaf_values,
    parts_of,
    stack,
    total_values,
)
from perfdoc.reports.sections.section import Grid, count, grid_of, word
from perfdoc.reports.summary import drawn_groups, drawn_ranks, rank_labels
from perfdoc.results import Diagnosis, Rank
from perfdoc.results.bubble import exposed_bubble_ns
from perfdoc.results.figures import Scale, duration, scale_for, share, signed_share
from perfdoc.results.names import base_name, shorten
from perfdoc.results.ranks import in_steps, units_of
from perfdoc.results.roles import RolesAnalysis, length_ns

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
    mean_ns: int
    """A step, or a window."""
    low_ns: int
    """Its mean on the rank that has least."""
    high_ns: int


@dataclass(frozen=True, kw_only=True)
class TimeView:
    """Everything in the section on where the time goes."""

    overall: Bar
    rows: list[LeafRow]
    zero: list[Leaf]
    total_ns: int
    mean_ns: int
    per: str
    """What the means are of: `a step`."""
    windows_ns: int
    groups: list[tuple[str, list[Bar]]]
    """Bars per rank, empty for a single rank."""
    drawn: int
    """How many bars that are."""
    tables: list[Grid]
    """Folded: every rank in nanoseconds, but where roles come first; and figures of kernels alone."""
    scale: Scale
    heat: Heat | None
    """Of many ranks; of fewer, the bars say it all."""


def _drawn(parts: Sequence[Part], label: str, length_ns: int, detail: str = "") -> Bar:
    rows = [
        (p.leaf.path, p.leaf.css, p.letter, f"{p.label}: {p.share}, {duration(p.ns)}", p.ns) for p in parts
    ]
    words = [f"{p.label} {p.share}" for p in parts]
    return Bar(
        label=label,
        segments=stack(rows),
        spoken=f"{label}: " + (", ".join(words) or "no time in the window"),
        length_ns=length_ns,
        detail=detail,
    )


def _detail(rank: Rank) -> str:
    gpu = shorten(rank.gpu.name, 64) if rank.gpu.name else "GPU model unknown"
    pid = f", pid {rank.pid}" if rank.pid >= 0 else ""
    return f"GPU {rank.device}{pid}, {gpu}; window {rank.window.kind}"


def time_view(diagnosis: Diagnosis, roles: RolesAnalysis | None) -> TimeView:
    """Where the time goes. The diagnosis must have a rank; roles are those of `roles_of`."""
    ranks = diagnosis.ranks
    labels = rank_labels(ranks)
    total, parts = total_values(diagnosis), parts_of(diagnosis)
    own = [_of_ranks(part.leaf, diagnosis) for part in parts]
    shown = [i for i, value in enumerate(total) if value]
    windows_ns = sum(rank.window.duration_ns for rank in ranks)
    units = units_of(ranks)
    groups = [
        (
            heading,
            [
                _drawn(
                    parts_of(diagnosis, ranks[i]), labels[i], ranks[i].window.duration_ns, _detail(ranks[i])
                )
                for i in members
            ],
        )
        for heading, members in drawn_groups(ranks, roles)
    ]
    return TimeView(
        overall=_drawn(parts, "all ranks" if len(ranks) > 1 else labels[0], windows_ns),
        rows=[
            LeafRow(
                leaf=part.leaf,
                label=part.label,
                share=part.share,
                ns=part.ns,
                mean_ns=round(part.ns / sum(units)),
                low_ns=min(means := [round(ns / of) for ns, of in zip(each, units, strict=True)]),
                high_ns=max(means),
            )
            for part, each in zip(parts, own, strict=True)
        ],
        zero=[leaf for leaf, value in zip(LEAVES, total, strict=True) if not value],
        total_ns=sum(total),
        mean_ns=round(sum(total) / sum(units)),
        per="a step" if in_steps(ranks) else "a window",
        windows_ns=windows_ns,
        groups=groups if len(ranks) > 1 else [],
        drawn=len(drawn_ranks(ranks, roles)),
        tables=[
            *([_every_rank(labels, ranks, shown)] if roles is None and len(ranks) > 1 else []),
            _kernels_only(labels, ranks, drawn_ranks(ranks, roles)),
        ],
        scale=scale_for(round(max(total, default=0) / sum(units))),
        heat=heat_of(diagnosis, [part.leaf for part in parts], own) if roles else None,
    )


def _of_ranks(leaf: Leaf, diagnosis: Diagnosis) -> list[int]:
    """Nanoseconds of a part of the bar, rank by rank."""
    found = []
    for rank in diagnosis.ranks:
        ns = rank.ledger_ns.by_leaf[leaf.path]
        bubble = exposed_bubble_ns(diagnosis.analyses.pipeline, [rank]) if leaf.path == PP else 0
        found.append(min(ns, bubble) if leaf is BUBBLE else ns - min(ns, bubble))
    return found


def _every_rank(labels: Sequence[str], ranks: Sequence[Rank], shown: Sequence[int]) -> Grid:
    """A column for each leaf that some rank has, their sum, and the window where it is another."""
    rows = []
    for label, rank in zip(labels, ranks, strict=True):
        values = leaf_values(rank.ledger_ns)
        total, window = sum(values), rank.window.duration_ns
        numbers = [*(values[i] for i in shown), total, "=" if total == window else window]
        rows.append([word(label), *map(word, numbers)])
    heads = ["rank", *(LEAVES[i].label for i in shown), "sum", "window"]
    return Grid(
        caption="Every rank in exact nanoseconds",
        head=heads,
        align="l" + "r" * (len(heads) - 1),
        rows=rows,
        key="ranks",
        folded=True,
        dense=True,
    )


def _kernels_only(labels: Sequence[str], ranks: Sequence[Rank], drawn: Sequence[int]) -> Grid:
    """Of the drawn ranks, two rows each."""
    rows = [
        (labels[i], extent, alone)
        for i in drawn
        for extent, alone in (
            ("window", ranks[i].kernels_only_window),
            ("capture", ranks[i].kernels_only_capture),
        )
    ]
    grid = grid_of(
        rows,
        ("rank", "l", lambda row: word(row[0])),
        ("extent", "l", lambda row: word(row[1])),
        ("kernels", "r", lambda row: count(row[2].kernels)),
        ("comm kernels", "r", lambda row: count(row[2].comm_kernels)),
        ("span ns", "r", lambda row: count(row[2].span_ns)),
        ("busy ns", "r", lambda row: count(row[2].busy_ns)),
        ("compute ns", "r", lambda row: count(row[2].compute_ns)),
        ("comm ns", "r", lambda row: count(row[2].comm_ns)),
        ("hidden ns", "r", lambda row: count(row[2].hidden_ns)),
        ("exposed ns", "r", lambda row: count(row[2].exposed_ns)),
        ("idle ns", "r", lambda row: count(row[2].idle_ns)),
        caption="Kernels only: no copies, no graph launches, as other tools count",
        key="kernels-only",
        folded=True,
    )
    return replace(grid, dense=True)


LEVELS = 5
COLUMNS = 512
"""Of more ranks, neighbours share a column, which shows the one that spends most."""
_LEAST_FRAC = 0.0005
"""Leaves that no rank spends so much on are left out."""


@dataclass(frozen=True, kw_only=True)
class HeatRow:
    """One leaf over all ranks."""

    leaf: Leaf
    low: str
    high: str
    """Share of the rank that spends most on it."""
    who: str
    """That rank."""
    paths: list[tuple[int, str]]
    """(level from 1 to LEVELS, what to draw); a rank is one unit wide, the strip one unit high."""
    spoken: str


@dataclass(frozen=True, kw_only=True)
class Heat:
    """The strips."""

    rows: list[HeatRow]
    columns: int
    merged: int
    """Ranks in one column."""


def heat_of(diagnosis: Diagnosis, leaves: Sequence[Leaf], own: Sequence[Sequence[int]]) -> Heat:
    """Shares of each rank's own window; own: of each leaf, rank by rank, in ns. A level is the share by the
    row's largest, so that rows cannot be compared by their darkness: their figures stand beside them."""
    ranks = diagnosis.ranks
    labels = rank_labels(ranks)
    merged = max(1, -(-len(ranks) // COLUMNS))
    rows = []
    for leaf, values in zip(leaves, own, strict=True):
        column = [ns / max(rank.ledger_ns.total, 1) for rank, ns in zip(ranks, values, strict=True)]
        highest = max(column)
        if highest < _LEAST_FRAC:
            continue
        who = labels[column.index(highest)]
        cells = [max(column[at : at + merged]) for at in range(0, len(column), merged)]
        low, high = share(min(column)), share(highest)
        even = "the same on every rank" if low == high else f"{low} to {high}, most on {who}"
        rows.append(
            HeatRow(
                leaf=leaf,
                low=low,
                high=high,
                who="" if low == high else who,
                paths=_paths(cells, highest),
                spoken=f"{leaf.label}: {even}",
            )
        )
    return Heat(rows=rows, columns=-(-len(ranks) // merged), merged=merged)


def _paths(cells: Sequence[float], highest: float) -> list[tuple[int, str]]:
    """One path of runs for each level."""
    levels = [0 if cell <= 0 else max(1, -int(-LEVELS * cell // highest)) for cell in cells]
    drawn: dict[int, str] = {}
    at = 0
    while at < len(levels):
        end = at
        while end < len(levels) and levels[end] == levels[at]:
            end += 1
        if levels[at]:
            drawn[levels[at]] = drawn.get(levels[at], "") + f"M{at} 0h{end - at}v1H{at}z"
        at = end
    return sorted(drawn.items())


MOST_RANKS = 16_384
"""On the page: more ranks than that are in diagnosis.json alone."""


def ranks_island(diagnosis: Diagnosis, roles: RolesAnalysis) -> Markup:
    """JSON for a script element of a data type: a column for each figure, in the order of the ranks."""
    ranks = diagnosis.ranks[:MOST_RANKS]
    values = [leaf_values(rank.ledger_ns) for rank in ranks]
    present = [leaf for leaf in range(len(LEAVES)) if any(row[leaf] for row in values)]
    files = [base_name(item.path) for item in diagnosis.inputs]
    data = {
        "labels": [shorten(rank.label, 64) for rank in ranks],
        "files": [files[rank.input] if 0 <= rank.input < len(files) else "" for rank in ranks],
        "roles": [role.label for role in roles.roles],
        "role": roles.role_of[: len(ranks)],
        "places": {key: of[: len(ranks)] for key, of in roles.places.of.items()},
        "steps": roles.steps,
        "step": [length_ns(rank, steps=roles.steps) for rank in ranks],
        "window": [rank.window.duration_ns for rank in ranks],
        "leaves": [
            {
                "label": LEAVES[leaf].label,
                "ns": [row[leaf] for row in values],
                "usual": [round(role.shares[LEAVES[leaf].path].median_frac, 6) for role in roles.roles],
            }
            for leaf in present
        ],
        "far": {
            each.rank: signed_share(each.lead.by_frac) for each in roles.outliers if each.rank < len(ranks)
        },
    }
    return island(data)
