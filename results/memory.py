"""Memory: of a device, from PyTorch's snapshots, and of a process, from the samples of a run."""

from __future__ import annotations

from dataclasses import field
from itertools import pairwise
from typing import Literal

from perfdoc.records import dataclass
from perfdoc.results.figures import size
from perfdoc.results.quality import State


@dataclass(frozen=True, kw_only=True)
class MemoryComposition:
    """Bytes allocated at the peak; each of the three divisions sums to the peak exactly."""

    state: Literal["measured", "partial"]
    """partial: something is unknown, so categories are lower bounds, 0 included."""
    reason: str
    category_bytes: dict[str, int]
    """parameters, gradients, optimizer, activations, communication_buffers, other, unknown; all."""
    evidence_bytes: dict[str, int]
    """What tells the category."""
    range_bytes: dict[str, int]
    """By the range in which it was allocated, the largest first."""
    before_recording_bytes: int
    """Part of it that was allocated before the history began. Parameters and optimizer state mostly are:
    without a stack they are `unknown`."""
    recorded_bytes: dict[str, int] = field(default_factory=dict)
    """By category, the rest of it: what was allocated since. Empty in a diagnosis of an earlier version."""


@dataclass(frozen=True, kw_only=True)
class MemorySeries:
    """Allocated memory over time, in columns of one length; the peak is among its moments."""

    event: list[int]
    """Position in the device's events, ascending; -1 is before the first."""
    time_ns: list[int]
    """Since the first event, never descending; empty where the events have no times."""
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
    """As tensors asked for it."""
    rounding_bytes: int | None = None
    """In blocks beyond the requested bytes."""
    pending_free_bytes: int | None = None
    """Freed, but another stream may still use it."""
    inactive_split_bytes: int | None = None
    """Free, in segments that also hold something: fragmentation, no use for what is larger."""
    cached_bytes: int | None = None
    """Whole segments in which nothing is: the allocator gives them back before it runs out of memory."""
    reserved_bytes: int | None = None
    largest_free_block_bytes: int | None = None
    """The largest piece that an allocation could get without new memory from the device."""


@dataclass(frozen=True, kw_only=True)
class MemorySite:
    """One call site and its allocated memory at the peak."""

    function: str
    file: str
    """The end of its path; empty for C++ and for what has no stack."""
    line: int | None
    bytes: int
    count: int
    """Allocations."""


@dataclass(frozen=True, kw_only=True)
class AttentionScores:
    """What one function of unfused attention keeps of its scores, sequence x sequence, at the peak."""

    function: str
    file: str
    evidence: Literal["name", "products"]
    """How it is known for attention: its name or its file's, around a softmax; or a softmax beside batched
    products of the same size."""
    bytes: int
    """As large as its softmax, or half of it: an upper bound of what fused attention leaves out."""
    count: int
    """Allocations."""
    largest_bytes: int
    """Of one of them."""


@dataclass(frozen=True, kw_only=True)
class MemoryGrowth:
    """How much more is allocated at the end of each step than at the end of the one before."""

    state: State
    reason: str
    boundary: str
    """What ended the steps: a range's name, or `given`."""
    allocated_bytes: list[int]
    """At the end of each step."""
    per_step_bytes: int | None = None
    """(last - first) / steps between, rounded to the nearest byte; negative where memory shrank."""
    every_step_grew: bool | None = None


@dataclass(frozen=True, kw_only=True)
class OutOfMemory:
    """One allocation that failed."""

    time_ns: int | None
    """UTC since 1970."""
    requested_bytes: int
    device_free_bytes: int
    """What the device itself had free, outside of PyTorch."""
    allocated_bytes: int
    """Requested by tensors at that moment."""
    reserved_bytes: int | None
    largest_free_block_bytes: int | None
    """Largest piece that was free inside of reserved memory; None for all but the first failures."""
    function: str
    file: str
    line: int | None
    """Where the program asked for it."""
    what: Literal["loss", "attention", "optimizer", "weights", "cache", ""] = ""
    """By the frames that asked: logits or a copy of them, attention's scores, the optimizer's state, weights
    that are gathered whole, keys and values of a server. Empty where none tells."""


@dataclass(frozen=True, kw_only=True)
class AllocatorCalls:
    """The allocator's calls to the device during the history; each one stalls the host."""

    segment_allocations: int
    """cudaMalloc, or mapping a piece of an expandable segment."""
    segment_allocated_bytes: int
    segment_frees: int
    segment_freed_bytes: int
    forced_releases: int | None
    """Allocations that released cached segments first: cudaMalloc had failed, or the garbage collection
    threshold was reached. None if the events have no stacks to distinguish them from empty_cache."""


