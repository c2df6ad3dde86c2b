"""The stretches of work between exchanges of tokens: attention and dense layers, experts, and so on in turn.

All ranks that exchange tokens begin a stretch together, and wait at its end for the longest of them. Experts
take as long as they have tokens, whatever attention takes; no range and no group's name is needed.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64, index_within
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernels.parts import grouped_by_name
from perfdoc.records import dataclass
from perfdoc.traces.table import Bool

_TOKENS = ("dispatch", "combine")
EXCHANGES = frozenset(("all_to_all", *_TOKENS))
"""Operations of all ranks of a group with all, inside a pass."""
_EP = DIMENSIONS.index("ep")


@dataclass(frozen=True, kw_only=True, eq=False)
class Stretches:
    """By stretch in order; empty where a device exchanges no tokens, or its steps differ in how often."""

    of: I64
    """Column of the work that it is part of."""
    at_ns: I64
    """From the beginning of that, in the first step."""
    is_experts: Bool
    takes_ns: I64
    """Of compute, by stretch and step."""
    lasts_ns: I64
    """Until the exchange behind it has ended, as it does on all ranks together; 0 at the edge of a piece."""


def no_stretches() -> Stretches:
    """Of a device without experts."""
    none, square = np.empty(0, np.int64), np.empty((0, 0), np.int64)
    return Stretches(of=none, at_ns=none, is_experts=none.astype(bool), takes_ns=square, lasts_ns=square)


def find_stretches(view: DeviceView, calls: CollectiveCalls, first: I64, last: I64) -> Stretches:
    """first, last: of each piece of work, by step and column."""
    wanted = [i for i, word in enumerate(calls.operations) if word in EXCHANGES]
    rows = np.flatnonzero(np.isin(calls.operation, wanted) | (calls.dimension == _EP))
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    filled = np.flatnonzero((last > first).ravel())
    begin, finish = first.ravel()[filled], last.ravel()[filled]
    cell = index_within(begin, finish, calls.start_ns[rows]) if len(filled) and len(rows) else rows[:0]
    rows, cell = rows[: len(cell)][cell >= 0], cell[cell >= 0]
    if not len(rows):
        return no_stretches()
    start, end = calls.start_ns[rows], np.maximum.accumulate(calls.end_ns[rows])
    is_first = np.diff(cell, prepend=-1) > 0
    is_last = np.append(is_first[1:], True)
    # One before each exchange, and one behind the last of a piece.
    since = np.concatenate((np.where(is_first, begin[cell], np.append(0, end[:-1])), end[is_last]))
    until = np.concatenate((start, finish[cell[is_last]]))
    ended = np.concatenate((end, finish[cell[is_last]]))
    of = np.concatenate((cell, cell[is_last]))
    at_edge = np.concatenate((is_first, np.ones(int(is_last.sum()), bool)))
    order = np.lexsort((since, of))
    since, until, of, at_edge = since[order], until[order], filled[of[order]], at_edge[order]
    lasts = np.where(at_edge, 0, ended[order] - since)
    until = np.maximum(since, until)
    counts = np.bincount(of, minlength=first.size).reshape(first.shape)
    column = of % first.shape[1]
    kept = (counts == counts[0]).all(axis=0)[column]
    if not kept.any():
        return no_stretches()
    steps = len(first)
    tells = bool((calls.dimension[rows] == _EP).any()) or any(w in calls.operations for w in _TOKENS)
    experts = _of_experts(view, since, until, at_edge, tells=tells)[kept].reshape(steps, -1)
    takes = view.activity.compute.covered_within(since, until)[kept].reshape(steps, -1)
    one = slice(0, takes.shape[1])
    return Stretches(
        of=column[kept][one],
        at_ns=(since - first.ravel()[of])[kept][one],
        is_experts=experts.mean(axis=0) > 0,
        takes_ns=takes.T,
        lasts_ns=lasts[kept].reshape(steps, -1).T,
    )


def _of_experts(view: DeviceView, since: I64, until: I64, at_edge: Bool, *, tells: bool) -> Bool:
    """Which hold experts' products: grouped ones by their names; where no name says so, products without
    attention between two exchanges. tells: whether it is known that these exchange tokens."""
    all_rows, codes = view.activity.kernel_rows, view.kinds.class_code
    begins = view.trace.kernels.start_ns

    def counted(rows: I64) -> I64:
        at = np.sort(begins[rows])
        return np.searchsorted(at, until) - np.searchsorted(at, since)

    of_class = codes[all_rows]
    products = all_rows[of_class == KernelClass.GEMM]
    grouped = products[grouped_by_name(view, view.trace.kernels.full_name[products])]
    if len(grouped):
        return counted(grouped) > 0
    multiplies, attends = counted(products) > 0, counted(all_rows[of_class == KernelClass.ATTENTION]) > 0
    # Ulysses exchanges heads: between these there is attention, and no product.
    beside = np.count_nonzero(multiplies & attends) > np.count_nonzero(attends) / 2
    tells |= bool((of_class == KernelClass.MOE_ROUTING).any() or beside)
    found: Bool = multiplies & ~attends & ~at_edge & (tells and attends.any())
    return found
