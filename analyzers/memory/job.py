"""Memory of a job: every snapshot and every file of samples, by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfdoc.analyzers.memory.places import MIN_STEP_ENDS
from perfdoc.analyzers.memory.result import MemoryMeasurement
from perfdoc.analyzers.memory.snapshot import measure_snapshot
from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.logs import read_lines
from perfdoc.profiling.memory import MemorySample
from perfdoc.traces.errors import TraceError
from perfdoc.traces.load import content_sha256

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
                raise TraceError(path, "has a sample with an impossible number.", _COPY_AGAIN)
            samples.append(sample)
            if len(samples) > MAX_SAMPLES:
                raise TraceError(path, f"has more than {MAX_SAMPLES:,} samples.", _COPY_AGAIN)
    except CaptureError as error:
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


_COPY_AGAIN = "Copy the run directory again."


def _numbers(sample: MemorySample) -> list[int]:
    values = (getattr(sample, name) for name in sample.__struct_fields__)
    return [value for value in values if isinstance(value, int)]


def _most(values: Sequence[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)


_NONE = "No memory snapshot and no samples were given."
_GIVE_SNAPSHOT = (
    "Give a snapshot (torch.cuda.memory._dump_snapshot) beside the captures, or the directory of a "
    "`perfdoc run`."
)


@dataclass(frozen=True, kw_only=True)
class MemoryFiles:
    """What there is of one rank."""

    rank: int | None
    """As the run directory says; None for a file that lies in none."""
    snapshots: Sequence[Path]
    samples: Path | None


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """What was measured of one rank."""

    rank: int | None
    devices: Sequence[MemoryMeasurement]
    process: ResidentMeasurement | None
    sha256: Mapping[Path, str]
    """Of the snapshots that were read."""


@dataclass(frozen=True, kw_only=True)
class JobMemory:
    """What was measured of all ranks."""

    state: Literal["measured", "not_measured"]
    reason: str
    remedy: str
    ranks: Sequence[RankMemory]


def measure_rank_memory(files: MemoryFiles) -> RankMemory:
    """Measure the files of one rank. Raises TraceError where one cannot be read."""
    process = measure_resident(files.samples) if files.samples is not None else None
    ends = process.step_ends_ns if process is not None else ()
    devices = [d for path in files.snapshots for d in measure_snapshot(path, step_ends_ns=ends)]
    digests = {path: content_sha256(path) for path in files.snapshots}
    return RankMemory(rank=files.rank, devices=devices, process=process, sha256=digests)


def job_memory(ranks: Sequence[RankMemory]) -> JobMemory:
    """Put the ranks together."""
    found = [m for r in ranks for m in (*r.devices, r.process) if m is not None]
    measured = any(m.state == "measured" for m in found)
    return JobMemory(
        state="measured" if measured else "not_measured",
        reason="" if measured else (found[0].reason if found else _NONE),
        remedy="" if measured else _GIVE_SNAPSHOT,
        ranks=ranks,
    )
