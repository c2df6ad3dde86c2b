"""Memory of a job: every snapshot and every file of samples, by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfdoc.analyzers.memory.places import MIN_STEP_ENDS
from perfdoc.analyzers.memory.snapshot import measure_snapshot
from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.logs import read_lines
from perfdoc.profiling.memory import MemorySample
from perfdoc.results.memory import DeviceMemory, MemoryAnalysis, ProcessMemory
from perfdoc.traces.errors import TraceError
from perfdoc.traces.load import content_sha256

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


_NONE = "No memory snapshot and no samples were given."
_GIVE_SNAPSHOT = (
    "Give a snapshot (torch.cuda.memory._dump_snapshot) with the captures, or the directory of a "
    "`perfdoc run`."
)


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


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """What was measured of one rank."""

    devices: list[DeviceMemory]
    process: ProcessMemory | None
    sha256: Mapping[Path, str]
    """Of the snapshots that were read."""


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


def job_memory(ranks: Sequence[RankMemory]) -> MemoryAnalysis:
    """Put the ranks together; what their GPUs have free is not known yet."""
    found = [m for r in ranks for m in (*r.devices, r.process) if m is not None]
    measured = any(m.state == "measured" for m in found)
    return MemoryAnalysis(
        state="measured" if measured else "not_measured",
        reason="" if measured else (found[0].reason if found else _NONE),
        remedy="" if measured else _GIVE_SNAPSHOT,
        devices=[device for r in ranks for device in r.devices],
        processes=[r.process for r in ranks if r.process is not None],
    )
