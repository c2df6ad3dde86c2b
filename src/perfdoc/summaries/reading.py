"""A capture's measurement, from its trace or from the summary that stands for it."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.efficiency.bounds import BOUNDS
from perfdoc.analyzers.host.calls import CallKind
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.measure import CaptureMeasurement, measure_capture
from perfdoc.analyzers.measure_device import DeviceAnalysis
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.results.names import shorten
from perfdoc.results.replay import Replay
from perfdoc.simulator.engine.graph import EdgeKind, TaskKind
from perfdoc.simulator.work.rank import rank_work
from perfdoc.summaries.content import Kept, KeptTasks, Measured, joined, keep_tasks_of, needs_kept
from perfdoc.traces import NoGpuActivityError, Note, TraceError
from perfdoc.traces.columns import Column
from perfdoc.traces.errors import UnreadableError
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import content_sha256
from perfdoc.traces.summary_file import Head, is_summary, read_sections
from perfdoc.version import __version__

OF_THE_JOB = frozenset(
    {
        *("cores", "flops_convention", "flops_per_step", "left_out", "nccl_version"),
        *("run_directory", "sources", "torch_version"),
    }
)
"""Facts that the measurement of one rank never reads: they may be given to `analyze` alone."""
_SAID_OF = ("recompute",)
"""Facts of which a rank's measurement repeats who said them."""


def words_of(request: AnalysisRequest) -> dict[str, str]:
    """The options that make this request, by name."""
    found: dict[str, str] = {}
    window = request.window
    if window.bounds_ns is not None:
        found["--window"] = ",".join(f"{t}ns" for t in window.bounds_ns)
    elif window.range_pattern is not None:
        found["--window"] = f"range:{window.range_pattern.pattern}"
    elif window.whole_capture:
        found["--window"] = "capture"
    for option, pattern in (
        ("--step-range", window.step_pattern),
        ("--data-range", window.data_pattern),
        ("--comm-kernel", request.comm_kernel),
    ):
        if pattern is not None:
            found[option] = pattern.pattern
    return found


def said(words: Mapping[str, str]) -> str:
    """The options as they are typed.

    >>> said({"--window": "capture", "--step-range": "a b"})
    "--window capture --step-range 'a b'"
    """
    return " ".join(f"{option} {shlex.quote(value)}" for option, value in words.items()) or "no option"


def other_facts(summary: JobFacts, given: JobFacts) -> tuple[JobFacts, list[str]]:
    """The facts with those that are given, and the names of those that the summary was measured without.

    Raises ValueError, one line, where sizes contradict each other.
    """
    facts = summary.updated(given) if given != JobFacts() else summary
    names = [f.name for f in fields(JobFacts) if f.name not in OF_THE_JOB]
    other = [n for n in names if getattr(facts, n) != getattr(summary, n)]
    other += [n for n in _SAID_OF if n not in other and facts.sources.get(n) != summary.sources.get(n)]
    return facts, other


_OF_A_CAPTURE = frozenset({"the capture", "derived"})
"""Sources of facts that nobody gave: one rank's capture may lack what another's says."""


def check_alike(captures: Sequence[CaptureMeasurement]) -> None:
    """Refuse a summary that was measured with other facts than the first trace; without traces, than the
    first summary.

    Traces are read with what is given now; a summary holds what was given then, and its figures rest on it.
    Raises TraceError, which names the summary.
    """
    kinds = [is_summary(c.path) for c in captures]
    if not any(kinds):
        return
    summaries = [c for c, kind in zip(captures, kinds, strict=True) if kind]
    usual = summaries[0] if all(kinds) else captures[kinds.index(False)]
    others = _told(usual.facts)
    for one in summaries:
        facts = _told(one.facts)
        if facts != others:
            names = ", ".join(n for n in {**facts, **others} if facts.get(n) != others.get(n))
            raise TraceError(
                one.path,
                f"was summarized with other facts of the job than {usual.path} has: {names}.",
                "Summarize all with the same --set and --config, or give the traces.",
            )


