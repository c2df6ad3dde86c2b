"""GPU memory from a PyTorch memory snapshot: the peak, what it is made of, and what was wasted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from perfdoc.analyzers.memory.attention import attention_scores
from perfdoc.analyzers.memory.categories import StackUses, uses_of_stacks
from perfdoc.analyzers.memory.composition import compose, memory_series
from perfdoc.analyzers.memory.layout import layout_at, reserved_bytes
from perfdoc.analyzers.memory.lifetimes import BEFORE, DeviceHistory, Lifetimes, find_lifetimes, histories
from perfdoc.analyzers.memory.places import measure_growth, ranges_of_events, site_of, sites_at
from perfdoc.results.memory import AllocatorCalls, DeviceMemory, OutOfMemory
from perfdoc.traces.memory.model import NO_STACK, BlockState, MemoryAction, MemorySnapshot
from perfdoc.traces.memory.read import is_snapshot_name, read_memory_snapshot
from perfdoc.traces.table import I64

__all__ = ["is_snapshot_name", "measure_memory", "measure_snapshot"]

MAX_OUT_OF_MEMORY = 4
"""Failures that are described; all are counted."""


def measure_snapshot(
    path: Path, *, device_total_bytes: int | None = None, step_ends_ns: Sequence[int] = ()
) -> list[DeviceMemory]:
    """Read a snapshot and measure every device that it has events or segments of, by ordinal. Whose rank it
    is of, a snapshot does not say.

    device_total_bytes: memory of the GPU, where it is known from elsewhere; snapshots do not say it.
    step_ends_ns: UTC times at which steps ended, where they are known from elsewhere.
    Raises TraceError where the file cannot be read.
    """
    return measure_memory(
        read_memory_snapshot(path), device_total_bytes=device_total_bytes, step_ends_ns=step_ends_ns
    )


def measure_memory(
    snapshot: MemorySnapshot, *, device_total_bytes: int | None = None, step_ends_ns: Sequence[int] = ()
) -> list[DeviceMemory]:
    """As measure_snapshot, of a snapshot that has been read."""
    uses = uses_of_stacks(snapshot)
    return [_measure(history, uses, device_total_bytes, step_ends_ns) for history in histories(snapshot)]


def _measure(
    history: DeviceHistory, uses: StackUses, device_total_bytes: int | None, step_ends_ns: Sequence[int]
) -> DeviceMemory:
    snapshot = history.snapshot
    blocks = snapshot.blocks.take(history.blocks)
    lifetimes = find_lifetimes(history)
    allocated = lifetimes.allocated_bytes()
    reserved = reserved_bytes(history)
    end_reserved = int(snapshot.segments.size_bytes[history.segments].sum())
    growth = measure_growth(history, allocated, step_ends_ns)
    setting = snapshot.settings.get("expandable_segments")
    expandable = setting if isinstance(setting, bool) else None
    if not lifetimes.events:
        in_use = int(blocks.requested_bytes[blocks.state == BlockState.ALLOCATED].sum())
        return DeviceMemory(
            path=str(snapshot.path),
            rank=None,
            device=history.device,
            state="not_measured",
            reason="the snapshot has no history: call torch.cuda.memory._record_memory_history() before the "
            "steps to look at",
            notes=[],
            events=0,
            start_time_ns=None,
            end_time_ns=None,
            start_allocated_bytes=None,
            peak_allocated_bytes=None,
            peak_above_start_bytes=None,
            end_allocated_bytes=in_use,
            peak_time_ns=None,
            peak_reserved_bytes=None,
            end_reserved_bytes=end_reserved,
            composition=None,
            series=None,
            layout=None,
            sites=[],
            growth=growth,
            oom_events=None,
            out_of_memory=[],
            calls=None,
            headroom_bytes=None,
            expandable_segments=expandable,
        )
    ranges = ranges_of_events(history)
    peak = int(np.argmax(allocated)) + BEFORE
    alive = np.flatnonzero(lifetimes.alive_at(peak))
    composition = compose(history, lifetimes, alive, uses, ranges)
    peak_bytes, start_bytes = int(allocated.max()), int(allocated[0])
    for division in (composition.category_bytes, composition.evidence_bytes, composition.range_bytes):
        assert sum(division.values()) == peak_bytes
    time_ns = snapshot.events.time_ns[history.events]
    peak_reserved = int(reserved.max()) if reserved is not None else None
    failures = np.flatnonzero(snapshot.events.action[history.events] == MemoryAction.OUT_OF_MEMORY)
    return DeviceMemory(
        path=str(snapshot.path),
        rank=None,
        device=history.device,
        state="measured",
        reason="",
        notes=_notes(lifetimes, reserved),
        events=lifetimes.events,
        start_time_ns=_known(time_ns[0]),
        end_time_ns=_known(time_ns[-1]),
        start_allocated_bytes=start_bytes,
        peak_allocated_bytes=peak_bytes,
        peak_above_start_bytes=peak_bytes - start_bytes,
        end_allocated_bytes=int(allocated[-1]),
        peak_time_ns=_known(time_ns[peak]) if peak != BEFORE else None,
        peak_reserved_bytes=peak_reserved,
        end_reserved_bytes=end_reserved,
        composition=composition,
        series=memory_series(history, lifetimes, uses, ranges, allocated, reserved),
        layout=layout_at(history, lifetimes, peak, reserved),
        sites=sites_at(snapshot, lifetimes, alive),
        attention=attention_scores(snapshot, lifetimes, alive),
        growth=growth,
        oom_events=len(failures),
        out_of_memory=[
            _out_of_memory(history, lifetimes, at, allocated, reserved)
            for at in failures[:MAX_OUT_OF_MEMORY].tolist()
        ],
        calls=_calls(history),
        headroom_bytes=device_total_bytes - peak_reserved
        if device_total_bytes is not None and peak_reserved is not None
        else None,
        expandable_segments=expandable,
    )


def _known(time_ns: int) -> int | None:
    return int(time_ns) if time_ns >= 0 else None


def _notes(lifetimes: Lifetimes, reserved: I64 | None) -> list[str]:
    notes = []
    if lifetimes.lost:
        notes.append(
            f"{lifetimes.lost:,} events contradict each other (an address allocated or freed twice): "
            "the recording left events out"
        )
    if lifetimes.not_at_the_end:
        notes.append(
            f"{lifetimes.not_at_the_end:,} allocations are neither freed nor among the blocks at the end: "
            "the recording had stopped before the snapshot, so memory freed since is missing from the start"
        )
    if reserved is None:
        notes.append(
            "the segment events do not add up to the segments at the end: reserved memory is unknown"
        )
    return notes


def _out_of_memory(
    history: DeviceHistory, lifetimes: Lifetimes, at: int, allocated: I64, reserved: I64 | None
) -> OutOfMemory:
    events = history.snapshot.events
    row = history.first + at
    function, file, line = site_of(history.snapshot.stack(int(events.stack[row])))
    return OutOfMemory(
        time_ns=_known(events.time_ns[row]),
        requested_bytes=int(events.size_bytes[row]),
        device_free_bytes=int(events.address[row]),
        allocated_bytes=int(allocated[at - BEFORE]),
        reserved_bytes=int(reserved[at - BEFORE]) if reserved is not None else None,
        largest_free_block_bytes=layout_at(history, lifetimes, at, reserved).largest_free_block_bytes,
        function=function,
        file=file,
        line=line,
    )


def _calls(history: DeviceHistory) -> AllocatorCalls:
    events = history.snapshot.events.take(history.events)
    action, size = events.action, events.size_bytes
    grows = (action == MemoryAction.SEGMENT_ALLOC) | (action == MemoryAction.SEGMENT_MAP)
    shrinks = (action == MemoryAction.SEGMENT_FREE) | (action == MemoryAction.SEGMENT_UNMAP)
    forced: int | None = 0
    if grows.any() and shrinks.any():
        # Inside one allocation both have the stack of that allocation, and nothing comes between them.
        from_one_call = shrinks[:-1] & grows[1:] & (events.stack[:-1] == events.stack[1:])
        has_stacks = bool((events.stack[grows | shrinks] != NO_STACK).all())
        forced = int(np.count_nonzero(from_one_call)) if has_stacks else None
    return AllocatorCalls(
        segment_allocations=int(np.count_nonzero(grows)),
        segment_allocated_bytes=int(size[grows].sum()),
        segment_frees=int(np.count_nonzero(shrinks)),
        segment_freed_bytes=int(size[shrinks].sum()),
        forced_releases=forced,
    )
