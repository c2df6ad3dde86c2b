"""Calls that hold the host up: those that wait for the device, and those that allocate or free its memory.

A wait drains the launch queue: the device runs dry while the host is still inside the call (or its last
microseconds), and stands still until the host, back in Python, has launched something new. So the cost of a
wait is not the time inside of it, in which the device mostly runs, but the gap that begins in it.

They are grouped by where in the program they were made: the range and the operator that were open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import sum_by
from perfdoc.analyzers.device.launches import innermost
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import CallKind, HostCalls, plain_name, step_at
from perfdoc.analyzers.host.idle import HostIdle, ThreadIdle, by_thread
from perfdoc.patterns import pattern_of
from perfdoc.results.host import AllocCalls, CallGroup, SyncCalls
from perfdoc.results.quality import MEASURED
from perfdoc.traces import Operators, RangeKind, Ranges, Trace
from perfdoc.traces.table import unique

MAX_GROUPS = 20
_NOT_THERE = "no function of the program was open at these calls"

_DIGITS = pattern_of(r"#?\d+")
_MAX_NAME = 2_000
"""Characters of a name that are kept; hostile names reach 100 kB."""


def group_calls(
    trace: Trace, calls: HostCalls, rows: I64, inside_ns: I64, caused_ns: I64
) -> tuple[list[CallGroup], int]:
    """Groups by caused idle and then time, at most MAX_GROUPS; and how many groups were left out.

    inside_ns, caused_ns: idle by row of `rows`.
    """
    if not len(rows):
        return [], 0
    start, thread = calls.start_ns[rows], calls.thread[rows].astype(np.int64)
    nested = np.flatnonzero(trace.ranges.kind == RangeKind.PUSH_POP)
    names = (
        calls.name[rows].astype(np.int64),
        _open_at(trace.ranges, nested, start, thread),
        _open_at(trace.operators, np.arange(len(trace.operators)), start, thread),
        _open_at(trace.python_calls, np.arange(len(trace.python_calls)), start, thread),
    )
    texts: list[dict[int, str | None]] = []
    code = np.zeros(len(rows), np.int64)
    for column, spell in zip(names, _SPELLINGS, strict=True):
        used, at = np.unique(column, return_inverse=True)
        texts.append({i: None if i < 0 else trace.strings[i] for i in used.tolist()})
        spelled = {i: None if text is None else spell(text) for i, text in texts[-1].items()}
        number = {text: n for n, text in enumerate(dict.fromkeys(spelled.values()))}
        pattern = np.array([number[spelled[i]] for i in used.tolist()], np.int64)[at]
        code = np.unique(code * len(number) + pattern, return_inverse=True)[1]
    size = int(code.max()) + 1
    duration = calls.end_ns[rows] - start
    count = np.bincount(code, minlength=size)
    host, inside, caused = (sum_by(code, v, size) for v in (duration, inside_ns, caused_ns))
    order = np.lexsort((np.arange(size), -host, -caused))
    groups = []
    for g in order[:MAX_GROUPS].tolist():
        members = np.flatnonzero(code == g)
        call, range_name, operator, call_site = (
            _common({known[i] for i in unique(column[members]).tolist()}, spell)
            for column, known, spell in zip(names, texts, _SPELLINGS, strict=True)
        )
        groups.append(
            CallGroup(
                call=plain_name(call or ""),
                range_name=range_name,
                operator=operator,
                call_site=call_site,
                count=int(count[g]),
                host_ns=int(host[g]),
                idle_inside_ns=int(inside[g]),
                idle_caused_ns=int(caused[g]),
            )
        )
    return groups, size - len(groups)


def _common(names: set[str | None], spell: Callable[[str], str]) -> str | None:
    """The name where all share one, else what they have in common."""
    name = next(iter(names))
    if name is None:
        return None
    return name[:_MAX_NAME] if len(names) == 1 else spell(name)


def _pattern(name: str) -> str:
    """Without what tells one of a kind from another.

    >>> _pattern("ProfilerStep#12"), _pattern("layer 3")
    ('ProfilerStep#', 'layer #')
    """
    return _DIGITS.sub("#", name[:_MAX_NAME])


_SPELLINGS: tuple[Callable[[str], str], ...] = (plain_name, _pattern, _pattern, lambda name: name[:_MAX_NAME])
"""What calls, ranges, operators and call sites of one group agree in."""


def costliest_site(trace: Trace, groups: Sequence[CallGroup]) -> tuple[str | None, str]:
    """The call site of the first group that has one; or None, and why."""
    site = next((g.call_site for g in groups if g.call_site is not None), None)
    if site is not None or not groups:
        return site, "" if site is not None else "there are no such calls"
    return None, _NOT_THERE if len(trace.python_calls) else trace.python_calls_reason


def _open_at(table: Ranges | Operators, rows: I64, time_ns: I64, thread: I64) -> I64:
    """Name of the innermost of these intervals that is open on a thread at a time; -1 where none is."""
    # Only intervals that hold one of the calls matter, and calls are few: those are found first.
    kept = [np.empty(0, np.int64)]
    rows = rows[np.argsort(table.thread[rows], kind="stable")]
    of_thread = table.thread[rows]
    for t in unique(thread).tolist():
        first, last = np.searchsorted(of_thread, (t, t + 1))
        mine = rows[first:last]
        asked = np.sort(time_ns[thread == t])
        before_start = np.searchsorted(asked, table.start_ns[mine], "left")
        kept.append(mine[before_start < np.searchsorted(asked, table.end_ns[mine], "left")])
    rows = np.concatenate(kept)
    at = innermost(
        table.start_ns[rows], table.end_ns[rows], table.thread[rows].astype(np.int64), time_ns, thread
    )
    if not len(rows):
        return at
    return np.where(at >= 0, table.name[rows[np.maximum(at, 0)]].astype(np.int64), -1)


def sync_calls(
    view: DeviceView, idle: HostIdle, calls: HostCalls, threads: Sequence[ThreadIdle]
) -> SyncCalls:
    """Find the synchronising calls of one device and the idle that each causes."""
    rows = calls.outermost(CallKind.SYNCHRONISING)
    inside = inside_ns(calls, rows, threads)
    at = _wait_at_start(idle, calls, rows)
    found = at >= 0
    caused = sum_by(at[found], idle.host_ns[found], len(rows))
    elsewhere = ~found[idle.piece_gap]
    others = replace(
        idle,
        piece_start_ns=idle.piece_start_ns[elsewhere],
        piece_end_ns=idle.piece_end_ns[elsewhere],
        piece_gap=idle.piece_gap[elsewhere],
    )
    caused = caused + inside_ns(calls, rows, list(by_thread(others, calls)))
    groups, left_out = group_calls(view.trace, calls, rows, inside, caused)
    site, site_reason = costliest_site(view.trace, groups)
    return SyncCalls(
        **MEASURED,
        call_site=site,
        call_site_reason=site_reason,
        count=len(rows),
        host_ns=int((calls.end_ns[rows] - calls.start_ns[rows]).sum()),
        idle_inside_ns=int(inside.sum()),
        idle_caused_ns=int(caused.sum()),
        groups=groups,
        groups_left_out=left_out,
    )


def inside_ns(calls: HostCalls, rows: I64, threads: Sequence[ThreadIdle]) -> I64:
    """Idle that passed while the launching thread was inside each of these calls (sorted, not nested)."""
    found = np.zeros(len(rows), np.int64)
    thread = calls.thread[rows]
    for t in threads:
        first, last = np.searchsorted(thread, (t.thread, t.thread + 1))
        mine = rows[first:last]
        found[first:last] = t.inside_ns(calls.start_ns[mine], calls.end_ns[mine])
    return found


def _wait_at_start(idle: HostIdle, calls: HostCalls, rows: I64) -> I64:
    """For each gap the position in `rows` of the wait in which it begins; -1 none.

    The thread that launched next goes before the one that launched what ran before.
    """
    found = np.full(len(idle.gap_start_ns), -1, np.int64)
    thread, start, end = calls.thread[rows], calls.start_ns[rows], calls.end_ns[rows]
    for of_gap in (idle.thread, idle.before_thread):
        order = np.argsort(of_gap, kind="stable")
        ordered = of_gap[order]
        for t in unique(thread).tolist():
            first, last = np.searchsorted(thread, (t, t + 1))
            a, b = np.searchsorted(ordered, (t, t + 1))
            gaps = order[a:b]
            gaps = gaps[found[gaps] < 0]
            at = np.searchsorted(start[first:last], idle.gap_start_ns[gaps], "right") - 1 + first
            open_then = (at >= first) & (end[np.maximum(at, first)] >= idle.gap_start_ns[gaps])
            found[gaps[open_then]] = at[open_then]
    return found


def alloc_calls(view: DeviceView, calls: HostCalls, threads: Sequence[ThreadIdle]) -> AllocCalls:
    """Find the allocation calls of one device's launching threads."""
    steps = view.window.steps
    rows, step = _in_steps(view, calls, calls.outermost(CallKind.ALLOCATION))
    inside = inside_ns(calls, rows, threads)
    groups, left_out = group_calls(view.trace, calls, rows, inside, inside)
    by_step = np.bincount(step, minlength=steps) if steps else None
    return AllocCalls(
        **MEASURED,
        count=len(rows),
        host_ns=int((calls.end_ns[rows] - calls.start_ns[rows]).sum()),
        idle_inside_ns=int(inside.sum()),
        steps=steps if by_step is not None else None,
        steps_with_calls=None if by_step is None else int(np.count_nonzero(by_step)),
        last_step_count=None if by_step is None else int(by_step[-1]),
        groups=groups,
        groups_left_out=left_out,
    )


def _in_steps(view: DeviceView, calls: HostCalls, rows: I64) -> tuple[I64, I64]:
    """Calls that lie in steps, where the window has steps, and the step of each."""
    step = step_at(view, calls.start_ns[rows])
    return (rows[step >= 0], step[step >= 0]) if view.window.steps else (rows, step)
