"""What one argument of `perfdoc diff` stands for: captures to measure, or a diagnosis that is there."""

from __future__ import annotations

import contextlib
import shlex
from pathlib import Path

import msgspec

from perfdoc.reports.leaves import leaf_values
from perfdoc.results import DIMENSIONS, SCHEMA_VERSION, Diagnosis, from_json
from perfdoc.results.names import shorten
from perfdoc.traces import TraceError
from perfdoc.traces.load import find_captures
from perfdoc.traces.regular_file import require_regular

DIAGNOSIS = "diagnosis.json"
MAX_DIAGNOSIS_BYTES = 512 << 20
_SNIFF_BYTES = 4096
_MAX_NS = 2**61


def captures_or_diagnosis(argument: str) -> list[Path] | Path:
    """Captures, or the path of one diagnosis.

    argument: a capture, a folder of captures, a run directory, a glob pattern, several of those in one quoted
    string; or a diagnosis.json, or a folder that holds one and no captures. Raises TraceError.
    """
    path = Path(argument)
    with contextlib.suppress(OSError):
        if path.is_file() and _is_diagnosis(path):
            return path
        if path.is_dir() and (found := _diagnosis_alone_in(path)) is not None:
            return found
    there = False
    with contextlib.suppress(OSError):
        there = path.exists()
    return find_captures([argument] if there else _words(argument))


def _words(argument: str) -> list[str]:
    """A quoted list: by the shell's rules, else as it is."""
    try:
        return shlex.split(argument) or [argument]
    except ValueError:
        return [argument]


def _is_diagnosis(path: Path) -> bool:
    if path.suffix != ".json":
        return False
    with path.open("rb") as file:
        head = file.read(_SNIFF_BYTES)
    return all(f'"{key}"'.encode() in head for key in ("schema_version", "perfdoc_version", "verdict"))


def _diagnosis_alone_in(folder: Path) -> Path | None:
    """The diagnosis of a report's folder, or of a run directory whose captures were cleared away."""
    inner = next((f for f in (folder / DIAGNOSIS, folder / "report" / DIAGNOSIS) if f.is_file()), None)
    if inner is None:
        return None
    try:
        find_captures([str(folder)])
    except TraceError:
        held = [p.name for f in (folder, folder / "traces") if f.is_dir() for p in f.iterdir()]
        if not any(name.endswith((".sqlite", ".nsys-rep")) for name in held):
            return inner
    return None


def read_diagnosis(path: Path) -> Diagnosis:
    """A diagnosis.json whose ledgers are sound. Raises TraceError."""
    require_regular(path)
    again = "Give the trace, or analyse it again with this version of perfdoc."
    try:
        with path.open("rb") as file:
            content = file.read(MAX_DIAGNOSIS_BYTES + 1)
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.", "Check the path.") from error
    if len(content) > MAX_DIAGNOSIS_BYTES:
        raise TraceError(path, "is too large for a diagnosis.", again)
    try:
        found = from_json(content)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise TraceError(path, f"is no diagnosis that this perfdoc reads: {error}.", again) from error
    if found.schema_version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        what = f"has schema version {shorten(found.schema_version, 48)}; this perfdoc reads {SCHEMA_VERSION}."
        raise TraceError(path, what, again)
    _require_sound(path, found, again)
    return found


def _require_sound(path: Path, found: Diagnosis, again: str) -> None:
    """Figures that people changed, or that another tool made up, would be differences of nothing."""
    for rank in found.ranks:
        window, leaves = rank.window, leaf_values(rank.ledger_ns)
        steps = [s.duration_ns for s in window.step_list]
        fits = (
            all(0 <= ns < _MAX_NS for ns in (*leaves, *steps, window.duration_ns))
            and sum(leaves) == window.duration_ns
            and 0 <= window.steps <= 10**6
            and (window.kind != "steps" or (window.steps > 0 and len(steps) == window.steps))
            and all(c.dimension in DIMENSIONS for c in rank.communication)
            and all(map(_possible, (rank.kernels_only_capture, rank.kernels_only_window)))
            and all(map(_possible, rank.communication))
        )
        if not fits:
            raise TraceError(path, f"contradicts itself in the ledger or the steps of {rank.label}.", again)
    kernels = found.analyses.kernels
    if not all(map(_possible, (*kernels.top, *kernels.classes))) or any(k.count == 0 for k in kernels.top):
        raise TraceError(path, "holds impossible kernel times.", again)


def _possible(figures: object) -> bool:
    """Whether no count, size or duration of them is below 0 or beyond what any capture holds."""
    return all(0 <= v < _MAX_NS for v in vars(figures).values() if type(v) is int)
