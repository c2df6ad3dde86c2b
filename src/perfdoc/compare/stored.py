"""The JSON files of perfdoc, read back: diagnoses, baselines, records. A file that is none is refused."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from perfdoc.profiling.errors import one_line
from perfdoc.reports.leaves import leaf_values
from perfdoc.results import DIMENSIONS, SCHEMA_VERSION, Diagnosis
from perfdoc.results.names import shorten
from perfdoc.traces import TraceError
from perfdoc.traces.errors import require_regular

DIAGNOSIS = "diagnosis.json"
REPORT = Path("report") / DIAGNOSIS
"""Where a run directory has its own."""
MAX_DIAGNOSIS_BYTES = 512 << 20
_SNIFF_BYTES = 4096
_MAX_NS = 2**61
_T = TypeVar("_T")


def content_of(path: Path, noun: str, *, remedy: str, most_bytes: int) -> bytes:
    """What a file holds. Raises TraceError where it cannot be opened or holds more than any `noun` does."""
    require_regular(path)
    try:
        with path.open("rb") as file:
            # No more is claimed than is there: a limit of half a gigabyte is not what a file takes.
            content = file.read(min(most_bytes, os.fstat(file.fileno()).st_size) + 1)
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.", "Check the path.") from error
    if len(content) > most_bytes:
        raise TraceError(path, f"is too large for a {noun}.", remedy)
    return content


def decoded(path: Path, content: bytes, type_: type[_T], noun: str, *, remedy: str) -> _T:
    """The `noun` that the file's content is. Raises TraceError where it is none."""
    try:
        return msgspec.json.decode(content, type=type_)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TraceError(path, f"is no {noun}: {one_line(error)}.", remedy) from error


def is_diagnosis(path: Path) -> bool:
    """Whether a file is a diagnosis, by its head: a PyTorch trace is JSON as well."""
    head = b""
    with contextlib.suppress(OSError):
        if path.suffix == ".json" and path.is_file():
            with path.open("rb") as file:
                head = file.read(_SNIFF_BYTES)
    return all(f'"{key}"'.encode() in head for key in ("schema_version", "perfdoc_version", "verdict"))


def diagnosis_in(path: Path) -> Path:
    """The diagnosis of a report's folder or of a run directory; any other path is one itself."""
    return next((inside for inside in (path / DIAGNOSIS, path / REPORT) if inside.is_file()), path)


def read_diagnosis(path: Path) -> tuple[Diagnosis, bytes]:
    """A diagnosis.json of this schema whose ledgers are sound, and its content. Raises TraceError."""
    again = "Give the trace, or analyse it again with this version of perfdoc."
    content = content_of(path, "diagnosis", remedy=again, most_bytes=MAX_DIAGNOSIS_BYTES)
    noun = "diagnosis that this perfdoc reads"
    found = decoded(path, content, Diagnosis, noun, remedy=again)
    if found.schema_version.partition(".")[0] != SCHEMA_VERSION.partition(".")[0]:
        what = f"has schema version {shorten(found.schema_version, 48)}; this perfdoc reads {SCHEMA_VERSION}."
        raise TraceError(path, what, again)
    _require_sound(path, found, again)
    return found, content


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
