"""What a capture shows of a launching thread's state: on a CPU, waiting, or unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, Intervals, union
from perfdoc.analyzers.device.range_names import KnownRanges
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

MAX_CALL_NAMES = 64
"""Of one thread, by time: a program makes a few dozen different ones."""


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


def thread_times(trace: Trace, known: KnownRanges, thread: int) -> ThreadTimes:
    """What is known of a thread."""
    states = trace.thread_states
    mine = slice(*np.searchsorted(states.thread, (thread, thread + 1)).tolist())
    start, end, on_cpu = states.start_ns[mine], states.end_ns[mine], states.on_cpu[mine]
    off, on = union(start[~on_cpu], end[~on_cpu]), union(start[on_cpu], end[on_cpu])
    calls = list(_os_calls(trace, thread))
    ranges = trace.ranges
    rows = known.lock_waits
    rows = rows[(ranges.thread[rows] == thread) & (ranges.kind[rows] != RangeKind.MARK)]
    if len(rows):
        calls.append(("GIL", "gil", union(ranges.start_ns[rows], ranges.end_ns[rows])))
    inside = EMPTY
    for _, kind, times in calls:
        inside = inside | times if kind != "other" else inside
    # A scheduler's word goes before a call's: a thread may compute inside one, or be woken late.
    return ThreadTimes(waiting=off | (inside - on), computing=on, calls=tuple(calls))


def _os_calls(trace: Trace, thread: int) -> Iterator[tuple[str, WaitKind, Intervals]]:
    """A thread's calls of the C library by name: those with most time."""
    rows = trace.os_calls
    mine = slice(*np.searchsorted(rows.thread, (thread, thread + 1)).tolist())
    start, end = rows.start_ns[mine], rows.end_ns[mine]
    names, of = np.unique(rows.name[mine], return_inverse=True)
    order = np.argsort(of, kind="stable")
    first = np.searchsorted(of[order], np.arange(len(names) + 1))
    most = np.argsort(-np.bincount(of, end - start, len(names)), kind="stable")[:MAX_CALL_NAMES]
    for i in most.tolist():
        own = order[first[i] : first[i + 1]]
        name = trace.strings[int(names[i])]
        yield name, wait_kind(name), union(start[own], end[own])
