"""Tasks and what each waits for, in columns.

A task starts when everything that it waits for has ended and the edge's lag has passed, and not before its
release; it runs for its duration. Tasks are numbered so that each waits for lower numbers only: building
in the order of time gives that for nothing, and the engine needs no sorting.

A collective is three kinds of tasks: every member arrives (zero long, when its own stream is ready), one
meeting waits for all arrivals (zero long), and every member transfers, from the meeting on.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property
from typing import TypeVar

import numpy as np

from perfdoc.analyzers.base.rows import kept
from perfdoc.records import dataclass
from perfdoc.traces.table import I8 as I8
from perfdoc.traces.table import I64 as I64

NONE = -1
NO_RELEASE = np.iinfo(np.int64).min
T = TypeVar("T")


class TaskKind(IntEnum):
    """What a task stands for."""

    HOST = 0
    """A call or other work on a host thread."""
    COMPUTE = 1
    COMMUNICATION = 2
    """On a device; of a matched collective, the part from the meeting on."""
    COPY = 3
    ARRIVAL = 4
    """A member of a collective is ready."""
    MEETING = 5
    """All members of a collective are ready."""


class EdgeKind(IntEnum):
    """Why a task waits for another."""

    HOST_ORDER = 0
    """The same thread, one after the other; the lag is what the thread did in between."""
    HOST_HANDOVER = 1
    """Another thread of the process went on (forward and backward threads)."""
    LAUNCH = 2
    STREAM_ORDER = 3
    EVENT = 4
    """Event record -> wait."""
    HOST_SYNC = 5
    """A host call that blocks until the device is done."""
    COLLECTIVE = 6
    """Between the members of a collective."""
    INFERRED = 7
    """No event is in the capture, but the start at another stream's end shows that it waited."""


@dataclass(frozen=True, kw_only=True)
class Edges:
    """What tasks wait for, grouped by the waiting task."""

    first: I64
    """Task i has the edges first[i] .. first[i + 1]; one longer than the tasks."""
    source: I64
    """The task that is waited for, below the one that waits."""
    lag_ns: I64
    """Time from its end to the earliest start; may be negative (a kernel starts inside its launching
    call)."""
    kind: I8
    """EdgeKind."""

    @classmethod
    def of(cls, source: I64, target: I64, lag_ns: I64, kind: I8, tasks: int) -> Edges:
        """Edges source[i] -> target[i] in any order; those of a task by kind. One sort, which is quick where
        most lie grouped already."""
        at = np.argsort(target * len(EdgeKind) + kind, kind="stable")
        first = np.zeros(tasks + 1, np.int64)
        np.cumsum(np.bincount(target, minlength=tasks), out=first[1:])
        return cls(first=first, source=source[at], lag_ns=lag_ns[at], kind=kind[at])

    @cached_property
    def target(self) -> I64:
        """The waiting task of each edge."""
        return np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))

    def in_order(self, order: I64) -> tuple[I64, I64]:
        """Edges of tasks in this order: where each one's begin, and their places here."""
        counts = np.diff(self.first)[order]
        first = np.append(0, np.cumsum(counts))
        return first, np.repeat(self.first[order] - first[:-1], counts) + np.arange(len(self.source))

    def renumbered(self, order: I64) -> Edges:
        """The same where tasks are numbered in this order; those of a task by kind."""
        (first, at), number = self.in_order(order), np.empty_like(order)
        number[order] = np.arange(len(order))
        by_kind = np.repeat(np.arange(len(order)) * len(EdgeKind), np.diff(first)) + self.kind[at]
        if (by_kind[1:] < by_kind[:-1]).any():
            at = at[np.argsort(by_kind, kind="stable")]
        return Edges(first=first, source=number[self.source[at]], lag_ns=self.lag_ns[at], kind=self.kind[at])


def lasting(make: Callable[[Edges], T]) -> Callable[[Edges], T]:
    """What is made of edges but for their lags, for the last two: edits of times alone keep the others."""
    known: list[tuple[weakref.ref[I64], weakref.ref[I64], T]] = []

    def made(edges: Edges) -> T:
        for at, (first, source, value) in enumerate(known):
            if first() is edges.first and source() is edges.source:
                known.insert(0, known.pop(at))
                return value
        known[:] = [(weakref.ref(edges.first), weakref.ref(edges.source), make(edges)), *known[:1]]
        return known[0][2]

    return made


