"""Memory of a rank's process from the samples that a run leaves (memory/rank<N>.jsonl): peak and growth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from perfdoc.analyzers.memory.memory_ranges import MIN_STEP_ENDS
from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.logs import read_lines
from perfdoc.profiling.memory import MemorySample
from perfdoc.traces.errors import TraceError

MAX_SAMPLES = 1_000_000
MAX_VALUE = 1 << 61


@dataclass(frozen=True, kw_only=True)
class ResidentMeasurement:
    """What the samples of one rank say. Bytes; null where no sample has the figure.

    Growth is (last - first) / steps between, over the samples at the ends of steps, rounded to a byte.
    """

    path: str
    state: str
    """measured or not_measured."""
    reason: str
    """Why something is null."""
    samples: int
    step_ends_ns: tuple[int, ...]
    """UTC since 1970: when the profiled steps ended."""
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


def measure_resident(path: Path) -> ResidentMeasurement:
    """Measure a run's samples of one rank. Raises TraceError where the file cannot be read."""
    samples: list[MemorySample] = []
    try:
        for sample in read_lines(path, MemorySample):
            if not all(0 <= value < MAX_VALUE for value in _numbers(sample)):
                raise TraceError(path, "has a sample with an impossible number.", _REMEDY)
            samples.append(sample)
            if len(samples) > MAX_SAMPLES:
                raise TraceError(path, f"has more than {MAX_SAMPLES:,} samples.", _REMEDY)
    except CaptureError as error:
        raise TraceError(path, error.what, _REMEDY) from error
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}.", _REMEDY) from error
    ends = [sample for sample in samples if sample.event == "step"]
    too_few = len(ends) < MIN_STEP_ENDS

    def growth(values: Sequence[int | None]) -> int | None:
        known = [value for value in values if value is not None]
        if too_few or len(known) < len(values):
            return None
        return round((known[-1] - known[0]) / (len(known) - 1))

    opened = next((sample for sample in samples if sample.event == "start"), None)
    return ResidentMeasurement(
        path=str(path),
        state="measured" if samples else "not_measured",
        reason=f"growth: {len(ends)} ends of steps are known, {MIN_STEP_ENDS} are needed" if too_few else "",
        samples=len(samples),
        step_ends_ns=tuple(sample.time_ns for sample in ends),
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


_REMEDY = "Copy the run directory again."


def _numbers(sample: MemorySample) -> list[int]:
    values = (getattr(sample, name) for name in sample.__struct_fields__)
    return [value for value in values if isinstance(value, int)]


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
