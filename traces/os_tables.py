"""What the operating system saw of host threads: when each was on a CPU, and its calls that may wait."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.traces.table import I32, I64, Bool, Table


@dataclass(frozen=True, kw_only=True, eq=False)
class ThreadStates(Table):
    """Stretches in which a thread is known to have been on or off a CPU, by thread, then time.

    Those of one thread are disjoint; where none lies, its state is unknown.
    """

    start_ns: I64
    end_ns: I64
    thread: I32
    """Index into Trace.threads."""
    on_cpu: Bool
    """Off it, the thread waited: for a lock, input or output, a sleep's end, or a free core."""


@dataclass(frozen=True, kw_only=True, eq=False)
class OsCalls(Table):
    """Calls into the C library that may wait, by thread, then time (Nsight leaves out short ones)."""

    start_ns: I64
    end_ns: I64
    thread: I32
    """Index into Trace.threads."""
    name: I32
