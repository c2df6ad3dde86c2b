"""One step of one pipeline stage as the host lays it: operations in launch order, and the calls around them.

Host times are offsets in a segment: from one point at which the host waits for the device to the next. All
ranks of a stage run the same tape; what a fault does to one rank is added when it is simulated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from perfdoc.simulator.captures.nsys import DEFAULT_STREAM
from perfdoc.simulator.forward.kernels import CALLS, Kernel, nccl_kernel

LAUNCH_NS = 4_003
"""A launching call."""
EVENT_NS = 1_201
"""Recording an event, or making a stream wait for one."""
BETWEEN_NS = 2_500
"""Between the end of a call and the start of the next."""
PYTHON_NS = 3_500
"""More of it before a launch."""
STREAMS = {"dp": 20, "tp": 21, "cp": 22, "ep": 23, "pp": 24, "other": 25, "edp": 26}
"""On which a group's kernels run."""


class OpKind(IntEnum):
    """What an operation on the device is."""

    COMPUTE = 0
    COMMUNICATION = 1
    COPY = 2


class CallKind(IntEnum):
    """What a call of the host is."""

    LAUNCH = 0
    RECORD = 1
    WAIT = 2
    COPY = 3
    SYNCHRONIZE = 4


class Op(NamedTuple):
    """One piece of work on the device."""

    kind: OpKind
    kernel: int
    """Index into Tape.kernels; -1 for a copy."""
    duration_ns: int
    """Of a communication from the last member's arrival on."""
    stream: int
    segment: int
    call_ns: int
    """Start of the launching call."""
    returned_ns: int
    group: str
    """Key of the group that communicates; empty."""
    bytes: int


class Call(NamedTuple):
    """One CUDA call of the host."""

    kind: CallKind
    segment: int
    start_ns: int
    end_ns: int
    op: int
    """What it launches; of a record the last operation on the stream, of a wait what is awaited; -1."""
    stream: int
    record: int
    """Number of the record in the tape; -1."""


class HostRange(NamedTuple):
    """A range of the host thread; it may begin in one segment and end in another."""

    name: str
    begin: tuple[int, int]
    """(segment, offset)."""
    end: tuple[int, int]
    group: str = ""
    """Where NCCL made it: key of the group."""
    bytes: int = 0
    peer: int = 0
    """Of a send or receive: how many members further (negative: back) in the group the peer is."""
    reduction: str = ""


class Message(NamedTuple):
    """A side of a message between stages."""

    op: int
    sender: int
    receiver: int
    """Stages."""
    forward: bool


