"""What the comparison of ranks does not cover, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.matching.calls import CollectiveCalls
from perfdoc.analyzers.matching.matches import Matches
from perfdoc.analyzers.skew.arrivals import Arrivals
from perfdoc.results.figures import duration

_REASONS = 5
"""Reasons for what was not matched; more would not be read."""


def limits_of(
    ranks: Sequence[CollectiveCalls], matches: Matches, clocks: ClockAlignment, times: Arrivals
) -> list[str]:
    """Each a sentence of its own; empty where everything was compared."""
    return [
        *_missing_ranks(matches),
        *_apart(clocks),
        *_bounded(matches, clocks),
        *_contradicted(matches, clocks),
        *_not_matched(matches),
        *_partial(matches, times),
        *_without_end(matches, times),
        *_unnumbered(ranks, matches),
    ]


def _missing_ranks(matches: Matches) -> list[str]:
    """A group's ranks that are not here may be the ones that all others wait for."""
    called = set(np.unique(matches.group).tolist())
    lacking = [g for i, g in enumerate(matches.groups) if i in called and g.missing]
    if not lacking:
        return []
    return [
        f"Ranks are missing in {len(lacking):,} groups (up to {max(g.missing for g in lacking):,}): if "
        "one of those is last, no straggler is named and its delay counts as transfer."
    ]


def _bounded(matches: Matches, clocks: ClockAlignment) -> list[str]:
    """Clocks that ends do not tie."""
    loose = [i for i, c in enumerate(clocks.clocks) if c.source == "bounds"]
    if not loose:
        return []
    names = [matches.members[i].name for i in loose]
    more = f" and {len(names) - _REASONS:,} more" if len(names) > _REASONS else ""
    worst = max(clocks.clocks[i].resolution_ns or 0 for i in loose)
    return [
        f"The clocks of {', '.join(names[:_REASONS])}{more} share too few ends with the others': they are "
        f"bounded by the order of messages, with a clock error of up to {duration(worst)}."
    ]


def _apart(clocks: ClockAlignment) -> list[str]:
    components = Counter(c.component for c in clocks.clocks)
    if len(components) < 2:
        return []
    alone = sum(members == 1 for members in components.values())
    what = f"; {alone:,} ranks share none with any other" if alone else ""
    return [
        f"The ranks fall into {len(components):,} sets that no matched collective and no two-way messages "
        f"connect; they are not compared across{what}."
    ]


def _contradicted(matches: Matches, clocks: ClockAlignment) -> list[str]:
    names = [matches.groups[g].label for g in sorted(clocks.contradicted)]
    if not names:
        return []
    return [
        f"Left out: ranks leave before others join, so the calls are not of one group: "
        f"{', '.join(names[:_REASONS])}{' and others' if len(names) > _REASONS else ''}."
    ]


def _not_matched(matches: Matches) -> list[str]:
    missing = matches.rows_total - len(matches.row)
    if not missing:
        return []
    reasons = [f"{g.label}: {g.reason}" for g in matches.groups if g.reason]
    text = f"{missing:,} of {matches.rows_total:,} communications have no partner in another rank"
    listed = "; ".join(reasons[:_REASONS])
    more = f"; and {len(reasons) - _REASONS:,} more groups" if len(reasons) > _REASONS else ""
    return [f"{text}{': ' if reasons else ''}{listed}{more}."]


def _partial(matches: Matches, times: Arrivals) -> list[str]:
    count = int((times.in_window & ~matches.is_complete).sum())
    if not count:
        return []
    return [
        f"{count:,} collectives are not in the captures of all given ranks of their group, since captures "
        "begin and end at different times: they are left out."
    ]


def _without_end(matches: Matches, times: Arrivals) -> list[str]:
    """On a CPU; everything else that is complete has durations."""
    count = int((times.in_window & matches.is_complete & ~times.has_durations).sum())
    if not count:
        return []
    return [
        f"Of {count:,} collectives on the CPU (reduce-scatter, send, receive) only the end of the wait is "
        "known, not the completion: they count in no transfer and no wait."
    ]


def _unnumbered(ranks: Sequence[CollectiveCalls], matches: Matches) -> list[str]:
    count = sum(m.rank is None for m in matches.members)
    if not count:
        return []
    return [f"{count:,} of {len(ranks):,} captures do not name their rank: they are named by device."]
