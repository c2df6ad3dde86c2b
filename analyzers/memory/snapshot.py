"""GPU memory from a PyTorch memory snapshot: the peak, what it is made of, and what was wasted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.analyzers.memory.categories import StackUses, tensor_of, uses_of_stacks
from perfdoc.analyzers.memory.composition import attention_scores, compose, memory_series
from perfdoc.analyzers.memory.job import RankMemory
from perfdoc.analyzers.memory.layout import layout_at, reserved_bytes
from perfdoc.analyzers.memory.lifetimes import BEFORE, DeviceHistory, Lifetimes, find_lifetimes, histories
from perfdoc.analyzers.memory.places import MIN_STEP_ENDS, measure_growth, ranges_of_events, site_of, sites_at
from perfdoc.profiling.logs import read_lines
from perfdoc.profiling.memory import MemorySample
from perfdoc.records import dataclass
from perfdoc.results.memory import AllocatorCalls, DeviceMemory, OutOfMemory, ProcessMemory
from perfdoc.traces.errors import TraceError
from perfdoc.traces.load import content_sha256
from perfdoc.traces.memory.model import NO_STACK, BlockState, MemoryAction
from perfdoc.traces.memory.read import read_memory_snapshot
from perfdoc.traces.table import I64

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
    snapshot = read_memory_snapshot(path)
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
            end_allocated_bytes=in_use,
            end_reserved_bytes=end_reserved,
            growth=growth,
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
    stack = history.snapshot.stack(int(events.stack[row]))
    function, file, line = site_of(stack)
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
        what=tensor_of(stack),
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


MAX_SAMPLES = 1_000_000
MAX_VALUE = 1 << 61


def measure_resident(path: Path, rank: int | None) -> tuple[ProcessMemory, list[int]]:
    """Measure a run's samples of one rank; and when its profiled steps ended, in UTC since 1970.

    Growth is (last - first) / steps between, over the samples at the ends of steps, rounded to a byte.
    Raises TraceError where the file cannot be read.
    """
    samples: list[MemorySample] = []
    try:
        for sample in read_lines(path, MemorySample):
            if not all(0 <= value < MAX_VALUE for value in _numbers(sample)):
                raise TraceError(path, "has a sample with an impossible number.", _COPY_AGAIN)
            samples.append(sample)
            if len(samples) > MAX_SAMPLES:
                raise TraceError(path, f"has more than {MAX_SAMPLES:,} samples.", _COPY_AGAIN)
    except TraceError as error:
        raise TraceError(path, error.what, _COPY_AGAIN) from error
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}.", _COPY_AGAIN) from error
    ends = [sample for sample in samples if sample.event == "step"]
    too_few = len(ends) < MIN_STEP_ENDS

    def growth(values: Sequence[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        if too_few or len(known) < len(values):
            return None
        return round((known[-1] - known[0]) / (len(known) - 1))

    opened = next((sample for sample in samples if sample.event == "start"), None)
    memory = ProcessMemory(
        path=str(path),
        rank=rank,
        state="measured" if samples else "not_measured",
        reason=f"growth: {len(ends)} ends of steps are known, {MIN_STEP_ENDS} are needed" if too_few else "",
        samples=len(samples),
        start_resident_bytes=opened.resident_bytes if opened is not None else None,
        peak_resident_bytes=_most([sample.resident_bytes for sample in samples]),
        process_peak_resident_bytes=_most([sample.peak_resident_bytes for sample in samples]),
        resident_growth_per_step_bytes=growth([sample.resident_bytes for sample in ends]),
        heap_growth_per_step_bytes=growth([sample.heap_used_bytes for sample in ends]),
        peak_allocated_bytes=_most([sample.peak_allocated_bytes for sample in samples]),
        peak_reserved_bytes=_most([sample.peak_reserved_bytes for sample in samples]),
        allocated_growth_per_step_bytes=growth([sample.allocated_bytes for sample in ends]),
        oom_events=sum(sample.event == "oom" for sample in samples),
    )
    return memory, [sample.time_ns for sample in ends]


_COPY_AGAIN = "Copy the run directory again."


def _numbers(sample: MemorySample) -> list[int]:
    values = (getattr(sample, name) for name in sample.__struct_fields__)
    return [value for value in values if isinstance(value, int)]


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


@dataclass(frozen=True, kw_only=True)
class MemoryFiles:
    """What there is of one rank."""

    rank: int | None
    """As the run directory says; None for a file that lies in none."""
    snapshots: Sequence[Path]
    samples: Path | None

    @property
    def paths(self) -> list[Path]:
        """All of them."""
        return [*self.snapshots, *([] if self.samples is None else [self.samples])]


def measure_rank_memory(files: MemoryFiles) -> RankMemory:
    """Measure the files of one rank. Raises TraceError where one cannot be read."""
    process, ends = (None, []) if files.samples is None else measure_resident(files.samples, files.rank)
    devices = [
        replace(device, rank=files.rank)
        for path in files.snapshots
        for device in measure_snapshot(path, step_ends_ns=ends)
    ]
    digests = {path: content_sha256(path) for path in files.snapshots}
    return RankMemory(devices=devices, process=process, sha256=digests)
