"""What `--baseline` names: an earlier diagnosis, or the runs that the gate accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from perfdoc.diff.load import Loaded, load
from perfdoc.diff.sources import captures_or_diagnosis
from perfdoc.gate.baseline import Baseline, read_baseline, read_baselines
from perfdoc.traces import TraceError

_REMEDY = "Give a diagnosis.json, a report's folder, or the folder of the gate's baselines."


@dataclass(frozen=True, kw_only=True)
class Given:
    """One of the two."""

    name: str
    diagnosis: Loaded | None = None
    accepted: Mapping[Path, Baseline] | None = None


def read_given(path: Path) -> Given:
    """Read it before any work is done. Raises TraceError."""
    try:
        name = path.resolve().name or str(path)
        if path.is_dir() and (path / "report" / "diagnosis.json").is_file():
            path = path / "report"  # of a run directory, whose captures were analysed
        if path.is_dir() and not (path / "diagnosis.json").is_file():
            found = read_baselines(path)
            if not found:
                raise TraceError(path, "holds neither a diagnosis nor a baseline.", _REMEDY)
            return Given(name=name, accepted=found)
        inner = path / "diagnosis.json" if path.is_dir() else path
        if not inner.exists():
            raise TraceError(path, "is not there.", _REMEDY)
        if _is_diagnosis(inner):
            return Given(name=name, diagnosis=load(str(inner), config=None, step_range=None, jobs=1))
        return Given(name=name, accepted={inner: _accepted(inner)})
    except (OSError, RuntimeError) as error:  # A loop of links is a RuntimeError of resolve.
        raise TraceError(path, f"cannot be read: {error}.", _REMEDY) from error


def _accepted(path: Path) -> Baseline:
    """A file of the gate. What is none may be anything, a capture too: nobody is told to remove it."""
    try:
        return read_baseline(path)
    except TraceError as error:
        raise TraceError(
            path, f"is no diagnosis, and no baseline of the gate: {error.what}", _REMEDY
        ) from error


def _is_diagnosis(path: Path) -> bool:
    try:
        return isinstance(captures_or_diagnosis(str(path)), Path)
    except TraceError:
        return False
