"""Slices as a viewer can show them on one track: one inside another, never across."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.traces.table import Bool

MAX_LANES = 16
_ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Events:
    """Beginnings and ends in the order in which they are written."""

    row: I64
    """Which slice."""
    is_begin: Bool


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """Slices on lanes."""

    lanes: list[Events]
    left_out: int
    """Slices for which there was no lane."""


def nested(start_ns: I64, end_ns: I64) -> Lanes:
    """Slices that mostly lie inside one another: the first lane nests, those that cross others go to lanes of
    their own, in each of which no two meet. Slices are not empty."""
    rows = np.arange(len(start_ns))
    crossing = np.empty(0, np.int64)
    for _ in range(_ROUNDS):
        events = _ordered(start_ns, end_ns, rows)
        bad = _mismatched(events, len(start_ns))
        if not len(bad):
            break
        crossing = np.concatenate((crossing, bad))
        rows = np.setdiff1d(rows, bad)
    else:
        crossing, rows = np.arange(len(start_ns)), rows[:0]
        events = _ordered(start_ns, end_ns, rows)
    apart = disjoint(start_ns, end_ns, np.sort(crossing))
    return Lanes(lanes=[*([events] if len(rows) else []), *apart.lanes], left_out=apart.left_out)


def disjoint(start_ns: I64, end_ns: I64, rows: I64 | None = None) -> Lanes:
    """Slices on as many lanes as it takes for no two to overlap on one, at most MAX_LANES."""
    row = np.arange(len(start_ns)) if rows is None else rows
    row = row[np.lexsort((end_ns[row], start_ns[row]))]
    if not len(row):
        return Lanes(lanes=[], left_out=0)
    start, end = start_ns[row], end_ns[row]
    lane = np.zeros(len(row), np.int64)
    # Those that meet no other are on the first lane; the rest, mostly few, one by one.
    reach = np.maximum.accumulate(end)
    meets_before = np.append(False, start[1:] < reach[:-1])
    meeting = np.flatnonzero(meets_before | np.append(meets_before[1:], False))
    lane[meeting] = _first_fit(start[meeting].tolist(), end[meeting].tolist())
    order = np.flatnonzero(lane >= 0)[np.argsort(lane[lane >= 0], kind="stable")]
    parts = np.split(row[order], np.flatnonzero(np.diff(lane[order])) + 1)
    return Lanes(
        lanes=[Events(row=np.repeat(p, 2), is_begin=np.tile([True, False], len(p))) for p in parts if len(p)],
        left_out=int(np.count_nonzero(lane < 0)),
    )


def _first_fit(start: list[int], end: list[int]) -> list[int]:
    """The lowest lane that is free, in order of start; -1 where none is."""
    free_from: list[int] = []
    found = []
    for begin, finish in zip(start, end, strict=True):
        lane = next((i for i, t in enumerate(free_from) if t <= begin), len(free_from))
        if lane == MAX_LANES:
            found.append(-1)
            continue
        free_from[lane : lane + 1] = [finish]
        found.append(lane)
    return found


def _ordered(start_ns: I64, end_ns: I64, rows: I64) -> Events:
    """In order of time. At one moment ends come first, the inner before the outer; then beginnings, the
    longer first."""
    n = len(rows)
    start, end, index = start_ns[rows], end_ns[rows], np.arange(n)
    is_begin = np.repeat([True, False], n)
    order = np.lexsort(
        (
            np.concatenate((index, -index)),
            np.concatenate((-end, -start)),
            is_begin,
            np.concatenate((start, end)),
        )
    )
    return Events(row=np.tile(rows, 2)[order], is_begin=is_begin[order])


def _mismatched(events: Events, count: int) -> I64:
    """Slices whose end would close another one, or whose beginning another's end."""
    depth = np.cumsum(np.where(events.is_begin, 1, -1))
    level = np.where(events.is_begin, depth, depth + 1)
    # On each level beginnings and ends take turns, and each end closes the beginning before it.
    by_level = events.row[np.argsort(level, kind="stable")]
    opened, closed = by_level[::2], by_level[1::2]
    bad = np.zeros(count, bool)
    wrong = opened != closed
    bad[opened[wrong]] = bad[closed[wrong]] = True
    return np.flatnonzero(bad)
