"""One process of a timeline under construction: its threads, devices and rows.

Users start at tests.captures.timeline; nothing here is made by hand.
"""

from __future__ import annotations

from typing import TypeAlias

from tests.captures import events as ev
from tests.captures.device import DeviceBuilder
from tests.captures.events import NcclPayload, RangeKind, SyncKind, span

GLOBAL_ID_BITS = 24
"""Nsight packs pid and tid into this many bits each."""
__all__ = ["DeviceBuilder", "Launch", "ProcessBuilder", "ThreadBuilder"]

Launch: TypeAlias = "tuple[ThreadBuilder, int, int] | tuple[ThreadBuilder, int, int, str]"


class ProcessBuilder:
    """A process; ask it for threads and devices."""

    def __init__(self, *, pid: int, name: str, rank: int | None) -> None:
        self.info = ev.ProcessInfo(pid=pid, name=name, rank=rank)
        self.threads: dict[int, ThreadBuilder] = {}
        self.devices: dict[int, DeviceBuilder] = {}
        self.groups: list[ev.GroupInfo] = []
        self.kernels: list[ev.Kernel] = []
        self.copies: list[ev.Copy] = []
        self.memory_sets: list[ev.MemorySet] = []
        self.graph_launches: list[ev.GraphLaunch] = []
        self.graph_nodes: list[ev.GraphNode] = []
        self.api_calls: list[ev.ApiCall] = []
        self.ranges: list[ev.Range] = []
        self.event_records: list[ev.EventRecord] = []
        self.synchronizations: list[ev.Synchronization] = []
        self.operators: list[ev.Operator] = []
        self.scheduling: list[ev.SchedulingEvent] = []
        self.os_calls: list[ev.OsCall] = []
        self._correlation = 0
        self._event = 0

    @property
    def pid(self) -> int:
        """The process id."""
        return self.info.pid

    def thread(self, tid: int | None = None, name: str = "python") -> ThreadBuilder:
        """Add a thread; without `tid` the next free one from the pid on."""
        if tid is None:
            tid = next(n for n in range(self.pid, 2**GLOBAL_ID_BITS) if n not in self.threads)
        if tid in self.threads:
            raise ValueError(f"thread: tid {tid} of process {self.pid} is there already")
        info = ev.ThreadInfo(pid=self.pid, tid=tid, name=name)
        self.threads[tid] = ThreadBuilder(self, info)
        return self.threads[tid]

    def device(
        self,
        ordinal: int = 0,
        *,
        gpu_name: str = "NVIDIA H100 80GB HBM3",
        sm_count: int = 132,
        memory_bytes: int = 80 * 2**30,
        uuid: str | None = None,
        compute_capability: tuple[int, int] = (9, 0),
    ) -> DeviceBuilder:
        """Add a GPU. Without `uuid` it is a physical GPU of its own."""
        if ordinal in self.devices:
            raise ValueError(f"device: ordinal {ordinal} of process {self.pid} is there already")
        info = ev.DeviceInfo(
            pid=self.pid,
            ordinal=ordinal,
            gpu_name=gpu_name,
            sm_count=sm_count,
            memory_bytes=memory_bytes,
            uuid=uuid or f"00000000-0000-4000-8000-{self.pid:06x}{ordinal:06x}",
            compute_capability=compute_capability,
        )
        self.devices[ordinal] = DeviceBuilder(self, info)
        return self.devices[ordinal]

    def group(self, name: str, description: str, ranks: tuple[int, ...]) -> None:
        """Add a process group (Kineto's pg_config)."""
        self.groups.append(ev.GroupInfo(pid=self.pid, name=name, description=description, ranks=ranks))

    def operator(self, thread: ThreadBuilder, name: str, start_ns: int, end_ns: int) -> None:
        """Add a framework operator (Kineto's cpu_op)."""
        start, end = span("operator", start_ns, end_ns)
        row = ev.Operator(start_ns=start, end_ns=end, pid=self.pid, tid=thread.tid, name=name)
        self.operators.append(row)

    def next_correlation(self) -> int:
        """A correlation that nothing of this process carries yet."""
        self._correlation += 1
        return self._correlation

    def next_event(self) -> int:
        """An id for an event record, unique in the process."""
        self._event += 1
        return self._event

    def launched(self, call: str, launch: Launch | None, correlation: int | None, default_api: str) -> int:
        """The correlation of a piece of work; writes the API call where `launch` gives one."""
        if launch is None:
            return self.next_correlation() if correlation is None else int(correlation)
        if correlation is not None:
            raise ValueError(f"{call}: give launch or correlation, not both")
        if len(launch) not in (3, 4) or not isinstance(launch[0], ThreadBuilder):
            raise ValueError(f"{call}: launch {launch!r} is not (thread, start_ns, end_ns[, api_name])")
        thread, start_ns, end_ns = launch[:3]
        if thread.process is not self:
            raise ValueError(f"{call}: launch thread {thread.tid} is of another process")
        return thread.api(launch[3] if len(launch) == 4 else default_api, start_ns, end_ns)


