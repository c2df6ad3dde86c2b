"""Tasks by how many others must run before them, one after the other: numpy runs those of a level at once."""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np

from perfdoc.simulator.engine.graph import I64, Edges, TaskGraph, lasting

_FEW = 20_000
_WIDE, _LOOKS = 10, 100
"""Of fewer tasks, or of fewer in a mean level after so many, plain Python is as quick."""


_Waits: TypeAlias = tuple[I64 | slice, list[slice], I64 | slice, list[slice], I64, I64]
"""What tasks wait for: (tasks by level, those of each level but the first, their edges, those of each level,
the place of what each edge waits for, where among its level's edges those of each task begin). Slices in
place of columns where tasks are numbered so already."""


def fill_order(first: I64, target: I64, waits_for: I64, order: I64) -> list[int] | None:
    """Fill `order` as plain Python does, each task as soon as the last of what it waits for has its place,
    and return where in it each level begins and the last one ends: before others in a circle. None where
    tasks are few or levels narrow.

    first: task i is waited for by target[first[i]:first[i + 1]]. waits_for: how many edges each task has.
    """
    if len(order) < _FEW:
        return None
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
        awaited = target[(first[level] - count.cumsum() + count).repeat(count) + at]
        np.subtract.at(waits_for, awaited, 1)
        seen[awaited] = at  # of several the last one stays
        level = awaited[(waits_for[awaited] == 0) & (seen[awaited] == at)]
    return begins


def fill_ends(graph: TaskGraph, end: I64) -> list[int] | None:
    """Fill when each task ends, as plain Python does, and return the same."""
    if len(end) < _FEW or (waits := _waits(graph.edges)) is None:
        return None
    order, levels, edge, waiting, source, first = waits
    start, duration = graph.release_ns[order].copy(), graph.duration_ns[order]
    lag = duration[source]  # from start to start
    lag += graph.edges.lag_ns[edge]
    for here, at in zip(levels, waiting, strict=True):
        ready, begin = start.take(source[at]), start[here]
        ready += lag[at]
        np.maximum(begin, np.maximum.reduceat(ready, first[here]), out=begin)
    start += duration
    end[order] = start
    return [0, *(here.start for here in levels), len(end)]


def _numbered(edges: Edges, counts: I64) -> list[int] | None:
    """Where each level begins, and the end, of tasks that are numbered by level; None of others."""
    none = int(np.argmax(counts > 0))
    if not counts[none:].all():
        return None
    last = np.maximum.accumulate(np.maximum.reduceat(edges.source, edges.first[none:-1]))
    begins = [0, none]
    while begins[-1] < len(counts):
        if len(begins) % _LOOKS == 0 and begins[-1] < _WIDE * len(begins):
            return None
        begins.append(none + int(last.searchsorted(begins[-1])))
    return begins


@lasting
def _waits(edges: Edges) -> _Waits | None:
    tasks, counts = len(edges.first) - 1, np.diff(edges.first)
    order: I64 | slice = slice(None)
    edge: I64 | slice = slice(None)
    source, first = edges.source, edges.first
    begins = _numbered(edges, counts)
    if begins is None:
        by_source = np.argsort(source, kind="stable")
        of_source = np.searchsorted(source[by_source], np.arange(tasks + 1))
        order = np.empty(tasks, np.int64)
        if (begins := fill_order(of_source, edges.target[by_source], counts, order)) is None:
            return None
        place = np.empty(tasks, np.int64)
        place[order] = np.arange(tasks)
        first, edge = edges.in_order(order)
        source = place[source[edge]]
    levels = [slice(*ends) for ends in pairwise(begins[1:])]
    waiting = [slice(*ends) for ends in pairwise(first[begins[1:]].tolist())]
    since = np.repeat(first[begins[:-1]], np.diff(begins))
    return order, levels, edge, waiting, source, first[:-1] - since
