"""Memory of a job: every snapshot and every file of samples, by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfdoc.analyzers.memory.memory import measure_snapshot
from perfdoc.analyzers.memory.memory_resident import ResidentMeasurement, measure_resident
from perfdoc.analyzers.memory.memory_result import MemoryMeasurement
from perfdoc.traces.load import content_sha256

_NONE = "No memory snapshot and no samples were given."
_REMEDY = (
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
        remedy="" if measured else _REMEDY,
        ranks=ranks,
    )
