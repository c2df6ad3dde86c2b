"""The user's own ranges as a tree of paths, and which of them work launched at some time belongs to."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernels.nesting import Nesting, nest, value_at
from perfdoc.analyzers.kernels.spans import Lane, find_lanes
from perfdoc.traces import RangeKind
from perfdoc.traces.table import Bool

NONE = -1
MAX_TEXT = 128
"""Characters of a name that are matched: of a pattern that repeats, some power of them may be tried."""
MAX_LABEL = 256
"""Characters of it that are kept."""
MAX_SECONDS = 20.0
"""For matching all names of a capture."""
MAX_NAMES = 2_000
"""Distinct names as they are; of more than that numbers count as one."""
MAX_NODES = 20_000
MAX_DEPTH = 12
"""Ranges nested deeper count as the one around them."""
MAX_THREADS = 256
_AUTOGRAD = "autograd"
"""In the name that PyTorch gives the threads of its backward pass: pt_autograd_0."""
_NEARLY_ALL = 0.95
_NUMBER = re.compile(r"\d+")


class TooSlowError(ValueError):
    """The patterns take too long on the names of this capture."""


@dataclass(frozen=True, kw_only=True)
class _Thread:
    """The ranges of one thread."""

    time_ns: I64
    """When the innermost range changes."""
    node: I64
    """From each of these times on; NONE."""

    def at(self, time_ns: I64) -> I64:
        return value_at(self.time_ns, self.node, time_ns)


@dataclass(frozen=True, kw_only=True)
class RangeTree:
    """Nodes are distinct paths of names; a node comes behind the one around it."""

    names: Sequence[str]
    """By node."""
    parent: Sequence[int]
    """By node: the one around it; NONE."""
    depth: Sequence[int]
    node: I64
    """By range, like the columns below."""
    start_ns: I64
    end_ns: I64
    threads: dict[int, _Thread]
    lanes: dict[int, Lane]
    """What ranges say of the backward pass, by thread."""
    helpers: dict[int, bool]
    """Threads that work for another one's backward pass; whether their name alone says so."""

    def path(self, node: int) -> list[str]:
        """Names from the outermost on."""
        found = []
        while node != NONE:
            found.append(self.names[node])
            node = self.parent[node]
        return found[::-1]

    def at(self, time_ns: I64, thread: I64) -> I64:
        """The node of the innermost range that is open on each thread at each time; NONE. On a thread that
        works for another one's backward pass and has none open, the one that is open there."""
        found = np.full(len(time_ns), NONE, np.int64)
        for t in np.unique(thread).tolist():
            asked = np.flatnonzero(thread == t)
            if t in self.threads:
                found[asked] = self.threads[t].at(time_ns[asked])
            if t in self.helpers:
                open_ = asked[found[asked] == NONE]
                found[open_] = self._waiting(t, time_ns[open_])
        return found

    def changes(self, thread: int) -> I64:
        """Times at which `at` may change on a thread."""
        parts = [self.threads[thread].time_ns] if thread in self.threads else []
        if thread in self.helpers:
            others = [t for t in self.threads if t not in self.helpers]
            parts += [self.threads[t].time_ns for t in others]
            parts += [self.lanes[t].nesting.time_ns for t in others if t in self.lanes]
        return np.unique(np.concatenate(parts)) if parts else np.empty(0, np.int64)

    def _waiting(self, helper: int, time_ns: I64) -> I64:
        """The node that is open on the one thread that waits for this one at each time; NONE of several."""
        found, count = np.full(len(time_ns), NONE, np.int64), np.zeros(len(time_ns), np.int64)
        for t, ranges in self.threads.items():
            if t in self.helpers:
                continue
            node = ranges.at(time_ns)
            waits = node != NONE
            if not self.helpers[helper]:
                waits &= self.lanes[t].waits_at(time_ns) if t in self.lanes else False
            found, count = np.where(waits, node, found), count + waits
        return np.where(count == 1, found, NONE)


def range_tree(view: DeviceView, patterns: Sequence[re.Pattern[str]]) -> RangeTree:
    """The ranges of the device's process whose name a pattern finds. Raises TooSlowError.

    A range that never closes is none. Of a pattern with groups the text of its groups is the name. Ranges
    that cross on one thread (start/end) are cut at the end of the one around them.
    """
    rows, label, labels = _matching(view, patterns)
    trace = view.trace
    lanes = find_lanes(view)
    thread = trace.ranges.thread[rows]
    start, end = trace.ranges.start_ns[rows], trace.ranges.end_ns[rows]
    helpers = _helpers(view, lanes)
    made = _Nodes(labels)
    tree = RangeTree(
        names=made.names,
        parent=made.parent,
        depth=made.depth,
        node=np.full(len(rows), NONE, np.int64),
        start_ns=start,
        end_ns=end,
        threads={},
        lanes=lanes,
        helpers=helpers,
    )
    count = np.bincount(thread, minlength=1)
    busiest = [t for t in np.argsort(-count, kind="stable")[:MAX_THREADS].tolist() if count[t]]
    # Ranges of a helper lie inside the range of the thread that waits for it, which is known first.
    for t in sorted(busiest, key=lambda t: t in helpers):
        mine = np.flatnonzero(thread == t)
        nesting = nest(start[mine], end[mine])
        around = np.full(len(nesting.row), NONE, np.int64)
        if t in helpers and nesting.levels:
            outer = nesting.levels[0]
            around[outer] = tree._waiting(t, start[mine[nesting.row[outer]]])
        node = made.of(nesting, label[mine[nesting.row]], around)
        tree.node[mine[nesting.row]] = node
        inner = np.where(nesting.innermost >= 0, node[np.maximum(nesting.innermost, 0)], NONE)
        tree.threads[t] = _Thread(time_ns=nesting.time_ns, node=inner)
    return tree


