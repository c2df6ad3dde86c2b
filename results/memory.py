"""Memory: of a device, from PyTorch's snapshots, and of a process, from the samples of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfdoc.results.quality import State


@dataclass(frozen=True, kw_only=True)
class MemoryComposition:
    """Bytes allocated at the peak; each of the three divisions sums to the peak exactly."""

    state: Literal["measured", "partial"]
    """partial: something is unknown, and a category is at least what it says, 0 included."""
    reason: str
    category_bytes: dict[str, int]
    """parameters, gradients, optimizer, activations, communication_buffers, other, unknown."""
    evidence_bytes: dict[str, int]
    """What tells the category."""
    range_bytes: dict[str, int]
    """By the range in which it was allocated, the largest first."""
    before_recording_bytes: int
    """Part of it that was allocated before the history began."""


@dataclass(frozen=True, kw_only=True)
class MemorySeries:
    """Allocated memory over time, in columns of one length; the peak is among its moments."""

    event: list[int]
    """Position in the device's events; -1 is before the first."""
    time_ns: list[int]
    """Since the first event; empty where the events have no times."""
    category_bytes: dict[str, list[int]]
    """By category, those that are ever above 0; a moment's sum is what is allocated then."""
    reserved_bytes: list[int]
    """Empty where reserved memory is not known."""
    peak: int
    """Which moment is the peak."""


@dataclass(frozen=True, kw_only=True)
class MemoryLayout:
    """Reserved memory at the peak; the first five sizes sum to reserved_bytes exactly."""

    state: State
    reason: str
    allocated_bytes: int
    rounding_bytes: int | None
    pending_free_bytes: int | None
    """Freed, but another stream may still use it."""
    inactive_split_bytes: int | None
    """Free, in segments that also hold something: fragmentation."""
    cached_bytes: int | None
    """Whole segments in which nothing is."""
    reserved_bytes: int | None
    largest_free_block_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class MemorySite:
    """One place in the program, and what it had allocated at the peak."""

    function: str
    file: str
    line: int | None
    bytes: int
    count: int


@dataclass(frozen=True, kw_only=True)
class MemoryGrowth:
    """How much more is allocated at the end of each step than at the end of the one before."""

    state: State
    reason: str
    boundary: str
    allocated_bytes: list[int]
    per_step_bytes: int | None
    every_step_grew: bool | None


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """One allocation that failed."""

    time_ns: int | None
    requested_bytes: int
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int | None
    largest_free_block_bytes: int | None
    function: str
    file: str
    line: int | None


@dataclass(frozen=True, kw_only=True)
class AllocatorCalls:
    """What the allocator asked of the device during the history; each call holds up the host."""

    segment_allocations: int
    segment_allocated_bytes: int
    segment_frees: int
    segment_freed_bytes: int
    forced_releases: int | None


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """One device of one snapshot."""

    path: str
    rank: int | None
    device: int
    state: State
    reason: str
    notes: list[str]
    events: int
    start_time_ns: int | None
    end_time_ns: int | None
    start_allocated_bytes: int | None
    peak_allocated_bytes: int | None
    """In tensors, as they asked for it."""
    peak_above_start_bytes: int | None
    end_allocated_bytes: int | None
    peak_time_ns: int | None
    peak_reserved_bytes: int | None
    """What PyTorch held of the device; the CUDA context and NCCL's own buffers are not in it."""
    end_reserved_bytes: int
    composition: MemoryComposition | None
    layout: MemoryLayout | None
    sites: list[MemorySite]
    growth: MemoryGrowth
    oom_events: int | None
    out_of_memory: list[OutOfMemory]
    calls: AllocatorCalls | None
    headroom_bytes: int | None
    """The GPU's memory less peak_reserved_bytes; CUDA's context and NCCL's buffers take their part of it."""
    expandable_segments: bool | None
    series: MemorySeries | None = None
    """None in a diagnosis of an earlier version, and without a history."""


@dataclass(frozen=True, kw_only=True)
class ProcessMemory:
    """The process of one rank, from the samples of a run: on the host, and of its GPU as far as counted."""

    path: str
    rank: int | None
    state: State
    reason: str
    samples: int
    start_resident_bytes: int | None
    peak_resident_bytes: int | None
    """Most at any sample; between samples it may have been more."""
    process_peak_resident_bytes: int | None
    """Most since the process began, start-up included."""
    resident_growth_per_step_bytes: int | None
    heap_growth_per_step_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    allocated_growth_per_step_bytes: int | None
    oom_events: int


@dataclass(frozen=True, kw_only=True)
class MemoryAnalysis:
    """All snapshots and samples."""

    state: State
    reason: str
    remedy: str
    devices: list[DeviceMemory]
    processes: list[ProcessMemory]
