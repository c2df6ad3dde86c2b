"""What a capture shows of a launching thread's state: on a CPU, waiting, or unknown."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.traces import RangeKind, Trace

WaitKind: TypeAlias = Literal["gil", "lock", "io", "write", "sleep", "other"]

_KINDS: tuple[tuple[WaitKind, str], ...] = (
    ("lock", r"(__)?pthread_(mutex|cond|rwlock|spin|barrier|join|timedjoin|once)\w*|sem_\w+|futex\w*"),
    ("lock", r"lll_lock_wait\w*|pthread_(tryjoin|clockjoin)\w*|flock|lockf|wait(pid|id|[34])?"),
    ("sleep", r"(clock_)?nanosleep|u?sleep|pause|sched_yield|sigtimedwait|sigwaitinfo|sigsuspend"),
    ("write", r"p?write(v|64|v2)?|f?write|fputs|fputc|f(data)?sync|sync(fs)?|msync|fflush|fclose|fprintf"),
    (
        "write",
        r"send(to|msg|mmsg|file|file64)?|rename(at2?)?|unlink(at)?|mkdir|p?writev(64)?|copy_file_range",
    ),
    ("io", r"p?read(v|64|v2)?|f?read|fgets|fgetc|getc|getline|recv(from|msg|mmsg)?|accept4?|connect"),
    ("io", r"p?poll|p?select|epoll_p?wait\d?|open(64|at|at64)?|fopen(64)?|close|l?stat(64)?|io_\w+|ioctl"),
    ("io", r"mmap(64)?|munmap|readdir(64)?|opendir|getdents\w*|inotify\w*|splice|msgrcv|mq_\w+"),
)
"""What a thread waits for in a call of the C library, by the whole name; the first that matches wins."""

GIL = re.compile(r"(?i)^(waiting for|wait(ing)?) (the )?gil$")
"""Ranges of Nsight's --trace=python-gil."""
GIL_HELD = re.compile(r"(?i)^holding (the )?gil$")


@lru_cache(maxsize=4096)
def wait_kind(call: str) -> WaitKind:
    """What a thread waits for in a call of the C library.

    >>> wait_kind("pthread_cond_timedwait"), wait_kind("fsync"), wait_kind("epoll_wait")
    ('lock', 'write', 'io')
    """
    return next((kind for kind, pattern in _KINDS if re.fullmatch(pattern, call[:64])), "other")


@dataclass(frozen=True, kw_only=True)
class ThreadTimes:
    """One thread; nothing is in two of the first two sets."""

    waiting: Intervals
    """Off the CPU; where scheduling is not known, inside a call that waits, or for the interpreter's lock."""
    computing: Intervals
    """On a CPU."""
    calls: tuple[tuple[str, WaitKind, Intervals], ...]
    """What it may have waited in: name and kind of the call, and the time in it. Calls nest: sets overlap."""

    @property
    def scheduled(self) -> bool:
        """Whether the capture shows when it was on a CPU."""
        return len(self.computing) > 0

    def inside(self, *kinds: WaitKind) -> Intervals:
        """The time in calls of these kinds."""
        found = EMPTY
        for _, kind, times in self.calls:
            if kind in kinds:
                found = found | times
        return found


def thread_times(trace: Trace, thread: int) -> ThreadTimes:
    """What is known of a thread."""
    states, os_calls = trace.thread_states, trace.os_calls
    mine = np.flatnonzero(states.thread == thread)
    start, end, on_cpu = states.start_ns[mine], states.end_ns[mine], states.on_cpu[mine]
    off, on = union(start[~on_cpu], end[~on_cpu]), union(start[on_cpu], end[on_cpu])
    rows = np.flatnonzero(os_calls.thread == thread)
    calls: list[tuple[str, WaitKind, Intervals]] = []
    for name in np.unique(os_calls.name[rows]).tolist():
        of_name = rows[os_calls.name[rows] == name]
        text = trace.strings[name]
        calls.append((text, wait_kind(text), union(os_calls.start_ns[of_name], os_calls.end_ns[of_name])))
    gil = _gil(trace, thread)
    if len(gil):
        calls.append(("waiting for the interpreter's lock", "gil", gil))
    inside = EMPTY
    for _, kind, times in calls:
        inside = inside | times if kind != "other" else inside
    # A scheduler's word goes before a call's: a thread may compute inside one, or be woken late.
    return ThreadTimes(waiting=off | (inside - on), computing=on, calls=tuple(calls))


def _gil(trace: Trace, thread: int) -> Intervals:
    named = [i for i in trace.range_names.tolist() if GIL.match(trace.strings[i])]
    if not named:
        return EMPTY
    ranges = trace.ranges
    rows: I64 = np.flatnonzero(
        (ranges.thread == thread) & np.isin(ranges.name, named) & (ranges.kind != RangeKind.MARK)
    )
    return union(ranges.start_ns[rows], ranges.end_ns[rows])
