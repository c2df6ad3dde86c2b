"""One side of a comparison: measured from captures, or read from a diagnosis."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.analyzers.steps.figures import warmup_steps
from perfdoc.compare.runs import run_manifest, unprofiled_ns
from perfdoc.compare.stored import DIAGNOSIS, REPORT, is_diagnosis, read_diagnosis
from perfdoc.diagnose.asked import facts_given, memory_files
from perfdoc.diagnose.job import job_configuration
from perfdoc.diagnose.measuring import analysed
from perfdoc.knobs.configuration import Configuration
from perfdoc.profiling.environment import encodable
from perfdoc.profiling.manifest import Manifest
from perfdoc.records import dataclass
from perfdoc.results import Diagnosis
from perfdoc.traces import TraceError
from perfdoc.traces.job_facts import JobFacts, common_facts, facts_of_manifest
from perfdoc.traces.load import find_captures
from perfdoc.traces.training_logs.read import read_training_log

MAX_STEPS = 1000
"""Of the last steps; more of them add nothing."""


def steady_steps_ns(run_directory: Path | None) -> I64:
    """Steps of the job without warm-up, profiled steps and the one after them; empty where none are known.
    run_directory: or the log of a trainer.

    Raises TraceError for a log that cannot be read.
    """
    found = unprofiled_ns(run_directory)
    if run_directory is not None and run_directory.is_file():
        found = np.array([step.duration_ns for step in read_training_log(run_directory).steps], np.int64)
    warmup = warmup_steps(found)
    return np.empty(0, np.int64) if warmup is None else found[warmup:][-MAX_STEPS:]


@dataclass(frozen=True, kw_only=True)
class KernelTotal:
    """Kernels of one name over all ranks' windows."""

    kernel_class: str
    count: int
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """One side; what a diagnosis does not hold is empty or None."""

    path: str
    kind: Literal["traces", "diagnosis"]
    diagnosis: Diagnosis
    facts: JobFacts
    world_size: int | None
    configuration: Configuration | None
    """None where nothing says any setting."""
    versions: Mapping[str, str] = field(default_factory=dict)
    kernels: Mapping[str, KernelTotal] = field(default_factory=dict)
    """By name."""
    kernels_complete: bool
    """Whether every name is there; a diagnosis lists the longest alone."""
    logged_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Steady steps that the run directory logged without the profiler."""
    step_leaves: Sequence[Mapping[str, I64]] | None
    """Of each rank of the diagnosis, nanoseconds by leaf and step; None where that is not known."""


def captures_or_diagnosis(argument: str) -> list[Path] | Path:
    """Captures, or the path of one diagnosis.

    argument: a capture, a folder of captures, a run directory, a glob pattern, several of those in one quoted
    string; or a diagnosis.json, or a folder that holds one and no captures. Raises TraceError.
    """
    path = Path(argument)
    if is_diagnosis(path):
        return path
    with contextlib.suppress(OSError):
        if path.is_dir() and (found := _diagnosis_alone_in(path)) is not None:
            return found
    return find_captures(words_of(argument))


def is_of_steps(argument: str) -> bool:
    """Whether it holds steps without a capture: a log, a folder of record(), a run that was not profiled."""
    try:
        captures_or_diagnosis(argument)
    except TraceError:
        path = Path(argument)
        with contextlib.suppress(OSError, ValueError):
            return path.is_file() or (path / "steps").is_dir()
    return False


def words_of(argument: str) -> list[str]:
    """A path that is there, as it is; else a quoted list: by the shell's rules, or as it is."""
    with contextlib.suppress(OSError, ValueError):
        if not Path(argument).exists():
            return shlex.split(argument) or [argument]
    return [argument]


def _diagnosis_alone_in(folder: Path) -> Path | None:
    """The diagnosis of a report's folder, or of a run directory whose captures were cleared away."""
    inner = next((f for f in (folder / DIAGNOSIS, folder / REPORT) if f.is_file()), None)
    if inner is None:
        return None
    try:
        find_captures([str(folder)])
    except TraceError:
        held = [p.name for f in (folder, folder / "traces") if f.is_dir() for p in f.iterdir()]
        if not any(name.endswith((".sqlite", ".nsys-rep", ".perfdoc")) for name in held):
            return inner
    return None


