"""Which memory files belong to what the user gave: snapshots by path, and those of run directories."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.traces.memory.read import is_snapshot_name

if TYPE_CHECKING:
    from perfdoc.analyzers.memory.memory_files import MemoryFiles

_MOMENTS = (".start.pickle", ".peak.pickle")
"""Without a history: what they hold is in the snapshot at the end of the window."""


def snapshot_paths(words: Sequence[str]) -> list[Path]:
    """Those of the user's paths that are memory snapshots."""
    return [Path(w) for w in words if is_snapshot_name(w) and Path(w).is_file()]


def memory_files(snapshots: Sequence[Path], captures: Sequence[Path]) -> list[MemoryFiles]:
    """Files of each rank of the run directories that captures lie in, then the snapshots given by path."""
    folders = {c.resolve().parent for c in captures}
    runs = sorted(f.parent for f in folders if f.name == "traces" and (f.parent / "memory").is_dir())
    if not runs and not snapshots:
        return []
    from perfdoc.analyzers.memory.memory_files import MemoryFiles

    found: list[MemoryFiles] = []
    for run in runs:
        for rank, files in sorted(RunDirectory(run).files_by_rank("memory").items()):
            pickles = [f for f in files if f.suffix == ".pickle" and not f.name.endswith(_MOMENTS)]
            samples = next((f for f in files if f.suffix == ".jsonl"), None)
            if pickles or samples is not None:
                found.append(MemoryFiles(rank=rank, snapshots=pickles, samples=samples))
    return found + [MemoryFiles(rank=None, snapshots=[p], samples=None) for p in snapshots]
