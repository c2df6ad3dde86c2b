"""What a memory snapshot of PyTorch holds, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from perfdoc.records import dataclass
from perfdoc.traces.table import I8, I32, I64, Bool, Table

NO_STACK = 0
"""Index of the stack without frames."""


class MemoryFrame(NamedTuple):
    """One call: hostile text, and a path that tells about its owner."""

    filename: str
    function: str
    line: int


class MemoryAction(IntEnum):
    """What the allocator did; from ALLOC, `unpickle.ACTIONS`."""

    OTHER = 0
    ALLOC = 1
    """A tensor got memory."""
    FREE_REQUESTED = 2
    """A tensor let go of it: it counts as allocated no longer."""
    FREE_COMPLETED = 3
    """It can be used again: other streams are done with it too."""
    SEGMENT_ALLOC = 4
    """cudaMalloc: reserved memory grew."""
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    """As SEGMENT_ALLOC and SEGMENT_FREE, with expandable segments."""
    SEGMENT_UNMAP = 7
    OUT_OF_MEMORY = 8
    USER_DEFINED = 9
    """One end of an annotation, in PyTorch 2.4 and 2.5."""


class BlockState(IntEnum):
    """What a block of a segment is in use for."""

    INACTIVE = 0
    ALLOCATED = 1
    PENDING_FREE = 2
    """Freed, and another stream may still use it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryEvents(Table):
    """Events of all devices, one device after the other, each in the order in which they happened."""

    device: I32
    action: I8
    """MemoryAction."""
    address: I64
    """Of OUT_OF_MEMORY instead: bytes that the device had free."""
    size_bytes: I64
    """As the tensor asked for it; the block that it got may be larger."""
    stream: I64
    time_ns: I64
    """UTC since 1970, in steps of a microsecond; -1 unknown."""
    stack: I32
    """Index for MemorySnapshot.stack; 0 for none."""
    label: I32
    """Index in MemorySnapshot.labels of the metadata that the program had set; 0 for none."""


@dataclass(frozen=True, kw_only=True, eq=False)
class MemorySegments(Table):
    """What the allocator had from the device at the end."""

    device: I32
    address: I64
    size_bytes: I64
    stream: I64
    first_block: I64
    end_block: I64
    """Its blocks are rows [first_block, end_block) of MemoryBlocks."""
    stack: I32
    is_large: Bool
    """For requests over 1 MiB."""
    is_expandable: Bool


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryBlocks(Table):
    """The pieces of the segments at the end."""

    address: I64
    size_bytes: I64
    requested_bytes: I64
    """As the tensor asked for it; of an inactive block, what the last one asked for."""
    state: I8
    """BlockState."""
    stack: I32


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryAnnotations(Table):
    """Starts and ends of the program's own ranges (record_function) on the thread that recorded."""

    device: I32
    time_ns: I64
    """UTC since 1970."""
    name: I32
    """Index in MemorySnapshot.labels."""
    is_start: Bool


@dataclass(frozen=True, kw_only=True, eq=False)
class MemorySnapshot:
    """One file. Names, paths and labels are hostile text."""

    path: Path
    events: MemoryEvents
    segments: MemorySegments
    blocks: MemoryBlocks
    annotations: MemoryAnnotations
    labels: Sequence[str]
    frames: Sequence[MemoryFrame]
    stack_offsets: I64
    stack_frames: I32
    """Frames of stack i, the innermost call first: stack_frames[stack_offsets[i] : stack_offsets[i + 1]]."""
    settings: Mapping[str, bool | int | float | str]
    """The allocator's settings, as far as they are plain values; empty where the file has none."""

    def stack(self, index: int) -> list[MemoryFrame]:
        """The calls of a stack, the innermost first."""
        first, end = self.stack_offsets[index : index + 2].tolist()
        return [self.frames[i] for i in self.stack_frames[first:end].tolist()]
