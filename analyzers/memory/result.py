"""What is known of the memory of one device from one snapshot."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.analyzers.memory.composition import MemoryComposition, MemorySeries
from perfdoc.analyzers.memory.layout import MemoryLayout
from perfdoc.analyzers.memory.places import MemoryGrowth, MemorySite


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """One allocation that failed."""

    time_ns: int | None
    """UTC since 1970."""
    requested_bytes: int
    device_free_bytes: int
    """What the device itself had free, outside of PyTorch."""
    allocated_bytes: int
    """In tensors at that moment, as they asked for it."""
    reserved_bytes: int | None
    largest_free_block_bytes: int | None
    """Largest piece that was free inside of reserved memory; null for all but the first failures."""
    function: str
    file: str
    line: int | None
    """Where the program asked for it."""


@dataclass(frozen=True, kw_only=True)
class AllocatorCalls:
    """What the allocator asked of the device during the history. Each of these calls holds up the host."""

    segment_allocations: int
    """cudaMalloc, or mapping a piece of an expandable segment."""
    segment_allocated_bytes: int
    segment_frees: int
    segment_freed_bytes: int
    forced_releases: int | None
    """Allocations before which cached segments had to be given back: cudaMalloc had failed, or the garbage
    collection threshold was reached. Null where the events have no stacks to tell them from empty_cache."""


@dataclass(frozen=True, kw_only=True)
class MemoryMeasurement:
    """One device of one snapshot. Bytes; `None` is unknown, and the reason says why.

    allocated: in tensors, as they asked for it; torch.cuda.memory_allocated counts whole blocks, so it is
    larger by the rounding (0.1 % in the two real snapshots). reserved: what PyTorch holds of the device; the
    CUDA context, NCCL's own buffers and other libraries' memory are not in it.
    """

    path: str
    device: int
    state: str
    """measured; not_measured where the snapshot has no history of the device."""
    reason: str
    notes: tuple[str, ...]
    """What makes figures less sure than they look."""
    events: int
    start_time_ns: int | None
    """Of the first event; UTC since 1970."""
    end_time_ns: int | None
    start_allocated_bytes: int | None
    """Before the first event: what events free without having allocated it, and blocks at the end that no
    event allocated."""
    peak_allocated_bytes: int | None
    """start + the largest running sum of allocations less frees requested; the start itself included."""
    peak_above_start_bytes: int | None
    end_allocated_bytes: int | None
    """Behind the last event; without events, from the blocks."""
    peak_time_ns: int | None
    """Of the event that reached the peak; null where that is the start."""
    peak_reserved_bytes: int | None
    """Largest sum of segments: those at the end, with the segment events taken back one by one."""
    end_reserved_bytes: int
    composition: MemoryComposition | None
    """Of peak_allocated_bytes."""
    series: MemorySeries | None
    """The same over time."""
    layout: MemoryLayout | None
    """At the peak of allocated memory."""
    sites: tuple[MemorySite, ...]
    """Of peak_allocated_bytes, by place in the program."""
    growth: MemoryGrowth
    oom_events: int | None
    out_of_memory: tuple[OutOfMemory, ...]
    """The first of them."""
    calls: AllocatorCalls | None
    headroom_bytes: int | None
    """Device's memory less peak_reserved_bytes; null where the device's memory is not given."""
    expandable_segments: bool | None
    """Whether the allocator was set to use them."""