@dataclass
class Tape:
    """A step under construction."""

    ops: list[Op] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[HostRange] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    kernels: dict[Kernel, int] = field(default_factory=dict)
    waits: list[tuple[int, int]] = field(default_factory=list)
    """(operation, awaited operation): by an event."""
    held: list[tuple[int, int]] = field(default_factory=list)
    """The same, with nothing in the capture that shows it."""
    passes: list[tuple[bool, int, int, int, int]] = field(default_factory=list)
    """(forward, micro-batch, chunk, first operation, operation behind the last)."""
    segment_ns: list[int] = field(default_factory=list)
    """Host time of each finished segment."""
    host_ns: int = 0
    python_ns: int = PYTHON_NS
    """What the host does before each launch, between calls aside."""
    records: int = 0
    _pending: list[int] = field(default_factory=list)
    """What the stream of computation waits for before its next kernel."""
    _last: dict[int, int] = field(default_factory=dict)

    @property
    def here(self) -> tuple[int, int]:
        """Where the host is."""
        return len(self.segment_ns), self.host_ns

    def _call(self, kind: CallKind, duration_ns: int, op: int, stream: int = 0, record: int = -1) -> int:
        start = self.host_ns
        self.calls.append(Call(kind, len(self.segment_ns), start, start + duration_ns, op, stream, record))
        self.host_ns = start + duration_ns + BETWEEN_NS
        return start

    def _record(self, stream: int) -> int:
        number = self.records
        self.records += 1
        self._call(CallKind.RECORD, EVENT_NS, self._last.get(stream, -1), stream, number)
        return number

    def _put(self, kind: OpKind, kernel: Kernel | None, ns: int, stream: int, group: str, size: int) -> int:
        self.host_ns += self.python_ns
        number = len(self.ops)
        index = -1 if kernel is None else self.kernels.setdefault(kernel, len(self.kernels))
        call = CallKind.COPY if kernel is None else CallKind.LAUNCH
        segment = len(self.segment_ns)
        start = self._call(call, LAUNCH_NS, number, stream)
        self.ops.append(Op(kind, index, ns, stream, segment, start, start + LAUNCH_NS, group, size))
        self._last[stream] = number
        return number

    def compute(self, kernel: Kernel, ns: int) -> int:
        """A kernel on the stream of computation; its number."""
        number = self._put(OpKind.COMPUTE, kernel, ns, DEFAULT_STREAM, "", 0)
        self.waits += [(number, awaited) for awaited in self._pending]
        self._pending.clear()
        return number

    def copy(self, size_bytes: int, ns: int) -> int:
        """A copy from the host."""
        return self._put(OpKind.COPY, None, ns, DEFAULT_STREAM, "", size_bytes)

    def wait(self, number: int | None) -> None:
        """The stream of computation waits for a communication (None: for nothing), and with it every
        communication that is launched from here on."""
        if number is not None:
            self._call(CallKind.WAIT, EVENT_NS, number, DEFAULT_STREAM, self._ended[number])
            self._pending.append(number)

    _ended: dict[int, int] = field(default_factory=dict)
    """Record behind each communication."""

    def communicate(
        self,
        group: str,
        operation: str,
        size_bytes: int,
        ns: int,
        *,
        peers: Sequence[tuple[str, int]] = (),
        stream: int | None = None,
        dtype: str = "bf16",
    ) -> int:
        """A communication that starts when what was launched for computation so far is done; its number.

        peers: (ncclSend or ncclRecv, peer as in HostRange) of operations that are a group of calls.
        """
        stream = STREAMS[group] if stream is None else stream
        before = self._last.get(DEFAULT_STREAM)
        if before is not None:
            self._pass_on(stream)
        begin = self.here
        call = CALLS[operation]
        if not call:
            self.ranges.append(HostRange("ncclGroupStart", begin, self._after(300), group))
            for name, peer in peers:
                start = self._after(100)
                self.ranges.append(HostRange(name, start, self._after(500), group, size_bytes, peer))
            begin = self._after(200)
        self.host_ns += 1_000
        number = self._put(
            OpKind.COMMUNICATION,
            nccl_kernel(operation, dtype=dtype),
            ns,
            stream,
            group,
            size_bytes * max(1, len(peers)),
        )
        if before is not None:
            self.waits += [(number, awaited) for awaited in (before, *self._pending)]
        end = len(self.segment_ns), self.host_ns - BETWEEN_NS + 200
        reduction = ("Avg" if group in ("dp", "edp") else "Sum") if "reduce" in operation else ""
        if call:
            self.ranges.append(HostRange(call, begin, end, group, size_bytes, 0, reduction))
        else:
            self.ranges.append(HostRange("ncclGroupEnd", begin, end, group))
        self._ended[number] = self._record(stream)
        return number

    def _pass_on(self, stream: int) -> None:
        record = self._record(DEFAULT_STREAM)
        self._call(CallKind.WAIT, EVENT_NS, self._last[DEFAULT_STREAM], stream, record)

    def _after(self, ns: int) -> tuple[int, int]:
        self.host_ns += ns
        return self.here

    def open(self) -> tuple[int, int]:
        """Begin of a range."""
        self.host_ns += 100
        return self.here

    def close(self, name: str, begin: tuple[int, int]) -> None:
        """End of a range."""
        self.ranges.append(HostRange(name, begin, self._after(100)))
        self.host_ns += 100

    def synchronize(self) -> None:
        """The host waits until the device has nothing left; the segment ends."""
        assert not self._pending, "a computation must wait for what is pending"
        self._call(CallKind.SYNCHRONIZE, 0, len(self.ops) - 1)
        self.segment_ns.append(self.host_ns - BETWEEN_NS)
        self.host_ns = 0
