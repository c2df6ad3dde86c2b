"""All ranks at a glance: a strip for each leaf of the ledger, darker where a rank spends more on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from perfdoc.reports.inlined import island
from perfdoc.reports.leaves import LEAVES, Leaf, leaf_values
from perfdoc.reports.summary import rank_labels
from perfdoc.results import Diagnosis
from perfdoc.results.figures import share, signed_share
from perfdoc.results.names import base_name, shorten
from perfdoc.results.roles import RolesAnalysis, length_ns

LEVELS = 5
COLUMNS = 512
"""Of more ranks, neighbours share a column, which shows the one that spends most."""
FEWEST = 5
"""Of fewer ranks, the bars say it all."""
_LEAST_FRAC = 0.0005
"""Leaves that no rank spends so much on are left out."""
MOST_RANKS = 16_384
"""On the page: more ranks than that are in diagnosis.json alone."""


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
    """The strips; empty for a few ranks."""

    rows: list[HeatRow]
    columns: int
    merged: int
    """Ranks in one column."""


def heat_of(diagnosis: Diagnosis) -> Heat:
    """Shares of each rank's own window. A level is the share by the row's largest, so that rows cannot be
    compared by their darkness: their figures stand beside them."""
    ranks = diagnosis.ranks
    labels = rank_labels(ranks)
    merged = max(1, -(-len(ranks) // COLUMNS))
    if len(ranks) < FEWEST:
        return Heat(rows=[], columns=0, merged=merged)
    fracs = []
    for rank in ranks:
        total = rank.ledger_ns.total
        fracs.append([value / total if total > 0 else 0.0 for value in leaf_values(rank.ledger_ns)])
    rows = []
    for leaf, column in zip(LEAVES, zip(*fracs, strict=True), strict=True):
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
