"""The Trace: what one capture file holds, in columns, whatever wrote it.

Times are int64 nanoseconds on the capture's own clock, intervals are half-open [start, end). Names
are indices into `Trace.strings`. A value that the capture does not hold is -1 (0 for an unsigned
column) and the capability that covers it says so; a reader never invents a value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from enum import IntEnum
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np

from perfdoc.profiling.distributed.groups import ProcessGroup
from perfdoc.records import dataclass
from perfdoc.traces.lookups import Lookups
from perfdoc.traces.more_tables import MemoryUse, MetricSamples, OsCalls, Payloads, ThreadStates
from perfdoc.traces.table import I8, I32, I64, Bool, Table, distinct, in_order

UNKNOWN = -1

Format: TypeAlias = str
"""The name of one of traces/formats.py."""


class CopyKind(IntEnum):
    """What a memory operation moves, after CUPTI's memcpy kinds."""

    OTHER = 0
    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3
    PEER_TO_PEER = 4
    HOST_TO_HOST = 5
    MEMSET = 6


class SyncKind(IntEnum):
    """What a synchronisation row stands for, after CUPTI's synchronisation types."""

    OTHER = 0
    EVENT_SYNCHRONIZE = 1
    """The host waits for an event."""
    STREAM_WAIT_EVENT = 2
    """A stream waits for an event: the second half of a record -> wait edge."""
    STREAM_SYNCHRONIZE = 3
    DEVICE_SYNCHRONIZE = 4


class RangeKind(IntEnum):
    """How a range was opened."""

    PUSH_POP = 0
    """Nested on one thread (NVTX push/pop, PyTorch's record_function)."""
    START_END = 1
    """May cross others and end on another thread (NVTX start/end)."""
    MARK = 2
    """An instant: start and end are equal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kernels(Table):
    """Kernels that ran on a device, one row each."""

    start_ns: I64
    end_ns: I64
    device: I32
    """Index into Trace.devices."""
    stream: I64
    correlation: I64
    """Links the row to the API call of the same process that launched it; -1 unknown."""
    name: I32
    """Function name without arguments and template parameters where the format has it apart."""
    full_name: I32
    """Demangled name with template parameters (equal to `name` where the format has only one)."""
    grid_blocks: I64
    """Thread blocks of the launch, x*y*z; -1 unknown."""
    block_threads: I64
    """Threads of one block, x*y*z; -1 unknown."""
    graph_node: I64
    """CUDA-graph node that the row came from; -1 when launched by itself."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Copies(Table):
    """Memory copies and sets that ran on a device."""

    start_ns: I64
    end_ns: I64
    device: I32
    stream: I64
    correlation: I64
    kind: I8
    """CopyKind."""
    bytes: I64
    """Bytes moved or set; -1 unknown."""
    pinned: I8
    """Whether the host memory of a copy between host and device is pinned (1) or pageable (0); -1 unknown,
    or no such copy."""
    graph_node: I64


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphLaunches(Table):
    """CUDA-graph executions traced as one row each, their kernels unseen."""

    start_ns: I64
    end_ns: I64
    device: I32
    stream: I64
    correlation: I64
    graph: I64
    """Executable graph id."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ApiCalls(Table):
    """CUDA runtime and driver calls on the host."""

    start_ns: I64
    end_ns: I64
    thread: I32
    """Index into Trace.threads."""
    correlation: I64
    name: I32


@dataclass(frozen=True, kw_only=True, eq=False)
class Syncs(Table):
    """Synchronisations as CUPTI reports them, stream waits on events among them."""

    start_ns: I64
    end_ns: I64
    process: I64
    """Process id; the device of such rows is not reliable in Nsight exports."""
    stream: I64
    """Stream that waits or is waited for; -1 none."""
    correlation: I64
    kind: I8
    """SyncKind."""
    event: I64
    """Event handle id, reused by CUDA; -1 none."""
    event_sync: I64
    """Id that pairs a wait with its record exactly (seen from nsys 2025.1 on); -1 none."""
    source_stream: I64
    """Stream of the record, where the format names it (Kineto); -1 unknown."""
    source_correlation: I64
    """Correlation of the record call, where the format names it (Kineto); -1 unknown."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EventRecords(Table):
    """Event records: the first half of a record -> wait edge."""

    process: I64
    device: I32
    stream: I64
    correlation: I64
    event: I64
    event_sync: I64
    time_ns: I64
    """Device time of completion; -1 where not collected."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranges(Table):
    """Annotated ranges and marks on the host: NVTX, record_function, user annotations."""

    start_ns: I64
    end_ns: I64
    """For a range that never closed: the end of the capture."""
    thread: I32
    name: I32
    domain: I32
    """NVTX domain name; index of the empty string for the default domain."""
    kind: I8
    """RangeKind."""
    never_closed: Bool
    """Whether `end_ns` is only the end of the capture."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Operators(Table):
    """Framework operators on the host (Kineto's cpu_op)."""

    start_ns: I64
    end_ns: I64
    thread: I32
    name: I32
    dims: I32
    """Shapes of the inputs as JSON (`[[8,16],[16,32],[]]`), interned; empty where they were not recorded."""
    dtypes: I32
    """Element types of the inputs as JSON, the same way; a scalar is `Scalar`, what is not given is empty."""
    values: I32
    """Scalars among the inputs as JSON, the same way; kept where an operator's work follows from them."""
    strides: I32
    """Strides of the inputs as JSON, the same way; kept only where one is 0: an input that is expanded."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A GPU as one process saw it. Two processes on one GPU are two devices."""

    process: int
    ordinal: int
    """CUDA ordinal inside the process."""
    gpu_name: str | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    uuid: str | None = None
    host: str | None = None
    """Name of its machine; None where the capture does not say."""
    bus: str | None = None
    """Its place on the machine's PCI bus, likewise."""
    rank: int | None = None
    """Global rank; None where the capture does not say (never taken from a file name)."""
    rank_evidence: str = "none"