def load(argument: str, request: AnalysisRequest | None = None, *, config: Path | None = None) -> Loaded:
    """Measure or read one side.

    argument: see captures_or_diagnosis. request: how captures are measured. config: the job's settings, where
    no run directory has them. Raises TraceError, ValueError, WorkerLostError.
    """
    found = captures_or_diagnosis(argument)
    given = facts_given((), config)
    if isinstance(found, Path):
        return _from_diagnosis(argument, found, given, config)
    request = replace(request or AnalysisRequest(captures=()), captures=found, given=given, config=config)
    done = analysed(replace(request, memory=memory_files([], found)))
    return measured_side(argument, done.captures, done.diagnosis, done.settings)


def measured_side(
    name: str, captures: Sequence[CaptureMeasurement], diagnosis: Diagnosis, configuration: Configuration
) -> Loaded:
    """A side of captures that were measured, and diagnosed with these settings. Raises TraceError."""
    facts = common_facts([c.facts for c in captures])
    manifest = _manifest(facts.run_directory)
    return Loaded(
        path=encodable(name),
        kind="traces",
        diagnosis=diagnosis,
        facts=facts,
        world_size=facts.world_size
        or max((c.world_size for c in captures if c.world_size is not None), default=None),
        configuration=configuration if configuration.values or configuration.unknown else None,
        versions=dict(manifest.versions) if manifest else {},
        kernels=_totals(
            (k.name, k.kernel_class.name.lower(), k.count, k.total_ns)
            for capture in captures
            for rank in capture.ranks
            for k in rank.kernel_times
        ),
        logged_ns=steady_steps_ns(facts.run_directory),
        kernels_complete=True,
        step_leaves=_step_leaves(diagnosis, captures),
    )


def _from_diagnosis(argument: str, path: Path, given: JobFacts, config: Path | None) -> Loaded:
    diagnosis, _ = read_diagnosis(path)
    if not diagnosis.ranks:
        raise TraceError(
            path, "holds no rank: only memory was looked at.", "Give captures, or their diagnosis."
        )
    run = path.absolute().parent.parent  # RUN/report/diagnosis.json
    manifest = _manifest(run if path.parent.name == "report" else None)
    try:
        facts = (facts_of_manifest(manifest, run) if manifest else JobFacts()).updated(given)
    except ValueError as error:
        what = f"does not fit the settings that go with it: {error}"
        raise TraceError(path, what, "Check run.json and --config-before or --config-after.") from error
    configuration = job_configuration(facts, config)
    totals = _totals((k.name, k.kernel_class, k.count, k.total_ns) for k in diagnosis.analyses.kernels.top)
    return Loaded(
        path=encodable(argument),
        kind="diagnosis",
        diagnosis=diagnosis,
        facts=facts,
        world_size=facts.world_size or diagnosis.mfu.gpus,
        configuration=configuration if configuration.values or configuration.unknown else None,
        versions=dict(manifest.versions) if manifest else {},
        kernels=totals,
        logged_ns=steady_steps_ns(facts.run_directory),
        kernels_complete=sum(t.total_ns for t in totals.values())
        == sum(c.total_ns for c in diagnosis.analyses.kernels.classes),
        step_leaves=None,
    )


def _manifest(run: Path | None) -> Manifest | None:
    return None if run is None or not (run / "run.json").is_file() else run_manifest(run)


def _totals(rows: Iterable[tuple[str, str, int, int]]) -> dict[str, KernelTotal]:
    """By name, of rows of (name, class, calls, nanoseconds)."""
    found: dict[str, KernelTotal] = {}
    for name, kind, count, total_ns in rows:
        old = found.get(name) or KernelTotal(kernel_class=kind, count=0, total_ns=0)
        found[name] = replace(old, count=old.count + count, total_ns=old.total_ns + total_ns)
    return found


def _step_leaves(
    diagnosis: Diagnosis, captures: Sequence[CaptureMeasurement]
) -> Sequence[Mapping[str, I64]] | None:
    """In the order of the diagnosis' ranks, which is not that of the captures."""
    by_device = {
        (i, r.device.ordinal, r.device.process): r.step_ledgers.leaf_ns
        for i, capture in enumerate(captures)
        for r in capture.ranks
    }
    found = [by_device.get((r.input, r.device, r.pid)) for r in diagnosis.ranks]
    known = [leaves for leaves in found if leaves]
    return known if len(known) == len(found) else None