class ThreadBuilder:
    """A host thread: API calls, ranges, marks, synchronisations."""

    def __init__(self, process: ProcessBuilder, info: ev.ThreadInfo) -> None:
        self.process = process
        self.info = info

    @property
    def tid(self) -> int:
        """The thread id."""
        return self.info.tid

    def api(self, name: str, start_ns: int, end_ns: int, *, correlation: int | None = None) -> int:
        """Add a CUDA call and return its correlation (a fresh one unless given)."""
        start, end = span("api", start_ns, end_ns)
        if correlation is None:
            correlation = self.process.next_correlation()
        row = ev.ApiCall(
            start_ns=start,
            end_ns=end,
            pid=self.process.pid,
            tid=self.tid,
            name=name,
            correlation=int(correlation),
        )
        self.process.api_calls.append(row)
        return correlation

    def range(
        self,
        name: str,
        start_ns: int,
        end_ns: int | None,
        *,
        domain: str = "",
        kind: RangeKind | str = RangeKind.PUSH_POP,
        payload: NcclPayload | None = None,
        end_thread: ThreadBuilder | None = None,
    ) -> None:
        """Add a range; `end_ns` None never closed, `end_thread` (start_end only) where it closed."""
        start, end = span("range", start_ns, start_ns if end_ns is None else end_ns)
        if end_thread is not None and RangeKind(kind) is not RangeKind.START_END:
            raise ValueError(f"range: {name!r} ends on another thread, so its kind must be start_end")
        self._annotate(
            name, start, None if end_ns is None else end, domain, RangeKind(kind), payload, end_thread
        )

    def mark(self, name: str, at_ns: int, *, domain: str = "", payload: NcclPayload | None = None) -> None:
        """Add an instant."""
        self._annotate(name, int(at_ns), int(at_ns), domain, RangeKind.MARK, payload, None)

    def off_cpu(self, start_ns: int, end_ns: int) -> None:
        """The thread leaves its CPU at the start and is back at the end."""
        for at, on_cpu in zip(span("off_cpu", start_ns, end_ns), (False, True), strict=True):
            self.process.scheduling.append(
                ev.SchedulingEvent(at_ns=at, pid=self.process.pid, tid=self.tid, on_cpu=on_cpu)
            )

    def os_call(self, name: str, start_ns: int, end_ns: int) -> None:
        """Add a call into the C library, such as `poll`."""
        start, end = span("os_call", start_ns, end_ns)
        self.process.os_calls.append(
            ev.OsCall(start_ns=start, end_ns=end, pid=self.process.pid, tid=self.tid, name=name)
        )

    def _annotate(
        self,
        name: str,
        start_ns: int,
        end_ns: int | None,
        domain: str,
        kind: RangeKind,
        payload: NcclPayload | None,
        end_thread: ThreadBuilder | None,
    ) -> None:
        row = ev.Range(
            start_ns=start_ns,
            end_ns=end_ns,
            pid=self.process.pid,
            tid=self.tid,
            end_tid=None if end_thread is None else end_thread.tid,
            name=name,
            domain=domain,
            kind=kind,
            payload=payload,
        )
        self.process.ranges.append(row)

    def synchronize(
        self,
        kind: SyncKind | str,
        start_ns: int,
        end_ns: int,
        *,
        device: DeviceBuilder | None = None,
        stream: int | None = None,
        record: ev.EventRecord | None = None,
    ) -> int:
        """Add a host wait ("device", "stream" or "event") with its API call; returns the correlation."""
        kind = SyncKind[kind.upper()] if isinstance(kind, str) else kind
        names = {
            SyncKind.DEVICE: "cudaDeviceSynchronize",
            SyncKind.STREAM: "cudaStreamSynchronize",
            SyncKind.EVENT: "cudaEventSynchronize",
        }
        if kind not in names:
            raise ValueError(f"synchronize: {kind.name} is not a wait of the host; use device.wait_event")
        if (kind is SyncKind.STREAM) != (stream is not None):
            raise ValueError(f"synchronize: stream {stream!r} does not fit kind {kind.name}")
        if (kind is SyncKind.EVENT) != (record is not None):
            raise ValueError(f"synchronize: record {record!r} does not fit kind {kind.name}")
        correlation = self.api(names[kind], start_ns, end_ns)
        row = ev.Synchronization(
            start_ns=start_ns,
            end_ns=end_ns,
            pid=self.process.pid,
            device=0 if device is None else device.info.ordinal,
            stream=stream,
            correlation=correlation,
            kind=kind,
            record=record,
        )
        self.process.synchronizations.append(row)
        return correlation
