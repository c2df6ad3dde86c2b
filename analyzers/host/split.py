"""The ledger's idle.host by what the launching threads did: CUDA calls by kind, and what is left."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import CallKind, HostCalls, plain_name
from perfdoc.analyzers.host.idle import HostIdle, ThreadIdle
from perfdoc.analyzers.host.waits import python_split
from perfdoc.analyzers.kernels.totals import sum_by
from perfdoc.results.host import CallIdle, HostSplit
from perfdoc.results.quality import MEASURED

MAX_CALLS = 12


def split_host_idle(
    view: DeviceView, idle: HostIdle, calls: HostCalls, threads: Sequence[ThreadIdle]
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
    python = python_split(view, idle, calls, threads)
    return HostSplit(
        **MEASURED,
        python_ns=python_ns,
        computing_ns=python.computing_ns,
        waiting_ns=python.waiting_ns,
        between_steps_ns=python.between_steps_ns,
        waits=python.waits,
        synchronising_ns=int(by_kind[CallKind.SYNCHRONISING]),
        allocation_ns=int(by_kind[CallKind.ALLOCATION]),
        module_load_ns=int(by_kind[CallKind.MODULE_LOAD]),
        launch_ns=int(by_kind[CallKind.LAUNCH]),
        stream_allocation_ns=int(by_kind[CallKind.STREAM_ALLOCATION]),
        other_call_ns=int(by_kind[CallKind.OTHER]),
        host_ns=idle.total_ns,
        calls=_by_call(calls, inside_ns, view.trace.strings),
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