def _told(facts: JobFacts) -> Mapping[str, Any]:
    """What somebody said of the job, and the measurement of a rank may rest on."""
    return {
        f.name: value
        for f in fields(facts)
        if f.name not in OF_THE_JOB
        and facts.sources.get(f.name) not in _OF_A_CAPTURE
        and (value := getattr(facts, f.name)) not in (None, ())
    }


_T = TypeVar("_T")
_SHOWN = 300
_AGAIN = "Write it again from the trace: perfdoc summarize TRACE."


def measure_or_explain(
    path: Path, request: AnalysisRequest, also: DeviceAnalysis | None = None, *, alone: bool = True
) -> CaptureMeasurement | NoGpuActivityError:
    """As measure_capture, of a trace or of a summary, alike but for the file's name. A capture without GPU
    activity is an answer, not the end of the others.

    Raises UnreadableError where it cannot be read or a summary is damaged, TraceError where it has nothing
    that is asked, or a summary answers something else.
    """
    if not is_summary(path):
        try:
            return measure_capture(
                path, request.window, request.given, also, request.comm_kernel, alone=alone
            )
        except NoGpuActivityError as error:
            return error
    head, sections = read_sections(path, [0])
    _require_own(path, head)
    _require_asked(path, head, request)
    measured = _decoded(path, sections[0], Measured)
    if measured.silent is not None:
        silent = measured.silent
        return NoGpuActivityError(path, silent.what, silent.remedy, silent.holds)
    assert measured.capture is not None
    if measured.capture.format != head.format:
        raise UnreadableError(path, "holds something else than a measurement: of another format.", _AGAIN)
    facts, note = _facts(path, head, measured, request.given)
    if also is None or also is rank_work:
        found = joined(measured, None, path, facts, work_alone=also is rank_work)
    else:
        found = joined(measured, _kept(path, head, measured, also), path, facts)
    return found if note is None else replace(found, notes=[*found.notes, note])


def types_digest() -> str:
    """Of what this perfdoc's summaries hold: types, and what the numbers in columns of codes stand for."""
    from perfdoc.traces.codec import digest

    found = [digest(kind) for kind in (Measured, Kept, Column, KernelClass, TaskKind, EdgeKind, CallKind)]
    return hashlib.sha256(repr((found, DIMENSIONS, BOUNDS)).encode()).hexdigest()


def run_json_beside(path: Path) -> tuple[Path, str] | None:
    """The run directory that a file of captures lies in, and the SHA-256 of its run.json."""
    folder = path.resolve().parent
    manifest = folder.parent / "run.json"
    if folder.name != "traces" or not manifest.is_file():
        return None
    try:
        return manifest.parent, content_sha256(manifest)
    except OSError as error:
        raise TraceError(manifest, f"cannot be opened: {error.strerror}.") from error


def _require_own(path: Path, head: Head) -> None:
    if head.perfdoc != __version__:
        what = f"was written by perfdoc {shorten(head.perfdoc, 60)}; this is {__version__}."
        raise TraceError(
            path, what, "Write it again from the trace with this version: perfdoc summarize TRACE."
        )
    if head.types != types_digest():
        what = f"was written by another perfdoc {__version__}, which measures other things."
        raise TraceError(path, what, _AGAIN)


def _require_asked(path: Path, head: Head, request: AnalysisRequest) -> None:
    asked = words_of(request)
    if asked != head.request:
        raise TraceError(
            path,
            f"was summarized with {shorten(said(head.request), _SHOWN)}; "
            f"{shorten(said(asked), _SHOWN)} is asked for.",
            "Give the same options, or the trace itself.",
        )


