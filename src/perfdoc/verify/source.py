"""The run, or the diagnosis, that a verification starts from."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from perfdoc import diagnosis as d
from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.manifest import Manifest
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.traces import TraceError
from perfdoc.traces.regular_file import require_regular

MAX_DIAGNOSIS_BYTES = 256 << 20
_OURS = re.compile(rb'\s{0,100}\{\s{0,100}"schema_version"')


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """A diagnosis and its serial form's digest."""

    diagnosis: d.Diagnosis
    sha256: str
    analysed_now: bytes | None
    """The serial form, where it was not there before."""


def run_manifest(path: Path) -> Manifest:
    """The manifest of a run directory. Raises TraceError in one line where there is none."""
    try:
        return RunDirectory.open(path).manifest()
    except CaptureError as error:
        raise TraceError(error.path, error.what, error.remedy) from error


def diagnosed(path: Path) -> Diagnosed:
    """A diagnosis.json, or that of a run directory's report; of a run or trace without one it is made now.

    Raises TraceError.
    """
    if is_diagnosis(path):
        return _read(path)
    stored = path / "report" / "diagnosis.json"
    if path.is_dir() and stored.is_file():
        return _read(stored)
    return _analysed(path)


def is_diagnosis(path: Path) -> bool:
    """Whether a file is one of perfdoc's own: a PyTorch trace is JSON as well."""
    if path.suffix != ".json" or not path.is_file():
        return False
    with path.open("rb") as file:
        return _OURS.match(file.read(300)) is not None


def _read(path: Path) -> Diagnosed:
    require_regular(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_DIAGNOSIS_BYTES + 1)
        if len(content) > MAX_DIAGNOSIS_BYTES:
            raise TraceError(path, "is too large for a diagnosis.", "Analyse again.")
        found = d.from_json(content)
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.", "Check the path.") from error
    except (msgspec.MsgspecError, RecursionError) as error:
        what = f"is no diagnosis of this version of perfdoc: {error}."
        raise TraceError(path, what, "Analyse again: perfdoc analyze … --force") from error
    return Diagnosed(diagnosis=found, sha256=hashlib.sha256(content).hexdigest(), analysed_now=None)


def _analysed(path: Path) -> Diagnosed:
    """Measure and judge now. Raises TraceError."""
    from perfdoc.analyzers.device.window_request import WindowRequest
    from perfdoc.diagnose import diagnose
    from perfdoc.job_configuration import job_configuration
    from perfdoc.measuring import WorkerLostError, measure_all
    from perfdoc.memory_inputs import memory_files
    from perfdoc.traces.job_facts import JobFacts, common_facts
    from perfdoc.traces.load import find_captures
    from perfdoc.work import Work

    captures = find_captures([str(path)])
    work = Work(
        captures=captures,
        memory=memory_files([], captures),
        request=WindowRequest(),
        given=JobFacts(),
        replay=True,
    )
    try:
        found = measure_all(work, os.cpu_count() or 1)
    except WorkerLostError as error:
        raise TraceError(path, f"was not analysed: {error}", "Try again.") from error
    if not found.captures and found.silent:
        raise found.silent[0]
    facts = common_facts([c.facts for c in found.captures])
    result = diagnose(found.captures, found.silent, found.memory, job_configuration(facts, None))
    serial = d.to_json(result)
    return Diagnosed(diagnosis=result, sha256=hashlib.sha256(serial).hexdigest(), analysed_now=serial)
