"""The directory that a run leaves behind: where everything in it lies, and that nothing is overwritten.

run.json                        manifest (`perfdoc.profiling.manifest`)
traces/rank<N>.<suffix>         .json.gz of the PyTorch profiler, or .nsys-rep and .sqlite of nsys
collectives/rank<N>.jsonl       every collective of the profiled steps
memory/rank<N>.pickle           CUDA memory snapshots; rank<N>.jsonl: figures by step
steps/rank<N>.jsonl             every step
ended                           of a training that `record` followed: it has ended
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.manifest import Manifest, Status, encode, read_manifest
from perfdoc.profiling.whole_file import PART, whole_file
from perfdoc.records import dataclass

ENDED = "ended"
"""An empty file: a training that was recorded has come to its end. `perfdoc run` says it in run.json."""
FOLDERS = ("traces", "collectives", "memory", "steps")
_RANK_FILE = r"rank(0|[1-9][0-9]{0,6})\.(.+)"


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run directory; make one with `create` or `open`."""

    path: Path

    @classmethod
    def create(cls, path: Path) -> RunDirectory:
        """Make a new run directory.

        Raises TraceError where the path is taken by anything but an empty directory, or cannot be written.
        """
        try:
            if path.exists() and (not path.is_dir() or any(path.iterdir())):
                remedy = "Give another directory: a run overwrites nothing."
                raise TraceError(path, "is not empty." if path.is_dir() else "is a file.", remedy)
        except OSError as error:
            raise _not_made(path, error) from error
        return cls.join(path)

    @classmethod
    def join(cls, path: Path) -> RunDirectory:
        """The run directory of a run that several machines take part in; its folders are made where missing.

        Raises TraceError where it cannot be written.
        """
        try:
            for folder in FOLDERS:
                (path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _not_made(path, error) from error
        return cls(path)

    @property
    def is_used(self) -> bool:
        """Whether a run has begun in it: a manifest or a step was written."""
        steps = (self.path / "steps").glob("rank*.jsonl")
        return self.manifest_path.exists() or any(file.stat().st_size > 0 for file in steps)

    def unfinished(self) -> tuple[Path, ...]:
        """Files and folders whose writer did not come to its end."""
        folders = [self.path, *(self.path / folder for folder in FOLDERS)]
        return tuple(sorted(part for folder in folders for part in folder.glob(f"{PART}*")))

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """An existing run directory. Raises TraceError where there is none."""
        if not all((path / folder).is_dir() for folder in ("traces", "steps")):
            raise TraceError(path, "is no run directory.", "Give one that `perfdoc run` made.")
        return cls(path)

    def trace_path(self, rank: int, suffix: str) -> Path:
        """`traces/rank<N>.<suffix>`; suffix without its leading dot, such as json.gz."""
        return self.path / "traces" / f"rank{rank}.{suffix}"

    def collectives_path(self, rank: int) -> Path:
        """`collectives/rank<N>.jsonl`."""
        return self.path / "collectives" / f"rank{rank}.jsonl"

    def steps_path(self, rank: int) -> Path:
        """`steps/rank<N>.jsonl`."""
        return self.path / "steps" / f"rank{rank}.jsonl"

    def memory_path(self, rank: int, suffix: str) -> Path:
        """`memory/rank<N>.<suffix>`: jsonl, pickle, start.pickle or oom.pickle."""
        return self.path / "memory" / f"rank{rank}.{suffix}"

    @property
    def manifest_path(self) -> Path:
        """`run.json`."""
        return self.path / "run.json"

    def write_manifest(self, manifest: Manifest) -> None:
        """Write run.json once. Raises TraceError where there is one already."""
        with whole_file(self.manifest_path) as part:
            part.write_bytes(encode(manifest))

    def manifest(self) -> Manifest:
        """Read run.json. Raises TraceError as `read_manifest` does."""
        return read_manifest(self.manifest_path)

    def end(self, status: Status, reason: str = "", *, ranges: str = "") -> Manifest:
        """Note in run.json how the run ended and when; the new manifest.

        ranges: through what ranges were emitted, where that is known only now.
        """
        before = self.manifest()
        ended = msgspec.structs.replace(
            before,
            status=status,
            end_reason=reason,
            ended_utc=utc_now(),
            profile=msgspec.structs.replace(before.profile, ranges=ranges or before.profile.ranges),
        )
        with whole_file(self.manifest_path, replace=True) as part:
            part.write_bytes(encode(ended))
        return ended

    def files_by_rank(self, folder: str) -> Mapping[int, tuple[Path, ...]]:
        """Files of one of FOLDERS by rank, ranks ascending; unfinished ones (`.part-...`) are left out."""
        assert folder in FOLDERS, folder
        found: dict[int, list[Path]] = {}
        for file in sorted((self.path / folder).glob("rank*")):
            if (match := re.fullmatch(_RANK_FILE, file.name)) is not None and file.is_file():
                found.setdefault(int(match[1]), []).append(file)
        return {rank: tuple(found[rank]) for rank in sorted(found)}


def _not_made(path: Path, error: OSError) -> TraceError:
    return TraceError(path, f"cannot be made: {error.strerror}.", "Give a directory that you may write to.")


def utc_now() -> str:
    """This moment as the manifest writes it: 2026-11-21T01:22:11Z."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
