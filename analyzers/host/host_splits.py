"""idle.host split by what the launching thread did meanwhile: Python, or which kind of CUDA call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.host_state import Measured
from perfdoc.analyzers.host.host_calls import CallKind, HostCalls, plain_name
from perfdoc.analyzers.host.host_idle import HostIdle, ThreadIdle
from perfdoc.analyzers.kernels.kernels import sum_by

MAX_CALLS = 12


@dataclass(frozen=True, kw_only=True)
class CallIdle:
    """A CUDA function, and how long the device idled while the launching thread was inside of it."""

    call: str
    count: int
    """Calls that the device idled in."""
    idle_ns: int


@dataclass(frozen=True, kw_only=True)
class HostSplit(Measured):
    """idle.host by what the launching thread did. The first seven sum to `host_ns` exactly.

    Where calls nest, allocation goes before synchronising, loading, launching, allocation in a stream's
    order, other.
    """

    python_ns: int | None = None
    """In no CUDA call: Python and the framework."""
    synchronising_ns: int | None = None
    """In a call that waits for the device. The device mostly runs meanwhile; what a wait costs comes after
    it, see SyncCalls.idle_caused_ns."""
    allocation_ns: int | None = None
    module_load_ns: int | None = None
    """In a call that loads device code (lazy loading, at the first launch of a kernel)."""
    launch_ns: int | None = None
    stream_allocation_ns: int | None = None
    """In a call that allocates or frees in a stream's order."""
    other_call_ns: int | None = None
    host_ns: int | None = None
    """The ledger's idle.host."""
    calls: Sequence[CallIdle] = ()
    """CUDA functions by idle time, the largest first; a function inside another one counts in both."""


def split_host_idle(
    idle: HostIdle, calls: HostCalls, threads: Sequence[ThreadIdle], strings: Sequence[str]
) -> HostSplit:
    """Partition the host idle of one device."""
    inside_ns = np.zeros(len(calls.start_ns), np.int64)
    by_kind = np.zeros(len(CallKind), np.int64)
    for thread in threads:
        mine = calls.of_thread(thread.thread)
        inside_ns[mine] = thread.inside_ns(calls.start_ns[mine], calls.end_ns[mine])
        idled = mine.start + np.flatnonzero(inside_ns[mine])
        by_kind += thread.kinds_ns(calls.start_ns[idled], calls.end_ns[idled], calls.kind[idled])
    python_ns = idle.total_ns - int(by_kind.sum())
    assert python_ns >= 0, (idle.total_ns, by_kind)
    return HostSplit(
        python_ns=python_ns,
        synchronising_ns=int(by_kind[CallKind.SYNCHRONISING]),
        allocation_ns=int(by_kind[CallKind.ALLOCATION]),
        module_load_ns=int(by_kind[CallKind.MODULE_LOAD]),
        launch_ns=int(by_kind[CallKind.LAUNCH]),
        stream_allocation_ns=int(by_kind[CallKind.STREAM_ALLOCATION]),
        other_call_ns=int(by_kind[CallKind.OTHER]),
        host_ns=idle.total_ns,
        calls=_by_call(calls, inside_ns, strings),
    )


def _by_call(calls: HostCalls, inside_ns: I64, strings: Sequence[str]) -> list[CallIdle]:
    idled = np.flatnonzero(inside_ns)
    names, code = np.unique(calls.name[idled], return_inverse=True)
    total = sum_by(code, inside_ns[idled], len(names)).tolist()
    count = np.bincount(code, minlength=len(names)).tolist()
    found: dict[str, tuple[int, int]] = {}
    for i, n, ns in zip(names.tolist(), count, total, strict=True):
        name = plain_name(strings[i])
        before = found.get(name, (0, 0))
        found[name] = before[0] + n, before[1] + ns
    ranked = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))[:MAX_CALLS]
    return [CallIdle(call=name, count=n, idle_ns=ns) for name, (n, ns) in ranked]
