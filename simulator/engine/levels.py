"""Tasks by how many others must run one after the other before them: those of a level run at once.

Of many ranks a level is wide, and numpy goes through a level of 100 tasks in the time in which plain Python
goes through ten.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import numpy as np

from perfdoc.records import dataclass
from perfdoc.simulator.engine.graph import I64, Edges, TaskGraph

_FEW = 20_000
"""Of fewer tasks plain Python is as quick."""
_WIDE = 10
"""Tasks of a mean level; a level costs what plain Python takes for five."""
_LOOKS = 500
"""Levels between two looks at how wide they are."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _Waits:
    """What tasks wait for, by level: of all graphs of the same edges, lags and durations may be others."""

    order: I64
    """Tasks."""
    begins: Sequence[int]
    """Where in the order each level begins, and its end."""
    edge: I64
    """The edges of tasks in this order."""
    source: I64
    """Place in the order of what each of these waits for."""
    first: I64
    """Where in them those of each task of the order begin, and their end."""


def fill_order(first: I64, target: I64, waits_for: I64, order: I64) -> int | None:
    """Fill `order` as plain Python does, each task as soon as the last of what it waits for has its place,
    and return how many it holds: none of a circle. None where tasks are few or levels narrow.

    first: task i is waited for by target[first[i]:first[i + 1]]. waits_for: how many edges each task has.
    """
    begins = None if len(order) < _FEW else _levels(first, target, waits_for, order)
    return None if begins is None else begins[-1]


def _levels(first: I64, target: I64, waits_for: I64, order: I64) -> list[int] | None:
    """Where in the order each level begins, and its end; fills the order."""
    counts, waits_for, seen = np.diff(first), waits_for.copy(), np.empty_like(waits_for)
    level = np.flatnonzero(waits_for == 0)
    begins = [0]
    while len(level):
        if len(begins) % _LOOKS == 0 and begins[-1] < _WIDE * len(begins):
            return None
        order[begins[-1] : begins[-1] + len(level)] = level
        begins.append(begins[-1] + len(level))
        count = counts[level]
        at = np.arange(count.sum())
        awaited = target[np.repeat(first[level] - np.cumsum(count) + count, count) + at]
        np.subtract.at(waits_for, awaited, 1)
        seen[awaited] = at  # of several the last one stays
        level = awaited[(waits_for[awaited] == 0) & (seen[awaited] == at)]
    return begins


def fill_ends(graph: TaskGraph, end: I64) -> int | None:
    """Fill when each task ends, as plain Python does, and return their number; None as above."""
    if len(end) < _FEW or (waits := _waits(graph.edges)) is None:
        return None
    order, begins, first = waits.order, waits.begins, waits.first
    release, duration, lag = graph.release_ns[order], graph.duration_ns[order], graph.edges.lag_ns[waits.edge]
    ends, edges = release + duration, first[begins].tolist()
    for i in range(1, len(begins) - 1):
        here, at = slice(begins[i], begins[i + 1]), slice(edges[i], edges[i + 1])
        start = np.maximum.reduceat(ends.take(waits.source[at]) + lag[at], first[here] - edges[i])
        np.maximum(start, release[here], out=start)
        np.add(start, duration[here], out=ends[here])
    end[order] = ends
    return len(end)


_known: list[tuple[weakref.ref[I64], _Waits | None]] = []
"""Of the last edges that were asked for; edits that change times alone keep the column of sources."""


def _waits(edges: Edges) -> _Waits | None:
    source = edges.source
    kept = [waits for of, waits in _known if of() is source]
    found = kept[0] if kept else _waits_of(edges)
    others = [known for known in _known if known[0]() is not source]
    _known[:] = [(weakref.ref(source), found), *others[:1]]
    return found


def _waits_of(edges: Edges) -> _Waits | None:
    tasks, counts = len(edges.first) - 1, np.diff(edges.first)
    by_source = np.argsort(edges.source, kind="stable")
    first = np.searchsorted(edges.source[by_source], np.arange(tasks + 1))
    order = np.empty(tasks, np.int64)
    begins = _levels(first, edges.target[by_source], counts, order)
    if begins is None:
        return None
    place = np.empty(tasks, np.int64)
    place[order] = np.arange(tasks)
    first = np.append(0, np.cumsum(counts[order]))
    edge = np.repeat(edges.first[order] - first[:-1], counts[order]) + np.arange(len(edges.source))
    return _Waits(order=order, begins=begins, edge=edge, source=place[edges.source[edge]], first=first)