@lasting
def _check(edges: Edges) -> None:
    waits = np.flatnonzero(np.diff(edges.first))
    last = np.maximum.reduceat(edges.source, edges.first[waits]) if len(waits) else waits
    assert (last < waits).all(), "a task waits for lower numbers only"
    assert (edges.source >= 0).all(), "an edge comes from a task"


@dataclass(frozen=True, kw_only=True)
class TaskGraph:
    """Tasks by number; all columns are of one length."""

    duration_ns: I64
    release_ns: I64
    """Not before this; the smallest int64 where nothing of the kind holds."""
    kind: I8
    """TaskKind."""
    rank: I64
    """Position of the device or process that it belongs to."""
    resource: I64
    """Stream of a device task, thread of a host task."""
    row: I64
    """Row in the table that it was made from; -1 none."""
    edges: Edges

    def __post_init__(self) -> None:
        n = len(self.duration_ns)
        assert len(self.edges.first) == n + 1, (len(self.edges.first), n)
        assert n == 0 or (self.duration_ns >= 0).all(), "a task takes no time back"
        _check(self.edges)


class GraphBuilder:
    """Collects columns of edges in any order; `edges` groups them. It keeps the columns that it is given."""

    def __init__(self) -> None:
        self._parts: list[tuple[I64, I64, I64, EdgeKind]] = []

    def add_all(self, source: I64, target: I64, lag_ns: I64, kinds: I8) -> None:
        """Edges of several kinds, one kind after the other."""
        for kind in EdgeKind:
            mine = kinds == kind
            self.add(source[mine], target[mine], lag_ns[mine], kind)

    def add(self, source: I64, target: I64, lag_ns: I64 | int, kind: EdgeKind) -> None:
        """Edges source[i] -> target[i]; where the source is -1 there is none."""
        lag = np.broadcast_to(np.asarray(lag_ns, np.int64), source.shape)
        source, target, lag = kept(source >= 0, source, target, lag)
        self._parts.append((source, target, lag, kind))

    def possible_edges(self, tasks: int) -> tuple[Edges, int]:
        """Those that come from lower numbers, and how many do not and are left out. Empties the builder."""
        before = sum(len(source) for source, *_ in self._parts)
        for i, (source, target, lag, kind) in enumerate(self._parts):
            source, target, lag = kept(source < target, source, target, lag)
            self._parts[i] = (source, target, lag, kind)
        edges = self.edges(tasks)
        return edges, before - len(edges.source)

    def edges(self, tasks: int) -> Edges:
        """All of them by waiting task, in the order in which they were added. Empties the builder."""
        first = np.zeros(tasks + 1, np.int64)
        for _, target, _, _ in self._parts:
            first[1:] += np.bincount(target, minlength=tasks)
        np.cumsum(first, out=first)
        # Each goes right to its place: one list of all and its sort would take most of a long trace's memory.
        source, lag = np.empty(first[-1], np.int64), np.empty(first[-1], np.int64)
        kind = np.empty(first[-1], np.int8)
        while self._parts:
            of, target, lags, why = self._parts.pop(0)
            at = _places(target, first)
            source[at], lag[at], kind[at] = of, lags, why
        # Where a task's edges end now is where the next one's begin.
        first[1:], first[0] = first[:-1].copy(), 0
        return Edges(first=first, source=source, lag_ns=lag, kind=kind)


def _places(target: I64, free: I64) -> I64:
    """Where edges of these targets go: one by one from `free` of each on, which moves behind them."""
    if (target[1:] > target[:-1]).all():
        at = free[target]
        free[target] = at + 1
        return at
    order = np.argsort(target, kind="stable")
    target = target[order]
    fresh = np.append(True, target[1:] != target[:-1])
    begin = np.flatnonzero(fresh)
    length = np.diff(np.append(begin, len(target)))
    at = np.empty(len(target), np.int64)
    at[order] = free[target] + np.arange(len(target)) - np.repeat(begin, length)
    free[target[begin]] += length
    return at
