"""One GPU of one process of a timeline under construction: the work that ran on its streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfdoc.simulator.captures.nsys import DEFAULT_STREAM
from tests.captures import events as ev
from tests.captures.events import CopyKind, SyncKind, span

if TYPE_CHECKING:
    from tests.captures.process import Launch, ProcessBuilder, ThreadBuilder

__all__ = ["DEFAULT_STREAM", "DeviceBuilder"]


class DeviceBuilder:
    """A GPU of one process: kernels, copies, graphs, event records and waits of streams."""

    def __init__(self, process: ProcessBuilder, info: ev.DeviceInfo) -> None:
        self.process = process
        self.info = info

    def _placed(
        self,
        what: str,
        call: str,
        bounds_ns: tuple[int, int],
        stream: int,
        launch: Launch | None,
        correlation: int | None,
    ) -> dict[str, int]:
        """What all work of the device has. call: of the CUDA API, where it is launched."""
        start, end = span(what, *bounds_ns)
        return {
            "start_ns": start,
            "end_ns": end,
            "pid": self.process.pid,
            "device": self.info.ordinal,
            "stream": int(stream),
            "correlation": self.process.launched(what, launch, correlation, call),
        }

    def kernel(
        self,
        name: str,
        start_ns: int,
        end_ns: int,
        *,
        stream: int = DEFAULT_STREAM,
        full_name: str | None = None,
        grid: tuple[int, int, int] = (132, 1, 1),
        block: tuple[int, int, int] = (128, 1, 1),
        launch: Launch | None = None,
        correlation: int | None = None,
        graph_node: int | None = None,
        collective: ev.Collective | None = None,
    ) -> int:
        """Add a kernel and return its correlation."""
        row = ev.Kernel(
            **self._placed("kernel", "cudaLaunchKernel", (start_ns, end_ns), stream, launch, correlation),
            name=name,
            full_name=name if full_name is None else full_name,
            grid=grid,
            block=block,
            graph_node=graph_node,
            collective=collective,
        )
        self.process.kernels.append(row)
        return row.correlation

    def copy(
        self,
        kind: CopyKind | str,
        size_bytes: int,
        start_ns: int,
        end_ns: int,
        *,
        stream: int = DEFAULT_STREAM,
        launch: Launch | None = None,
        correlation: int | None = None,
        graph_node: int | None = None,
        pinned: bool | None = None,
    ) -> int:
        """Add a copy ("host_to_device", ...) and return its correlation. pinned: its host memory."""
        row = ev.Copy(
            **self._placed("copy", "cudaMemcpyAsync", (start_ns, end_ns), stream, launch, correlation),
            kind=CopyKind[kind.upper()] if isinstance(kind, str) else kind,
            bytes=int(size_bytes),
            graph_node=graph_node,
            pinned=pinned,
        )
        self.process.copies.append(row)
        return row.correlation

    def memset(
        self,
        size_bytes: int,
        start_ns: int,
        end_ns: int,
        *,
        stream: int = DEFAULT_STREAM,
        launch: Launch | None = None,
        correlation: int | None = None,
        graph_node: int | None = None,
    ) -> int:
        """Add a memory set and return its correlation."""
        row = ev.MemorySet(
            **self._placed("memset", "cudaMemsetAsync", (start_ns, end_ns), stream, launch, correlation),
            bytes=int(size_bytes),
            graph_node=graph_node,
        )
        self.process.memory_sets.append(row)
        return row.correlation

    def graph_launch(
        self,
        graph: int,
        start_ns: int,
        end_ns: int,
        *,
        stream: int = DEFAULT_STREAM,
        launch: Launch | None = None,
        correlation: int | None = None,
    ) -> int:
        """Add a CUDA-graph execution traced as one row and return its correlation."""
        row = ev.GraphLaunch(
            **self._placed(
                "graph_launch", "cudaGraphLaunch", (start_ns, end_ns), stream, launch, correlation
            ),
            graph=graph,
        )
        self.process.graph_launches.append(row)
        return row.correlation

    def graph_node(self, thread: ThreadBuilder, node: int, at_ns: int, original: int | None = None) -> None:
        """Add the making of a CUDA-graph node, which kernels name with `graph_node=`."""
        row = ev.GraphNode(
            start_ns=int(at_ns), pid=self.process.pid, tid=thread.tid, node=node, original=original
        )
        self.process.graph_nodes.append(row)

    def record_event(
        self,
        stream: int,
        *,
        launch: Launch | None = None,
        event: int | None = None,
        done_ns: int | None = None,
    ) -> ev.EventRecord:
        """Record an event on a stream; the result is what `wait_event` and `synchronize` take.

        `event` is CUDA's handle id, which CUDA reuses: give the same one twice to plant that.
        """
        event_sync = self.process.next_event()
        row = ev.EventRecord(
            pid=self.process.pid,
            device=self.info.ordinal,
            stream=int(stream),
            correlation=self.process.launched("record_event", launch, None, "cudaEventRecord"),
            event=event_sync if event is None else event,
            event_sync=event_sync,
            done_ns=done_ns,
        )
        self.process.event_records.append(row)
        return row

    def wait_event(self, stream: int, record: ev.EventRecord, *, launch: Launch) -> int:
        """Make a stream wait for a recorded event; returns the correlation of the call."""
        if record.pid != self.process.pid:
            raise ValueError(f"wait_event: event {record.event} is of process {record.pid}")
        correlation = self.process.launched("wait_event", launch, None, "cudaStreamWaitEvent")
        row = ev.Synchronization(
            start_ns=launch[1],
            end_ns=launch[2],
            pid=self.process.pid,
            device=self.info.ordinal,
            stream=int(stream),
            correlation=correlation,
            kind=SyncKind.STREAM_WAIT_EVENT,
            record=record,
        )
        self.process.synchronizations.append(row)
        return correlation