def _decoded(path: Path, content: bytes, kind: type[_T]) -> _T:
    from perfdoc.summaries.codec import decode

    try:
        found = decode(content, kind)
        if isinstance(found, Measured):
            _require_whole(found)
        return found
    except ValueError as error:
        why = shorten(" ".join(str(error).split()), 200)
        raise UnreadableError(path, f"holds something else than a measurement: {why}.", _AGAIN) from error


def _require_whole(measured: Measured) -> None:
    capture = measured.capture
    if (capture is None) is (measured.silent is None):
        raise ValueError("neither a measurement nor the reason why there is none")
    devices = [above.devices for above in measured.above]
    if capture is not None and not len(capture.ranks) == len(devices) >= 1 <= min(devices, default=0):
        raise ValueError("its ranks are not what was measured of them")


def _is_of(kept: KeptTasks, replay: Replay | None) -> bool:
    """Whether tasks are those of a replay, by how many they are, over how many steps."""
    rebuilt = kept.rebuilt
    held = len(rebuilt.start_ns), len(rebuilt.ranks[0].step_ends_ns)
    return replay is not None and held == (replay.tasks, replay.steps)


def _facts(path: Path, head: Head, measured: Measured, given: JobFacts) -> tuple[JobFacts, Note | None]:
    """The facts, with the run directory where its run.json is the same as when the trace was read; and a note
    where that is not beside the summary."""
    assert measured.capture is not None
    # Which folder is read is for where the summary lies to say, never for what is in it.
    facts, note = replace(measured.capture.facts, run_directory=None), None
    beside = run_json_beside(path)
    if beside is None and head.run_sha256:
        note = Note(
            code="summary-without-run",
            message="The trace lay in a run directory, and its summary does not: the step log, settings and "
            "the record of memory are missing.",
            remedy="Copy run.json, logs and memory of the run too, and the summary into its folder traces.",
        )
    elif beside is not None:
        if beside[1] != head.run_sha256:
            raise TraceError(path, f"was summarized beside another run.json than {beside[0]} has.", _AGAIN)
        facts = replace(facts, run_directory=beside[0])
    try:
        facts, other = other_facts(facts, given)
    except ValueError as error:
        what = f"does not fit what is given: {error}"
        raise TraceError(path, what, "Check --set and --config.") from error
    if other:
        names = ", ".join(other)
        what = f"was summarized without these facts of the job, or with others: {names}."
        raise TraceError(path, what, "Give them to perfdoc summarize (--set, --config), or give the trace.")
    return facts, note


def _kept(path: Path, head: Head, measured: Measured, also: DeviceAnalysis) -> list[KeptTasks | None]:
    """By rank what the replay of so many captures keeps."""
    keep_tasks = keep_tasks_of(also)
    if keep_tasks is None:
        raise TraceError(path, "is a summary, which holds no timeline.", "Give the trace.")
    if not head.replayed:
        what = "was summarized with --no-replay."
        raise TraceError(path, what, "Analyse it with --no-replay, or summarize without.")
    wanted = needs_kept(measured, keep_tasks)
    if not any(wanted):
        return [None] * len(wanted)
    _, (content,) = read_sections(path, [1])
    tasks = _decoded(path, content, Kept).tasks
    if len(tasks) != len(wanted):
        raise UnreadableError(path, "holds something else than a measurement: tasks of other ranks.", _AGAIN)
    for kept, above, needed in zip(tasks, measured.above, wanted, strict=True):
        if needed and kept is None:
            raise TraceError(
                path,
                f"was summarized for {head.ranks:,} ranks, and its replay is too long to keep for so many; "
                "fewer need it.",
                "Summarize again with --ranks N, as many captures as are analysed together; or analyse with "
                "--no-replay.",
            )
        if kept is not None and not _is_of(kept, above.replay):
            raise UnreadableError(path, "holds something else than a measurement: other tasks.", _AGAIN)
    return [kept if needed else None for kept, needed in zip(tasks, wanted, strict=True)]