@dataclass(frozen=True, kw_only=True)
class Thread:
    """A host thread."""

    process: int
    tid: int
    name: str = ""


@dataclass(frozen=True, kw_only=True)
class Capability:
    """Whether a capture can show something, and if not, why and how to capture it."""

    available: bool
    reason: str = ""
    remedy: str = ""


CAPABILITIES = (
    "kernels",
    "copies",
    "graph_nodes",
    "api_calls",
    "launch_correlation",
    "ranges",
    "event_edges",
    "collective_payloads",
    "group_descriptions",
    "gpu_identity",
    "utc_clock",
    "thread_states",
)
"""Keys of Trace.capabilities; every reader fills all of them."""


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something about the capture that a reader of its figures must know."""

    code: str
    message: str
    remedy: str = ""
    rows: Mapping[str, int] = field(default_factory=dict)
    """How many rows of what it is about, as `kernel, set aside: no time`; of notes of damage."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trace(Lookups):
    """One capture file."""

    path: Path
    format: Format
    tool_version: str | None
    schema: str | None
    """Version of the file's layout as the file states it."""
    utc_origin_ns: int | None
    """UTC epoch, in ns, of time 0 of the capture's clock; None unknown."""
    devices: Sequence[Device]
    threads: Sequence[Thread]
    strings: Sequence[str]
    kernels: Kernels
    copies: Copies = field(default_factory=Copies.empty)
    graph_launches: GraphLaunches = field(default_factory=GraphLaunches.empty)
    api_calls: ApiCalls = field(default_factory=ApiCalls.empty)
    syncs: Syncs = field(default_factory=Syncs.empty)
    event_records: EventRecords = field(default_factory=EventRecords.empty)
    ranges: Ranges = field(default_factory=Ranges.empty)
    operators: Operators = field(default_factory=Operators.empty)
    python_calls: Operators = field(default_factory=Operators.empty)
    """Python functions of the program itself, where its stacks were recorded (PyTorch's with_stack)."""
    thread_states: ThreadStates = field(default_factory=ThreadStates.empty)
    os_calls: OsCalls = field(default_factory=OsCalls.empty)
    metric_samples: MetricSamples = field(default_factory=MetricSamples.empty)
    metric_gpus: Sequence[int] = ()
    """By device, the `gpu` of its metric samples; -1 none, for the reason that follows."""
    metrics_reason: str = "captures of this format hold no GPU metrics"
    memory_use: MemoryUse = field(default_factory=MemoryUse.empty)
    memory_lacks: str = ""
    """What makes its bytes a lower bound; empty where they are whole."""
    python_calls_reason: str = "Python stacks are not read from captures of this format"
    """Why there are none, where there are none."""
    operator_shapes_reason: str = "shapes of operators are not read from captures of this format"
    """Why no operator has `dims`, where none has."""
    payloads: Payloads = field(default_factory=Payloads.empty)
    peers_are_global: bool = False
    """Whether `payloads.peer` is a rank of the job (PyTorch), not one within the communicator (NCCL)."""
    groups: Sequence[ProcessGroup] = ()
    world_size: int | None = None
    untimed: Kernels = field(default_factory=Kernels.empty)
    """Kernels that ran, and were set aside for their times."""
    capabilities: Mapping[str, Capability] = field(default_factory=dict)
    notes: Sequence[Note] = ()
    recorded: Sequence[str] = ()
    """In words, what was recorded besides the activity at a cost to the host for every call or operator."""

    def __post_init__(self) -> None:
        assert set(self.capabilities) == set(CAPABILITIES), set(CAPABILITIES) ^ set(self.capabilities)

    def showing(self, capabilities: Mapping[str, Capability]) -> Self:
        """The same trace with other capabilities; what was looked up in it stays."""
        found = replace(self, capabilities=capabilities)
        looked_up = vars(self).keys() - {f.name for f in fields(self)}
        vars(found).update({name: vars(self)[name] for name in looked_up})
        return found

    def together(self) -> Self:
        """The same with the kernels of each device, and the calls of each process, one after another: an
        analysis then takes a part of a column, not rows from all over it. Where memory is short, as it is."""
        if self.is_large:
            return self
        _, process = distinct(np.array([*(t.process for t in self.threads), UNKNOWN], np.int64))
        whose = {"kernels": self.kernels.device.astype(np.int64), "api_calls": process[self.api_calls.thread]}
        mixed = {name: of for name, of in whose.items() if (of[1:] < of[:-1]).any()}
        return replace(self, **{name: getattr(self, name).take(in_order(of)) for name, of in mixed.items()})

    def threads_of(self, process: int) -> I64:
        """Indices into `threads` of a process's threads."""
        return np.array([i for i, t in enumerate(self.threads) if t.process == process], np.int64)

    def names(self, indices: I32) -> list[str]:
        """The strings that a name column stands for."""
        return [self.strings[i] for i in indices.tolist()]