class _Nodes:
    """Gives every path one node."""

    def __init__(self, labels: Sequence[str]) -> None:
        self._labels = labels
        self._node: dict[tuple[int, int], int] = {}
        self.names: list[str] = []
        self.parent: list[int] = []
        self.depth: list[int] = []

    def of(self, nesting: Nesting, label: I64, around: I64) -> I64:
        """Node of each span, in the order of `nesting`. around: node outside of the outermost ones."""
        node = np.full(len(label), NONE, np.int64)
        for level in nesting.levels:
            parent = nesting.parent[level]
            outer = np.where(parent >= 0, node[np.maximum(parent, 0)], around[level])
            first, key = row_keys(outer, label[level])
            of_key = [
                self._one(o, text)
                for o, text in zip(outer[first].tolist(), label[level][first].tolist(), strict=True)
            ]
            node[level] = np.array(of_key, np.int64)[key]
        return node

    def _one(self, parent: int, label: int) -> int:
        found = self._node.get((parent, label))
        if found is None:
            depth = 0 if parent == NONE else self.depth[parent] + 1
            if depth >= MAX_DEPTH or len(self.names) >= MAX_NODES:
                found = parent
            else:
                found = len(self.names)
                self.names.append(self._labels[label])
                self.parent.append(parent)
                self.depth.append(depth)
            if len(self._node) < 2 * MAX_NODES:
                self._node[parent, label] = found
        return found


def _matching(view: DeviceView, patterns: Sequence[re.Pattern[str]]) -> tuple[I64, I64, list[str]]:
    """Rows of Trace.ranges, the label of each, and the labels' texts."""
    trace = view.trace
    began = time.monotonic()
    of_name: dict[int, str] = {}
    for i in trace.range_names.tolist():
        text = trace.strings[i]
        found = next((m for p in patterns if (m := p.search(text[:MAX_TEXT])) is not None), None)
        if found is not None:
            groups = [g for g in found.groups() if g]
            of_name[i] = (" ".join(groups) if groups else text)[:MAX_LABEL]
        if time.monotonic() - began > MAX_SECONDS:
            raise TooSlowError(
                f"matching --range-table with the names of ranges takes more than {MAX_SECONDS:.0f} s"
            )
    if len(set(of_name.values())) > MAX_NAMES:
        of_name = {i: _NUMBER.sub("#", text) for i, text in of_name.items()}
    labels = list(dict.fromkeys(of_name.values()))
    index = {text: i for i, text in enumerate(labels)}
    table = np.full(len(trace.strings), NONE, np.int64)
    for i, text in of_name.items():
        table[i] = index[text]
    ranges, of_process = trace.ranges, np.zeros(len(trace.threads) + 1, bool)
    of_process[trace.threads_of(view.device.process)] = True  # the last entry answers for thread -1
    label = table[ranges.name]
    rows = np.flatnonzero(
        (label >= 0)
        & of_process[ranges.thread]
        & (ranges.kind != RangeKind.MARK)
        & ~ranges.never_closed
        & (ranges.end_ns > ranges.start_ns)
    )
    return rows, label[rows], labels


def _helpers(view: DeviceView, lanes: dict[int, Lane]) -> dict[int, bool]:
    """Launching threads that work for another thread's backward pass: those that PyTorch calls so, and those
    that launch nearly all their kernels while exactly one other thread is in a backward pass."""
    activity, threads = view.activity, view.trace.threads
    found: dict[int, bool] = {}
    waiting = {t: lane for t, lane in lanes.items() if lane.in_backward.any()}
    for t in activity.launching_threads[:MAX_THREADS].tolist():
        if t < 0:
            continue
        if _AUTOGRAD in threads[t].name.lower():
            found[t] = True
            continue
        launched = activity.launch_start_ns[(activity.launch_thread == t) & activity.is_compute]
        inside: list[Bool] = [lane.waits_at(launched) for o, lane in waiting.items() if o != t]
        if len(launched) and inside:
            alone = np.sum(inside, axis=0) == 1
            if alone.mean() >= _NEARLY_ALL:
                found[t] = False
    return found
