"""The ledger of one device divided among the user's own ranges, to the nanosecond."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64, owners_by_last_end
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernels.parts import sum_by
from perfdoc.analyzers.ledger.steps import cut_at, exposed_owners
from perfdoc.analyzers.tables.range_tree import NONE, RangeTree, TooSlowError, range_tree
from perfdoc.results.names import shorten
from perfdoc.results.quality import MEASURED
from perfdoc.results.ranks import IDLE_CAUSES, LEAVES, ExposedComm, Idle, Ledger
from perfdoc.results.tables import RangeRow, RangeTable

MAX_ROWS = 128
"""Of a rank, those of most time; the others share one."""
_MATRIX = (KernelClass.GEMM, KernelClass.ATTENTION)


def range_table(view: DeviceView, patterns: Sequence[re.Pattern[str]], ledger: Ledger) -> RangeTable:
    """Rows of one device. ledger: its window's."""
    given = [shorten(p.pattern, 200) for p in patterns]
    if not patterns:
        return RangeTable.missing("no ranges were asked for", "Name them: --range-table REGEX.")
    if view.activity.on_host:
        return RangeTable.missing("the rank trains on the CPU, which launches nothing", patterns=given)
    if view.events.partial:
        return RangeTable.missing(view.events.partial, patterns=given)
    try:
        tree = range_tree(view, patterns)
    except TooSlowError as error:
        return RangeTable.missing(str(error), "Give a simpler pattern.", patterns=given)
    if not len(tree.node):
        return RangeTable.missing(
            "no range has such a name", "See the names with: perfdoc ranges TRACE", patterns=given
        )
    rows = list(_rows(view, tree, _own(view, tree, ledger), ledger))
    return RangeTable(**MEASURED, patterns=given, rows=rows)


class _Sheet:
    """Nanoseconds by node and leaf; the last row is outside of all ranges."""

    def __init__(self, nodes: int) -> None:
        self.ns = np.zeros((nodes + 1, len(LEAVES)), np.int64)

    def add(self, node: I64, leaf: I64 | int, ns: I64) -> None:
        """Add times of leaves (indices into LEAVES)."""
        outside = len(self.ns) - 1
        index = np.where(node == NONE, outside, node) * len(LEAVES) + leaf
        self.ns += sum_by(index, ns, self.ns.size).reshape(self.ns.shape)


def _own(view: DeviceView, tree: RangeTree, ledger: Ledger) -> I64:
    """Nanoseconds of the window, nodes x LEAVES, with a last row for what is outside of all ranges."""
    sheet = _Sheet(len(tree.names))
    _add_work(view, tree, sheet)
    _add_idle(view, tree, sheet)
    sums = dict(zip(LEAVES, sheet.ns.sum(axis=0).tolist(), strict=True))
    assert sums == ledger.by_leaf, (sums, ledger.by_leaf)
    return sheet.ns


def _add_work(view: DeviceView, tree: RangeTree, sheet: _Sheet) -> None:
    activity, window = view.activity, view.window
    node = tree.at(activity.launch_start_ns, activity.launch_thread)

    def inside(time_ns: I64) -> I64:
        return np.clip(time_ns, window.start_ns, window.end_ns)

    def owned(rows: I64) -> tuple[I64, I64, I64]:
        start, end, owner = owners_by_last_end(activity.start_ns[rows], activity.end_ns[rows])
        return inside(start), inside(end), node[rows[owner]]

    start, end, of = owned(np.flatnonzero(activity.is_compute))
    sheet.add(of, LEAVES.index("compute"), end - start)
    first_leaf = LEAVES.index(f"exposed_comm.{DIMENSIONS[0]}")
    for begin, finish, row, covered in exposed_owners(activity.communication, activity.compute):
        a, b = inside(begin), inside(finish)
        leaf = first_leaf + activity.communication.dimension[row]
        sheet.add(node[activity.comm_rows[row]], leaf, b - a - covered.covered_within(a, b))
    is_copy = ~activity.is_compute
    is_copy[activity.comm_rows] = False
    start, end, of = owned(np.flatnonzero(is_copy))
    hidden = activity.compute | activity.comm
    sheet.add(of, LEAVES.index("exposed_memcpy"), end - start - hidden.covered_within(start, end))


