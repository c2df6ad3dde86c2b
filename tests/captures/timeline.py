"""A timeline with a known answer: laid by hand, then written in the formats that perfdoc reads.

    t = TimelineBuilder(utc_origin_ns=1_700_000_000_000_000_000)
    p = t.process(pid=1000, rank=0)
    th = p.thread()
    d = p.device()
    th.range("perfdoc.step 0", 0, 900)
    d.kernel("gemm", 100, 300, launch=(th, 10, 20))             # stream 7, cudaLaunchKernel
    d.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 200, 500, stream=20)  # no API row
    d.copy("host_to_device", 4096, 500, 600, launch=(th, 30, 40))
    e = d.record_event(20, launch=(th, 50, 55))
    d.wait_event(7, e, launch=(th, 60, 65))
    d.kernel("gemm", 600, 700, launch=(th, 70, 80))
    write_nsys_sqlite(t.build(), path)
    # planted truth: compute [100,300) + [600,700) = 300, exposed communication [300,500) = 200,
    # exposed copies [500,600) = 100, idle 0, window 600.

Times are integer nanoseconds on the timeline's clock; `utc_origin_ns` is the UTC time of its zero.
A launch is (thread, start_ns, end_ns) or (thread, start_ns, end_ns, api_name); without one the work
has a correlation that no API call carries, and `correlation=` ties work to a call made with
`thread.api` (the kernels of a CUDA graph share their cudaGraphLaunch).

An interval that ends before it begins raises ValueError. Names may hold anything that UTF-8 can hold.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

from tests.captures import events as ev
from tests.captures.device import DeviceBuilder
from tests.captures.process import ProcessBuilder, ThreadBuilder


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Everything that happened, in the order in which it was laid down. Write it, do not edit it."""

    utc_origin_ns: int | None
    processes: Sequence[ev.ProcessInfo]
    threads: Sequence[ev.ThreadInfo]
    devices: Sequence[ev.DeviceInfo]
    groups: Sequence[ev.GroupInfo]
    kernels: Sequence[ev.Kernel]
    copies: Sequence[ev.Copy]
    memory_sets: Sequence[ev.MemorySet]
    graph_launches: Sequence[ev.GraphLaunch]
    graph_nodes: Sequence[ev.GraphNode]
    api_calls: Sequence[ev.ApiCall]
    ranges: Sequence[ev.Range]
    event_records: Sequence[ev.EventRecord]
    synchronizations: Sequence[ev.Synchronization]
    operators: Sequence[ev.Operator]
    scheduling: Sequence[ev.SchedulingEvent] = ()
    os_calls: Sequence[ev.OsCall] = ()
    diagnostics: Sequence[ev.Diagnostic]

    @property
    def work(self) -> tuple[ev.DeviceWork, ...]:
        """Everything that ran on a device: kernels, copies, sets, graph launches."""
        return (*self.kernels, *self.copies, *self.memory_sets, *self.graph_launches)

    @property
    def end_ns(self) -> int:
        """The last instant of anything on the timeline; 0 when it is empty."""
        closed = (*self.work, *self.api_calls, *self.synchronizations, *self.operators)
        ends = [r.start_ns if r.end_ns is None else r.end_ns for r in self.ranges]
        return max((*ends, *(row.end_ns for row in closed)), default=0)


class TimelineBuilder:
    """Collects processes; `build` freezes what they hold."""

    def __init__(self, *, utc_origin_ns: int | None = 1_750_000_000_000_000_000) -> None:
        if utc_origin_ns is not None and not 0 <= operator.index(utc_origin_ns) < 2**63:
            raise ValueError(f"TimelineBuilder: utc_origin_ns {utc_origin_ns!r} is not a time")
        self._utc_origin_ns = utc_origin_ns
        self._processes: dict[int, ProcessBuilder] = {}
        self._diagnostics: list[ev.Diagnostic] = []

    def process(self, *, pid: int = 1000, name: str = "python", rank: int | None = None) -> ProcessBuilder:
        """Add a process; pids are unique, below 2**24."""
        if pid in self._processes:
            raise ValueError(f"process: pid {pid} is there already")
        added = ProcessBuilder(pid=pid, name=name, rank=rank)
        self._processes[pid] = added
        return added

    def diagnostic(self, text: str, *, severity: int = 1, at_ns: int = 0) -> None:
        """Add a message of the profiler about the capture (1 info, 2 warning, 3 error)."""
        if severity not in (1, 2, 3):
            raise ValueError(f"diagnostic: severity {severity!r} is not 1, 2 or 3")
        self._diagnostics.append(ev.Diagnostic(at_ns=at_ns, severity=severity, text=text))

    def build(self) -> Timeline:
        """The frozen timeline; the builder may go on and build a longer one."""
        parts = list(self._processes.values())
        return Timeline(
            utc_origin_ns=self._utc_origin_ns,
            processes=tuple(p.info for p in parts),
            threads=tuple(t.info for p in parts for t in p.threads.values()),
            devices=tuple(d.info for p in parts for d in p.devices.values()),
            groups=tuple(g for p in parts for g in p.groups),
            kernels=tuple(r for p in parts for r in p.kernels),
            copies=tuple(r for p in parts for r in p.copies),
            memory_sets=tuple(r for p in parts for r in p.memory_sets),
            graph_launches=tuple(r for p in parts for r in p.graph_launches),
            graph_nodes=tuple(r for p in parts for r in p.graph_nodes),
            api_calls=tuple(r for p in parts for r in p.api_calls),
            ranges=tuple(r for p in parts for r in p.ranges),
            event_records=tuple(r for p in parts for r in p.event_records),
            synchronizations=tuple(r for p in parts for r in p.synchronizations),
            operators=tuple(r for p in parts for r in p.operators),
            scheduling=tuple(r for p in parts for r in p.scheduling),
            os_calls=tuple(r for p in parts for r in p.os_calls),
            diagnostics=tuple(self._diagnostics),
        )


def one_gpu(
    *, pid: int = 1000, rank: int | None = None
) -> tuple[TimelineBuilder, ThreadBuilder, DeviceBuilder]:
    """A timeline of one process with a thread and a GPU: the most usual beginning."""
    builder = TimelineBuilder()
    process = builder.process(pid=pid, rank=rank)
    return builder, process.thread(), process.device()
