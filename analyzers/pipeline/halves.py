"""Where the work of a stretch changes in kind: the last stage of a pipeline goes from a forward pass into the
backward one without a message, and the first one from a backward pass into a forward one.

Autograd launches backward passes from a thread of its own; where launches are not known, their kernels have
other names.
"""

from __future__ import annotations

import zlib

import numpy as np

from perfdoc.analyzers.base.intervals import I64, index_within
from perfdoc.analyzers.device.view import DeviceView

MIN_SIDE_FRAC = 0.05
"""Of a stretch's kernel time, on either side and found on no other: the least that counts as a change."""

Sides = tuple[tuple[int, ...], tuple[int, ...]]


def split_blocks(view: DeviceView, first: I64, last: I64) -> tuple[I64, list[Sides]]:
    """(how much of each stretch lies before the change, -1 none; what ran on either side).

    first, last: bounds of the stretches by step and stretch. What ran is by stretch, as hashes, of the last
    step; everything is on the first side where nothing changes.
    """
    activity = view.activity
    steps, stretches = first.shape
    split = np.full(first.shape, -1, np.int64)
    sides: list[Sides] = [((), ())] * stretches
    rows = np.flatnonzero(activity.is_compute)
    begin, end = first.ravel(), last.ravel()
    order = np.argsort(begin, kind="stable")
    order = order[end[order] > begin[order]]
    if not len(rows) or not len(order):
        return split, sides
    # By their middle: bounds are rounded.
    middle = (activity.start_ns[rows] + activity.end_ns[rows]) // 2
    at = index_within(begin[order], end[order], middle)
    rows, block = rows[at >= 0], order[at[at >= 0]]
    if not len(rows):
        return split, sides
    # Kernels by time are by block too: stretches follow one another.
    ends = np.flatnonzero(np.append(block[1:] != block[:-1], True)) + 1
    starts = np.concatenate(([0], ends[:-1]))
    threads = activity.launch_thread[rows].astype(np.int64)
    names = _names(view, rows)
    length = activity.end_ns[rows] - activity.start_ns[rows]
    by_thread = _best_splits(threads, length, starts, ends)
    by_name = _best_splits(names, length, starts, ends)
    hashes = _hashes(view, names)
    changes = as_in_other_steps(
        np.where(by_thread > 0, by_thread, by_name), ends - starts, block[starts] % stretches
    )
    for a, b, change in zip(starts.tolist(), ends.tolist(), changes.tolist(), strict=True):
        step, stretch = divmod(int(block[a]), stretches)
        if change > 0:
            split[step, stretch] = int(activity.start_ns[rows[a + change]]) - int(first[step, stretch])
        if step == steps - 1:
            until = a + change if change > 0 else b
            sides[stretch] = (
                tuple(sorted(hashes[k] for k in set(names[a:until].tolist()))),
                tuple(sorted(hashes[k] for k in set(names[until:b].tolist()))),
            )
    return split, sides


def as_in_other_steps(changes: I64, kernels: I64, stretch: I64) -> I64:
    """The change of a block in which one side is too short to tell: where all steps have as many kernels in
    that stretch, at least half of them show a change, and all of these at the same kernel."""
    found = changes.copy()
    for one in np.unique(stretch[changes <= 0]).tolist():
        mine = stretch == one
        known = changes[mine & (changes > 0)]
        if 2 * len(known) >= mine.sum() and np.ptp(known) == 0 == np.ptp(kernels[mine]):
            found[mine] = known[0]
    return found


def _names(view: DeviceView, rows: I64) -> I64:
    """Row of Trace.strings of each kernel's name; -1 of what is no kernel."""
    kernel = view.activity.kernel[rows]
    kernels = view.trace.kernels
    if not len(kernels):
        return np.full(len(rows), -1, np.int64)
    return np.where(kernel >= 0, kernels.name[np.maximum(kernel, 0)].astype(np.int64), -1)


def _hashes(view: DeviceView, names: I64) -> dict[int, int]:
    """The same for the same name in every capture."""
    strings = view.trace.strings
    return {
        k: zlib.crc32(strings[k].encode("utf-8", "replace")) if k >= 0 else 0
        for k in np.unique(names).tolist()
    }


def _best_splits(label: I64, length: I64, starts: I64, ends: I64) -> I64:
    """By block the position at which labels of its first part give way to others, most time considered; 0
    where none of either part's time has a label of its own."""
    count = len(label)
    block = np.repeat(np.arange(len(starts)), ends - starts)
    _, code = np.unique(label, return_inverse=True)
    key = block * (int(code.max()) + 1) + code.ravel()
    _, combo = np.unique(key, return_inverse=True)
    combo = combo.ravel()
    total = np.bincount(combo, length)
    position = np.arange(count)
    last = np.zeros(len(total), np.int64)
    last[combo] = position
    first = np.zeros(len(total), np.int64)
    first[combo[::-1]] = position[::-1]
    # Time of labels that have ended before a position, and of those that begin at it or later.
    ended = np.cumsum(np.bincount(last + 1, total, count + 1)[:count])
    begun = np.cumsum(np.bincount(first, total, count + 1)[:count])
    whole = np.bincount(block, length)
    before = ended - ended[starts][block]
    seen = np.concatenate(([0.0], begun[:-1]))
    behind = whole[block] - (seen - seen[starts][block])
    least = np.minimum(before, behind)
    score = np.where(least >= MIN_SIDE_FRAC * whole[block], before + behind, -1.0)
    best = np.maximum.reduceat(score, starts)
    at = np.flatnonzero(score == best[block])
    chosen = np.zeros(len(starts), np.int64)
    # The first of several: backwards, because the last assignment wins.
    chosen[block[at][::-1]] = at[::-1]
    return np.where(best > 0, chosen - starts, 0)