def _add_idle(view: DeviceView, tree: RangeTree, sheet: _Sheet) -> None:
    """Idle time of the host goes to the range that the thread was in which launched what follows; the rest
    to the range of what follows."""
    activity, window, gaps, inputs = view.activity, view.window, view.gaps, view.idle_inputs
    leaf = {cause: LEAVES.index(f"idle.{cause}") for cause in IDLE_CAUSES}
    ends = activity.start_ns[gaps.following] >= gaps.end_ns
    thread = np.where(ends, activity.launch_thread[gaps.following], NONE)
    for t in np.unique(thread).tolist():
        mine = np.flatnonzero(thread == t)
        changes = tree.changes(t)
        inner = changes[(changes > window.start_ns) & (changes < window.end_ns)]
        bounds = np.concatenate(([window.start_ns], inner, [window.end_ns]))
        a, b, _, piece = cut_at(bounds, gaps.start_ns[mine], gaps.host_end_ns[mine])
        node = tree.at(bounds[piece], np.full(len(piece), t, np.int64))
        gc, both = inputs.gc.covered_within(a, b), inputs.gc_or_data.covered_within(a, b)
        sheet.add(node, leaf["host"], b - a - both)
        sheet.add(node, leaf["gc"], gc)
        sheet.add(node, leaf["data"], both - gc)
    launched = np.where(ends, activity.launch_start_ns[gaps.following], NONE)
    cause = np.where(gaps.waited, leaf["dependency"], leaf["launch_latency"])
    cause = np.where(gaps.short, cause, leaf["unexplained"])
    a = np.clip(gaps.host_end_ns, window.start_ns, window.end_ns)
    b = np.clip(gaps.end_ns, window.start_ns, window.end_ns)
    sheet.add(tree.at(launched, thread), cause, b - a)


@dataclass(frozen=True, kw_only=True)
class _Counts:
    """By node, outside last."""

    ranges: I64
    host_ns: I64
    kernels: I64
    kernel_ns: I64
    matrix_ns: I64


def _counts(view: DeviceView, tree: RangeTree) -> _Counts:
    nodes, window = len(tree.names), view.window
    low, high = _on_host(view)
    open_ = np.flatnonzero((tree.start_ns < high) & (tree.end_ns > low) & (tree.node != NONE))
    open_ns = np.minimum(tree.end_ns[open_], high) - np.maximum(tree.start_ns[open_], low)
    kernels, api = view.trace.kernels, view.trace.api_calls
    rows = view.activity.kernel_rows
    rows = rows[(kernels.start_ns[rows] < window.end_ns) & (kernels.end_ns[rows] > window.start_ns)]
    launch = view.launches.kernels[rows]
    known = np.flatnonzero(launch >= 0)
    node = np.full(len(rows), nodes, np.int64)
    of = tree.at(api.start_ns[launch[known]], api.thread[launch[known]].astype(np.int64))
    node[known] = np.where(of == NONE, nodes, of)
    ns = np.minimum(kernels.end_ns[rows], window.end_ns) - np.maximum(kernels.start_ns[rows], window.start_ns)
    is_matrix = np.isin(view.kinds.class_code[rows], _MATRIX)
    return _Counts(
        ranges=np.bincount(tree.node[open_], minlength=nodes + 1),
        host_ns=sum_by(tree.node[open_], open_ns, nodes + 1),
        kernels=np.bincount(node, minlength=nodes + 1),
        kernel_ns=sum_by(node, ns, nodes + 1),
        matrix_ns=sum_by(node[is_matrix], ns[is_matrix], nodes + 1),
    )


