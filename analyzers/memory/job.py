"""GPU memory of a job: what was measured of its ranks, put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from perfdoc.records import dataclass
from perfdoc.results.memory import DeviceMemory, MemoryAnalysis, ProcessMemory

_NONE = "No memory snapshot and no samples were given."
_GIVE_SNAPSHOT = (
    "Give a snapshot (torch.cuda.memory._dump_snapshot) with the captures, or the directory of a "
    "`perfdoc run`."
)


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """What was measured of one rank."""

    devices: list[DeviceMemory]
    process: ProcessMemory | None
    sha256: Mapping[Path, str]
    """Of the snapshots that were read."""


def job_memory(ranks: Sequence[RankMemory], captured: Sequence[DeviceMemory] = ()) -> MemoryAnalysis:
    """Put the ranks together; what their GPUs have free is not known yet. captured: what captures show, which
    counts where no snapshot has a history."""
    devices = [device for r in ranks for device in r.devices]
    if not any(m.state == "measured" for m in devices):
        devices += captured
    processes = [r.process for r in ranks if r.process is not None]
    found: list[DeviceMemory | ProcessMemory] = [*devices, *processes]
    measured = any(m.state == "measured" for m in found)
    return MemoryAnalysis(
        state="measured" if measured else "not_measured",
        reason="" if measured else (found[0].reason if found else _NONE),
        remedy="" if measured else _GIVE_SNAPSHOT,
        devices=devices,
        processes=processes,
    )
