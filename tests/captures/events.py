"""What can lie on a timeline: frozen rows, one class each.

Times are int nanoseconds on the timeline's own clock, intervals half-open. `pid` names the process,
`device` the CUDA ordinal inside that process, `tid` the thread. A `correlation` is unique inside one
process and links work on the device to the API call that launched it.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import TypeAlias


def span(call: str, start_ns: int, end_ns: int) -> tuple[int, int]:
    """A half-open interval, possibly empty, as plain ints."""
    start, end = operator.index(start_ns), operator.index(end_ns)
    if not 0 <= start <= end:
        raise ValueError(f"{call}: end_ns (start_ns is {start}) {end}")
    return start, end


class CopyKind(IntEnum):
    """What a copy moves, in CUPTI's own numbers."""

    UNKNOWN = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 8
    HOST_TO_HOST = 9
    PEER_TO_PEER = 10


class SyncKind(IntEnum):
    """What a synchronisation waits for, in CUPTI's own numbers."""

    EVENT = 1
    STREAM_WAIT_EVENT = 2
    STREAM = 3
    DEVICE = 4


class RangeKind(Enum):
    """How a range was opened."""

    PUSH_POP = "push_pop"
    START_END = "start_end"
    MARK = "mark"


@dataclass(frozen=True, kw_only=True, slots=True)
class Collective:
    """What PyTorch's profiler writes on an NCCL kernel. None: the argument is left out."""

    operation: str
    """As PyTorch spells it: `allreduce`, `_allgather_base`, `_reduce_scatter_base`, `all_to_allv`, `send`."""
    group_name: str = ""
    group_description: str = ""
    ranks: tuple[int, ...] = ()
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    sequence: int | None = None
    source_rank: int | None = None
    destination_rank: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NcclPayload:
    """What NCCL attaches to its NVTX range. None: the field is left out."""

    communicator: int
    """64-bit hash, equal on all ranks of the communicator."""
    bytes: int | None = None
    reduction: str | None = None
    root: int | None = None
    peer: int | None = None
    ranks: int | None = None
    rank: int | None = None
    device: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessInfo:
    """A host process. `rank` goes into Kineto's distributedInfo; Nsight does not record it."""

    pid: int
    name: str
    rank: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupInfo:
    """A process group as PyTorch's profiler lists it."""

    pid: int
    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceInfo:
    """A GPU as one process sees it; equal `uuid` means the same physical GPU."""

    pid: int
    ordinal: int
    gpu_name: str
    sm_count: int
    memory_bytes: int
    uuid: str
    compute_capability: tuple[int, int]


@dataclass(frozen=True, kw_only=True, slots=True)
class ThreadInfo:
    """A host thread."""

    pid: int
    tid: int
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _OnDevice:
    start_ns: int
    end_ns: int
    pid: int
    device: int
    stream: int
    correlation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class _OnThread:
    start_ns: int
    end_ns: int
    pid: int
    tid: int
    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernel(_OnDevice):
    """A kernel that ran."""

    name: str
    full_name: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    graph_node: int | None
    collective: Collective | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _OfMemory(_OnDevice):
    bytes: int
    graph_node: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class MemorySet(_OfMemory):
    """A memory set that ran."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy(_OfMemory):
    """A memory copy that ran."""

    kind: CopyKind
    pinned: bool | None = None
    """Whether its host memory is. None: not said; PyTorch's profiler always says, then pinned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphLaunch(_OnDevice):
    """One execution of a CUDA graph, seen as a whole."""

    graph: int
    """Executable graph id."""


DeviceWork: TypeAlias = Kernel | Copy | MemorySet | GraphLaunch
"""Anything that keeps a stream busy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApiCall(_OnThread):
    """A CUDA runtime (cuda...) or driver (cu...) call; the name without Nsight's version suffix."""

    correlation: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Range:
    """An NVTX range or mark, or PyTorch's user annotation. `end_ns` None: it never closed."""

    start_ns: int
    end_ns: int | None
    pid: int
    tid: int
    end_tid: int | None
    name: str
    domain: str
    kind: RangeKind
    payload: NcclPayload | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EventRecord:
    """cudaEventRecord: the first half of a record -> wait edge. Also the handle that a wait names."""

    pid: int
    device: int
    stream: int
    correlation: int
    event: int
    event_sync: int
    done_ns: int | None
    """When the device reached the record; None: not collected."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Synchronization:
    """A wait: of a stream for an event, or of the host for an event, a stream or the device."""

    start_ns: int
    end_ns: int
    pid: int
    device: int
    stream: int | None
    correlation: int
    kind: SyncKind
    record: EventRecord | None


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphNode:
    """The making of one CUDA-graph node; `original` is the node that it was cloned from."""

    start_ns: int
    pid: int
    tid: int
    node: int
    original: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Operator(_OnThread):
    """A framework operator on the host (Kineto's cpu_op); Nsight does not record it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulingEvent:
    """A thread came onto a CPU, or left it (Nsight's context switches; Kineto does not record them)."""

    at_ns: int
    pid: int
    tid: int
    on_cpu: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class OsCall(_OnThread):
    """A call into the C library (Nsight's OS-runtime trace; Kineto does not record it)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Diagnostic:
    """A message of the profiler about the capture. Severity: 1 info, 2 warning, 3 error."""

    at_ns: int
    severity: int
    text: str
