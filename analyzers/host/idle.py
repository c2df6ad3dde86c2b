"""The ledger's idle.host, gap by gap, and which threads were to blame.

These are the very nanoseconds of `idle.host`: the host part of every gap (see
`perfdoc.analyzers.device.idle.find_gaps`), less garbage collection and waits for data.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.base.rows import sum_by
from perfdoc.analyzers.device.idle import clipped
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import CallKind, HostCalls
from perfdoc.records import dataclass
from perfdoc.traces.table import I8, I32

BLOCKING = (CallKind.ALLOCATION, CallKind.SYNCHRONISING, CallKind.MODULE_LOAD)
"""What keeps a thread from handing work to another one."""


@dataclass(frozen=True, kw_only=True)
class HostIdle:
    """Gaps with a host part inside the window, by time; and their host time in pieces.

    The thread that launched what ended a gap answers for it. Where that thread made no CUDA call, the one
    that launched what ran before may have held it up by blocking (the forward's thread, waiting, before the
    backward's thread has anything to launch).
    """

    gap_start_ns: I64
    """In full length: where the device ran dry, even before the window."""
    gap_end_ns: I64
    thread: I32
    """Of what ended the gap."""
    before_thread: I32
    """Of what ran before; -1 unknown."""
    host_ns: I64
    """Host time of the gap inside the window, gc and data left out."""
    starved_ns: int
    """Host time of all gaps, gc and data included."""
    gc_ns: int
    """The ledger's idle.gc."""
    data_ns: int
    """The ledger's idle.data."""
    stalled_thread_ns: int
    """Of data_ns, what no range names: the thread waited where steps meet."""
    stalled_position_ns: int
    """The same where only the place tells."""
    piece_start_ns: I64
    piece_end_ns: I64
    piece_gap: I64
    """Index of the gap that a piece belongs to."""

    @property
    def total_ns(self) -> int:
        """The ledger's idle.host."""
        return int(self.host_ns.sum())


def host_idle(view: DeviceView) -> HostIdle:
    """Find the host's part of every gap in the window."""
    activity, window = view.activity, view.window
    gaps = view.gaps
    start, end = (clipped(t, window.start_ns, window.end_ns) for t in (gaps.start_ns, gaps.host_end_ns))
    rows = np.flatnonzero(end > start)
    start, end, following = start[rows], end[rows], gaps.following[rows]
    inputs = view.idle_inputs
    pieces = Intervals(start, end) - inputs.gc_or_data
    gc_ns = int(inputs.gc.covered_within(start, end).sum())
    gap = np.searchsorted(start, pieces.start_ns, "right") - 1
    return HostIdle(
        gap_start_ns=gaps.start_ns[rows],
        gap_end_ns=gaps.end_ns[rows],
        thread=activity.launch_thread[following],
        before_thread=np.where(following > 0, activity.launch_thread[following - 1], -1),
        host_ns=sum_by(gap, pieces.end_ns - pieces.start_ns, len(rows)),
        starved_ns=int((end - start).sum()),
        gc_ns=gc_ns,
        data_ns=int((end - start).sum()) - pieces.total_ns - gc_ns,
        stalled_thread_ns=int(inputs.stalls.thread.covered_within(start, end).sum()),
        stalled_position_ns=int(inputs.stalls.position.covered_within(start, end).sum()),
        piece_start_ns=pieces.start_ns,
        piece_end_ns=pieces.end_ns,
        piece_gap=gap,
    )


@dataclass(frozen=True, kw_only=True)
class ThreadIdle:
    """Host idle that one thread may answer for: pieces of time, disjoint and sorted."""

    thread: int
    own: Intervals
    """It launched what ended the gap."""
    handed: Intervals
    """It launched what ran before, and the thread that launched next made no call meanwhile."""

    def inside_ns(self, start_ns: I64, end_ns: I64) -> I64:
        """Nanoseconds of idle inside each of these stretches of the thread's time."""
        inside = self.own.covered_within(start_ns, end_ns)
        return inside + self.handed.covered_within(start_ns, end_ns) if len(self.handed) else inside

    def kinds_ns(self, start: I64, end: I64, kind: I8) -> I64:
        """Nanoseconds of idle by CallKind inside these calls of the thread; where calls nest, the first kind
        has the time. Of what was handed on only BLOCKING kinds count."""
        found = np.zeros(len(CallKind), np.int64)
        covered, before = EMPTY, np.zeros(2, np.int64)
        for wanted in CallKind:
            of_kind = kind == wanted
            if not of_kind.any():
                continue
            covered = covered | union(start[of_kind], end[of_kind])
            handed = covered.overlap_ns(self.handed) if wanted in BLOCKING else before[1]
            now = np.array([covered.overlap_ns(self.own), handed], np.int64)
            found[wanted] = (now - before).sum()
            before = now
        return found


def by_thread(idle: HostIdle, calls: HostCalls) -> Iterator[ThreadIdle]:
    """The idle that each launching thread may answer for."""
    piece_thread = idle.thread[idle.piece_gap]
    before = idle.before_thread[idle.piece_gap]
    own = _grouped(piece_thread.astype(np.int64), calls.threads)
    free_start, free_end, free_thread = [], [], []
    for thread, rows in own.items():
        passed = rows[(before[rows] >= 0) & (before[rows] != thread)]
        if not len(passed):
            continue
        free = Intervals(idle.piece_start_ns[passed], idle.piece_end_ns[passed]) - calls.covered[thread]
        at = np.searchsorted(idle.piece_start_ns[passed], free.start_ns, "right") - 1
        free_start.append(free.start_ns)
        free_end.append(free.end_ns)
        free_thread.append(before[passed[at]])
    start, end, of = (
        np.concatenate([np.empty(0, np.int64), *parts]) for parts in (free_start, free_end, free_thread)
    )
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    handed = _grouped(of[order], calls.threads)
    for thread, rows in own.items():
        yield ThreadIdle(
            thread=thread,
            own=Intervals(idle.piece_start_ns[rows], idle.piece_end_ns[rows]),
            handed=Intervals(start[handed[thread]], end[handed[thread]]),
        )


def _grouped(thread: I64, threads: Sequence[int]) -> dict[int, I64]:
    """Positions of every thread, in their order."""
    order = np.argsort(thread, kind="stable")
    first = np.searchsorted(thread[order], threads, "left").tolist()
    last = np.searchsorted(thread[order], threads, "right").tolist()
    return {t: order[a:b] for t, a, b in zip(threads, first, last, strict=True)}