def _on_host(view: DeviceView) -> tuple[int, int]:
    """The window on the host: its steps' ranges; else from the launch of what runs first in it."""
    window, steps, activity = view.window, view.step_ranges, view.activity
    if len(steps.start_ns):
        return int(steps.start_ns[0]), int(steps.end_ns[-1])
    inside = (activity.start_ns < window.end_ns) & (activity.end_ns > window.start_ns)
    launched = activity.launch_start_ns[inside & (activity.launch_start_ns >= 0)]
    return min(window.start_ns, int(launched.min(initial=window.start_ns))), window.end_ns


def _whole(tree: RangeTree, own: I64) -> I64:
    """Of each node with all inside it; the last row, outside, as it is."""
    found = own.copy()
    for node in range(len(tree.names) - 1, -1, -1):
        if tree.parent[node] != NONE:
            found[tree.parent[node]] += found[node]
    return found


def _rows(view: DeviceView, tree: RangeTree, own: I64, ledger: Ledger) -> Iterator[RangeRow]:
    counts = _counts(view, tree)
    nodes, outside = len(tree.names), len(tree.names)
    whole = _whole(tree, own)
    inner = {name: _whole(tree, getattr(counts, name)) for name in ("kernels", "kernel_ns", "matrix_ns")}
    total, matrix_ns = whole.sum(axis=1), int(counts.matrix_ns.sum())
    there = np.flatnonzero((total[:nodes] > 0) | (inner["kernels"][:nodes] > 0) | (counts.ranges[:nodes] > 0))
    # A range takes no less than those inside it, and comes before them: those around the kept are kept.
    kept = there[np.lexsort((there, -total[there]))][:MAX_ROWS]

    def row(kind: str, nodes_of: I64, path: Sequence[str] = (), *, with_inner: bool = True) -> RangeRow:
        all_of = whole[nodes_of] if with_inner else own[nodes_of]
        figures = {
            name: int((values if with_inner else getattr(counts, name))[nodes_of].sum())
            for name, values in inner.items()
        }
        ns = int(all_of.sum())
        return RangeRow(
            kind=kind,  # type: ignore[arg-type]  # one of its words
            path=list(path),
            count=int(counts.ranges[nodes_of].sum()),
            host_ns=int(counts.host_ns[nodes_of].sum()),
            own=_ledger(own[nodes_of].sum(axis=0)),
            whole=_ledger(all_of.sum(axis=0)),
            kernels=figures["kernels"],
            kernel_ns=figures["kernel_ns"],
            share_frac=ns / ledger.total if ledger.total else None,
            matrix_frac=figures["matrix_ns"] / matrix_ns if matrix_ns else None,
        )

    for node in _outer_first(tree, kept, total):
        yield row("range", np.array([node]), tree.path(node))
    if len(left := np.setdiff1d(there, kept)):
        yield row("others", left, with_inner=False)
    yield row("outside", np.array([outside]))


def _outer_first(tree: RangeTree, nodes: I64, total: I64) -> Iterator[int]:
    """Nodes behind the one around them, those of most time first."""
    inside: dict[int, list[int]] = {}
    for node in sorted(nodes.tolist(), key=lambda n: -int(total[n])):
        inside.setdefault(tree.parent[node], []).append(node)
    pending = inside.get(NONE, [])[::-1]
    while pending:
        node = pending.pop()
        yield node
        pending += inside.get(node, [])[::-1]


def _ledger(leaves: I64) -> Ledger:
    ns = dict(zip(LEAVES, leaves.tolist(), strict=True))
    return Ledger(
        compute=ns["compute"],
        exposed_comm=ExposedComm(**{d: ns[f"exposed_comm.{d}"] for d in DIMENSIONS}),
        exposed_memcpy=ns["exposed_memcpy"],
        idle=Idle(**{c: ns[f"idle.{c}"] for c in IDLE_CAUSES}),
    )
