"""Start-up in a window without steps: code is loaded, memory allocated and communicators made, once.

A capture that begins with its process holds all of it. It is no part of what is repeated for days, so nothing
is promised of it. Where it ends: 95 % of the time in such calls has passed; a buffer that grows later, or an
evaluation that loads its own kernels, does not stretch it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.start_up_calls import Calls, StartUpCalls
from perfdoc.results.capture_parts import StartUp

_ENDS_AT_FRAC = 0.95
"""Of the time in such calls."""
_MIN_FRAC = 0.05
"""Of the window: a shorter start-up changes no figure."""
_MIN_CALLS_FRAC = 0.01
"""Of the start-up of a capture, spent in such calls: less does not tell what the time was."""
_MIN_GIVEN_FRAC = 0.05
"""The same of a window that somebody chose, who may have left start-up out."""
_MIN_FIRST_FRAC = 0.2
"""The same where long first launches alone tell: any call may be held up once."""
_MIN_CALLS = 10
"""Allocations alone are a start-up from here on."""


def find_start_up(
    calls: StartUpCalls, activity: Activity, window_ns: tuple[int, int], *, given: bool = False
) -> StartUp | None:
    """The start-up at the beginning of a window of one device; None where the capture shows none.

    calls: of the whole capture. given: whether somebody chose the window.
    """
    begin, end = window_ns
    # What comes before the first activity of the capture led to it.
    since = int(np.iinfo(np.int64).min) if begin <= activity.span[0] else begin
    calls = calls.within(since, end)
    told = len(calls.loads) or len(calls.communicators) or len(calls.allocations) >= _MIN_CALLS
    if not told and not len(calls.first_launches):
        return None
    last = max(_end(list(vars(calls).values())), _end([calls.loads, calls.allocations, calls.communicators]))
    if last - begin < _MIN_FRAC * (end - begin):
        return None
    spent = [of.covered.clip(begin, last) for of in vars(calls).values()]
    all_of_it = spent[0] | spent[1] | spent[2] | spent[3]
    least = (_MIN_GIVEN_FRAC if given else _MIN_CALLS_FRAC) if told else _MIN_FIRST_FRAC
    if all_of_it.total_ns < least * (last - begin):
        return None
    return start_up_of(calls, activity, (begin, last), window_ns)


def _end(calls: Sequence[Calls]) -> int:
    """When most of the time in these calls has passed; 0 without any."""
    start, end = (np.concatenate([getattr(of, side) for of in calls]) for side in ("start_ns", "end_ns"))
    if not len(start):
        return 0
    order = np.argsort(start, kind="stable")
    # Fractions: calls and ranges together may last longer than an integer holds.
    passed = np.cumsum((end - start)[order], dtype=np.float64)
    return int(end[order][np.searchsorted(passed, _ENDS_AT_FRAC * passed[-1], "left")])


def start_up_of(
    calls: StartUpCalls,
    activity: Activity,
    stretch_ns: tuple[int, int],
    window_ns: tuple[int, int],
    *,
    steps: int = 0,
) -> StartUp:
    """What is published of a start-up. calls: those of its time. steps: cold ones that it is made of."""
    begin, last = stretch_ns
    inside = _inside(activity, window_ns)

    def spent_ns(*of: Calls) -> int:
        covered = EMPTY
        for one in of:
            covered = covered | one.covered
        return covered.clip(begin, last).total_ns

    return StartUp(
        start_ns=begin,
        end_ns=last,
        compute_ns=activity.compute.clip(begin, last).total_ns,
        loading_ns=spent_ns(calls.loads, calls.first_launches),
        allocation_ns=spent_ns(calls.allocations),
        communicator_ns=spent_ns(calls.communicators),
        work_frac=float(np.searchsorted(inside, last, "left") / max(1, len(inside))),
        left_out=False,
        steps=steps,
    )


def _inside(activity: Activity, window_ns: tuple[int, int]) -> I64:
    start = activity.start_ns
    inside: I64 = start[(start >= window_ns[0]) & (start < window_ns[1])]
    return inside
