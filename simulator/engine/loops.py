"""The loops over tasks and edges as machine code, made from LLVM's text in some milliseconds.

Each has a twin in plain Python in schedule.py, which says what it does. numba would compile the twins, but
takes half a second of CPU to start: a tenth of a whole analysis of 2 M kernels.
"""

from __future__ import annotations

import ctypes

import numpy as np

from perfdoc.simulator.engine.graph import I64
from perfdoc.traces.machine_code import is_made, machine_code

_LOOPS = """
define i64 @forward(i64 %n, ptr noalias %duration, ptr noalias %release, ptr noalias %first,
                    ptr noalias %source, ptr noalias %lag,
                    ptr noalias %start, ptr noalias %end, ptr noalias %binding) {
begin:
  br label %task
task:
  %i = phi i64 [0, %begin], [%next, %done]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %released, label %leave
released:
  %p.release = getelementptr i64, ptr %release, i64 %i
  %at.first = load i64, ptr %p.release
  %p.first = getelementptr i64, ptr %first, i64 %i
  %e.first = load i64, ptr %p.first
  %next = add i64 %i, 1
  %p.last = getelementptr i64, ptr %first, i64 %next
  %e.last = load i64, ptr %p.last
  br label %edge
edge:
  %e = phi i64 [%e.first, %released], [%e.next, %waited]
  %at = phi i64 [%at.first, %released], [%at.next, %waited]
  %by = phi i64 [-1, %released], [%by.next, %waited]
  %another = icmp slt i64 %e, %e.last
  br i1 %another, label %waited, label %done
waited:
  %p.source = getelementptr i64, ptr %source, i64 %e
  %of = load i64, ptr %p.source
  %p.ended = getelementptr i64, ptr %end, i64 %of
  %ended = load i64, ptr %p.ended
  %p.lag = getelementptr i64, ptr %lag, i64 %e
  %lag.here = load i64, ptr %p.lag
  %t = add i64 %ended, %lag.here
  %later = icmp sgt i64 %t, %at
  %at.next = select i1 %later, i64 %t, i64 %at
  %by.next = select i1 %later, i64 %e, i64 %by
  %e.next = add i64 %e, 1
  br label %edge
done:
  %p.start = getelementptr i64, ptr %start, i64 %i
  store i64 %at, ptr %p.start
  %p.duration = getelementptr i64, ptr %duration, i64 %i
  %duration.here = load i64, ptr %p.duration
  %finish = add i64 %at, %duration.here
  %p.end = getelementptr i64, ptr %end, i64 %i
  store i64 %finish, ptr %p.end
  %p.binding = getelementptr i64, ptr %binding, i64 %i
  store i64 %by, ptr %p.binding
  br label %task
leave:
  ret i64 %n
}

define i64 @ready_first(i64 %n, ptr noalias %first, ptr noalias %target, ptr noalias %waits_for,
                        ptr noalias %order) {
begin:
  br label %look
look:
  %i = phi i64 [0, %begin], [%i.next, %looked]
  %found = phi i64 [0, %begin], [%found.next, %looked]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %free, label %walk
free:
  %p.waits = getelementptr i64, ptr %waits_for, i64 %i
  %waits = load i64, ptr %p.waits
  %is.free = icmp eq i64 %waits, 0
  br i1 %is.free, label %put, label %looked
put:
  %p.order = getelementptr i64, ptr %order, i64 %found
  store i64 %i, ptr %p.order
  %found.more = add i64 %found, 1
  br label %looked
looked:
  %found.next = phi i64 [%found, %free], [%found.more, %put]
  %i.next = add i64 %i, 1
  br label %look
walk:
  %at = phi i64 [0, %look], [%at.next, %edge]
  %had = phi i64 [%found, %look], [%have, %edge]
  %left = icmp slt i64 %at, %had
  br i1 %left, label %edges, label %leave
edges:
  %p.task = getelementptr i64, ptr %order, i64 %at
  %task = load i64, ptr %p.task
  %p.first = getelementptr i64, ptr %first, i64 %task
  %e.first = load i64, ptr %p.first
  %after = add i64 %task, 1
  %p.last = getelementptr i64, ptr %first, i64 %after
  %e.last = load i64, ptr %p.last
  %at.next = add i64 %at, 1
  br label %edge
edge:
  %e = phi i64 [%e.first, %edges], [%e.next, %counted]
  %have = phi i64 [%had, %edges], [%have.next, %counted]
  %another = icmp slt i64 %e, %e.last
  br i1 %another, label %reach, label %walk
reach:
  %p.target = getelementptr i64, ptr %target, i64 %e
  %t = load i64, ptr %p.target
  %p.still = getelementptr i64, ptr %waits_for, i64 %t
  %still = load i64, ptr %p.still
  %fewer = sub i64 %still, 1
  store i64 %fewer, ptr %p.still
  %e.next = add i64 %e, 1
  %now.free = icmp eq i64 %fewer, 0
  br i1 %now.free, label %append, label %counted
append:
  %p.append = getelementptr i64, ptr %order, i64 %have
  store i64 %t, ptr %p.append
  %have.more = add i64 %have, 1
  br label %counted
counted:
  %have.next = phi i64 [%have, %reach], [%have.more, %append]
  br label %edge
leave:
  ret i64 %had
}

define i64 @back(i64 %n, ptr noalias %binding, ptr noalias %source, ptr noalias %last, ptr noalias %path) {
begin:
  %task.last = load i64, ptr %last
  br label %step
step:
  %task = phi i64 [%task.last, %begin], [%task.before, %bound]
  %after = phi i64 [%n, %begin], [%at, %bound]
  %at = sub i64 %after, 1
  %p.path = getelementptr i64, ptr %path, i64 %at
  store i64 %task, ptr %p.path
  %p.binding = getelementptr i64, ptr %binding, i64 %task
  %edge = load i64, ptr %p.binding
  %none = icmp eq i64 %edge, -1
  br i1 %none, label %leave, label %bound
bound:
  %p.source = getelementptr i64, ptr %source, i64 %edge
  %task.before = load i64, ptr %p.source
  br label %step
leave:
  ret i64 %at
}
"""


def run_loop(name: str, count: int, *columns: I64) -> int:
    """Run one of the loops over columns whose lengths and indices the caller answers for; others may run
    Python meanwhile."""
    if not all(c.dtype == np.int64 and c.flags.c_contiguous for c in columns):
        raise TypeError(f"{name}: columns of 64-bit integers, each in one piece")
    (address,) = machine_code(_LOOPS, name)
    function = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * len(columns))(address)
    return int(function(count, *(c.ctypes.data for c in columns)))


def are_there() -> bool:
    """Whether the loops were made already."""
    return is_made(_LOOPS)