@dataclass(frozen=True, kw_only=True)
class DeviceMemory:
    """One device of one snapshot, or in the window of a capture that recorded allocations."""

    path: str
    rank: int | None
    """As the run directory says."""
    device: int
    state: State
    """not_measured where the snapshot has no history of the device."""
    reason: str
    """Why not; of one that is measured, why its bytes are a lower bound. Then no headroom is known."""
    notes: list[str] = field(default_factory=list)
    """What makes figures less sure than they look."""
    events: int = 0
    start_time_ns: int | None = None
    """Of the first event; UTC since 1970."""
    end_time_ns: int | None = None
    start_allocated_bytes: int | None = None
    """Before the first event: what events free without having allocated it, and blocks at the end that no
    event allocated."""
    peak_allocated_bytes: int | None = None
    """In tensors, as they asked for it: start + the largest running sum of allocations less frees requested,
    the start itself included. torch.cuda.memory_allocated counts whole blocks, so it is larger by the
    rounding (0.1 % in the two real snapshots). Of a PyTorch trace those, of Nsight's what CUDA allocated."""
    peak_above_start_bytes: int | None = None
    end_allocated_bytes: int | None = None
    """Behind the last event; without events, from the blocks."""
    peak_time_ns: int | None = None
    """Of the event that reached the peak; None where that is the start."""
    peak_reserved_bytes: int | None = None
    """What PyTorch held of the device: the largest sum of segments, those at the end with the segment events
    taken back one by one. The CUDA context and NCCL's own buffers are not in it."""
    end_reserved_bytes: int | None = None
    composition: MemoryComposition | None = None
    """Of peak_allocated_bytes."""
    layout: MemoryLayout | None = None
    """At the peak of allocated memory."""
    sites: list[MemorySite] = field(default_factory=list)
    """Of peak_allocated_bytes, by place in the program."""
    growth: MemoryGrowth
    oom_events: int | None = None
    out_of_memory: list[OutOfMemory] = field(default_factory=list)
    """The first of them."""
    calls: AllocatorCalls | None = None
    headroom_bytes: int | None = None
    """The GPU's memory less peak_reserved_bytes; CUDA's context and NCCL's buffers take their part of it.
    None where how much the GPU has is not known."""
    expandable_segments: bool | None = None
    """Whether the allocator was set to use them."""
    series: MemorySeries | None = None
    """None in a diagnosis of an earlier version, and without a history."""
    attention: list[AttentionScores] = field(default_factory=list)
    """Unfused attention by its scores at the peak, most bytes first. Without stacks none is seen."""


_LEAK_STEPS, _LEAK_ALIKE, _LEAK_WORTH_FRAC = 3, 1.5, 1e-4
"""Steps that grew, at least; the largest growth in times of the smallest, at most: what is kept from every
step is as large each time, caches and states fill in some. Of the peak: in 10,000 steps it is full."""


def leak_words(memory: DeviceMemory) -> str:
    """That all steps left about as much more, and when the GPU is full; empty where they did not."""
    ends = memory.growth.allocated_bytes
    grown = [later - earlier for earlier, later in pairwise(ends)]
    if len(grown) < _LEAK_STEPS or not 0 < max(grown) <= _LEAK_ALIKE * min(grown):
        return ""
    left = round((ends[-1] - ends[0]) / len(grown))
    if left < _LEAK_WORTH_FRAC * (memory.peak_allocated_bytes or 0):
        return ""
    full = ""
    if memory.headroom_bytes is not None and memory.headroom_bytes > 0:
        full = f", and the GPU is full in {memory.headroom_bytes // left:,} more"
    return f"each of {len(grown)} steps left {size(left)} more: a leak if it goes on{full}"


@dataclass(frozen=True, kw_only=True)
class ProcessMemory:
    """The process of one rank, from the samples of a run: on the host, and of its GPU as far as counted."""

    path: str
    rank: int | None
    state: State
    reason: str
    samples: int
    start_resident_bytes: int | None
    """When the window opened."""
    peak_resident_bytes: int | None
    """Most at any sample; between samples it may have been more."""
    process_peak_resident_bytes: int | None
    """Most since the process began, start-up included: the system counts it all the time."""
    resident_growth_per_step_bytes: int | None
    heap_growth_per_step_bytes: int | None
    """Of memory that the C library handed out: a leak of CPU tensors shows here without the noise of pages
    that are kept for later."""
    peak_allocated_bytes: int | None
    """In live tensors on the GPU since the window opened."""
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
