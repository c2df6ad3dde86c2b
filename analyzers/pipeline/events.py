"""What cuts a device's work: messages and collectives, where they begin and where they are waited for."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.pipeline.passes import INSIDE_A_PASS
from perfdoc.records import dataclass
from perfdoc.traces.table import Bool, median

BESIDE_NS = 5_000, 100_000
BESIDE_FRAC = 0.1
"""Of an operation, but no less and no more than these, beside work before that waits for it: more, and it
began before it was needed."""
ROUNDED_NS = 1_000
"""By so much may times of two streams of one device be wrong."""


def where_posted(view: DeviceView, rows: I64, start: I64, is_message: Bool) -> I64:
    """By step and operation the end of the work that the host launched before a message, which may start
    later, behind others of its stream, or sooner, where it does not wait for that work; its start where that
    is unknown, and of what is no message.

    rows: of the device's communication."""
    activity = view.activity
    comm = activity.communication
    work, inside = np.flatnonzero(activity.is_compute), np.isin(comm.dimension, INSIDE_A_PASS)
    asked = np.concatenate((activity.launch_start_ns[work], comm.launch_start_ns[inside]))
    ends = np.concatenate((activity.end_ns[work], comm.end_ns[inside]))
    if activity.on_host or not len(asked) or (asked < 0).any():
        return start
    order = np.argsort(asked, kind="stable")
    reached = np.maximum.accumulate(ends[order])
    launched = comm.launch_start_ns[rows]
    before = np.searchsorted(asked[order], launched, "left") - 1
    posted = reached[np.maximum(before, 0)]
    known = is_message & (launched >= 0) & (before >= 0)
    return np.where(known, posted, start)


@dataclass(frozen=True, kw_only=True)
class Events:
    """What cuts a step's work: operations where they begin, and the waiting for those that began beside work.

    By event, in order; times by step and event.
    """

    operation: I64
    """Index into the step's operations."""
    is_wait: Bool
    begin_ns: I64
    end_ns: I64
    """Until when the work stands still."""
    is_awaited: Bool
    """By operation: whether the work stands still from its beginning."""
    some: slice
    """The steps that it is usual in: of two that one whose order this is."""


def find_events(times: tuple[I64, I64, I64], begin: I64, waits: Bool, work: Intervals) -> Events:
    """times: start, end, where_posted, waits: by step and operation. begin: of steps."""
    start, done, posted = times
    # In the order of one step, the usual one: a mean over two is of none.
    usual = int(np.argsort(done.max(axis=1, initial=0) - begin, kind="stable")[(len(begin) - 1) // 2])
    some = slice(usual, usual + 1) if len(begin) == 2 else slice(None)
    awaited = waits[some].mean(axis=0) >= 0.5
    near = (done - start) // 10 + 1
    at = np.searchsorted(work.start_ns, done - near, "left") - 1
    dry = np.where(at >= 0, work.end_ns[np.maximum(at, 0)], start) if len(work) else start
    # What stood behind others of its stream began when it was asked for. Behind work that goes on beyond its
    # end nothing waits for it before that is done.
    beyond = posted > done
    begun = np.where((dry > posted + ROUNDED_NS) & ~beyond, posted, start)
    dry = np.where(beyond, posted, np.clip(dry, begun, done))
    beside, lasts = median((dry - begun)[some].T), median((done - begun)[some].T)
    later = np.flatnonzero(awaited & (beside > np.clip(BESIDE_FRAC * lasts, *BESIDE_NS)))
    at_once = awaited.copy()
    at_once[later] = False
    operation = np.concatenate((np.arange(start.shape[1]), later))
    is_wait = np.arange(len(operation)) >= start.shape[1]
    # What begins beside work comes where the host asked for it.
    posted = np.where(at_once, start, np.maximum(posted, begin[:, None]))
    first = np.concatenate((posted, dry[:, later]), axis=1)
    last = np.concatenate((np.where(at_once, done, posted), np.maximum(done, dry)[:, later]), axis=1)
    began = np.concatenate((start, dry[:, later]), axis=1)
    at, then = first[usual], began[usual]
    order = np.lexsort((then, is_wait, at))
    return Events(
        operation=operation[order],
        is_wait=is_wait[order],
        begin_ns=first[:, order],
        end_ns=last[:, order],
        is_awaited=at_once,
        some=some,
    )


def end_behind(start: I64, done: I64, begin: I64, work: Intervals) -> Bool:
    """Which operations end while another one still runs that began before half of them had passed, and that
    the next work waits for: not for them, as for a reduce-scatter beside the next layer's all-gather."""
    count = start.shape[1]
    # Of those that end together the later one is waited for.
    ends = (done - begin[:, None]) * count + np.arange(count)
    reach = ends.copy()
    for of_step, mine, middle, until in zip(start, ends, (start + done) // 2, reach, strict=True):
        order = np.argsort(of_step, kind="stable")
        so_far = np.maximum.accumulate(mine[order])
        until[:] = so_far[np.searchsorted(of_step[order], middle, "right") - 1]
    begins = np.append(work.start_ns, np.iinfo(np.int64).max - ROUNDED_NS)
    goes_on = np.maximum(begins[np.searchsorted(work.end_ns, done, "right")], done)
    return np.asarray((reach > ends) & (reach // max(count, 1) + begin[:, None] <= goes_on + ROUNDED_NS))
