"""From captures to their diagnosis: one way for the command, a comparison, a notebook and an agent."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import field, replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from perfdoc.analyzers.job import check_distinct
from perfdoc.analyzers.measure import CaptureMeasurement, same_last
from perfdoc.analyzers.measure_device import DeviceAnalysis
from perfdoc.analyzers.memory.job import RankMemory
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.workers import Here, Place, Processes, Task
from perfdoc.profiling.copies import copies_of
from perfdoc.profiling.telling import Telling, part, stage
from perfdoc.records import dataclass
from perfdoc.results.figures import plural
from perfdoc.results.names import base_name
from perfdoc.simulator.replay.unedited import KEPT_TASKS_MAX, replay_and_keep
from perfdoc.summaries.reading import check_alike, measure_or_explain
from perfdoc.traces import NoGpuActivityError, Note, TraceError
from perfdoc.traces.errors import UnreadableError
from perfdoc.traces.load import content_size

if TYPE_CHECKING:
    from perfdoc.knobs.configuration import Configuration
    from perfdoc.results import Diagnosis

MEASURED_FRAC = 0.75
"""Of an analysis, what measuring takes; the rest is the diagnosis and the pages."""
_ALONE_BYTES, _PACKED = 15_000_000, 15
"""Files of less are measured here before another process has imported what measures (0.6 s, as much CPU);
gzip makes JSON about so many times smaller."""
_Result: TypeAlias = CaptureMeasurement | NoGpuActivityError | UnreadableError | RankMemory


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was measured."""

    captures: list[CaptureMeasurement]
    silent: list[NoGpuActivityError]
    """Captures without GPU activity."""
    memory: list[RankMemory]
    unread: list[UnreadableError] = field(default_factory=list)
    """Captures that were left out."""


def measure_all(
    request: AnalysisRequest, also: DeviceAnalysis | None = None, place: Place | None = None
) -> Found:
    """Measure everything, on as many processes as the request says.

    also: one more analysis of each device, in place of the replay; it must pickle. place: where else than in
    processes of this machine. Of several captures those that cannot be read are left out where the request
    says so, but not all of them. Raises TraceError where a file cannot be measured or two are of one rank,
    WorkerLostError where a process is gone.
    """
    captures, memory = request.captures, request.memory
    if also is None and request.replay:
        also = replaying(len(captures))
    if place is None:
        paths = [*captures, *(path for files in memory for path in files.paths)]
        packed = _bytes([path for path in paths if path.suffix == ".gz"])
        small = _bytes(paths) + (_PACKED - 1) * packed < _ALONE_BYTES
        workers = 1 if small else min(request.jobs, len(captures) + len(memory))
        place = Processes(workers) if workers > 1 else Here()
    measure = partial(
        _measure_or_leave_out if request.leave_out and len(captures) > 1 else measure_or_explain,
        request=replace(request, captures=(), memory=()),  # of which every worker gets a copy
        also=also,
        alone=isinstance(place, Here),
    )
    tasks: list[Task[_Result]] = [Task(files=[path], work=partial(measure, path)) for path in captures]
    if memory:
        from perfdoc.analyzers.memory.snapshot import measure_rank_memory

        tasks += [Task(files=files.paths, work=partial(measure_rank_memory, files)) for files in memory]
    of = f" ({plural(len(captures), 'capture')}, memory of {plural(len(memory), 'rank')})" if memory else ""
    results: list[_Result] = []
    telling = Telling()
    ends = _parts(tasks)
    if tasks:
        part(0.0, ends[0])
        stage(f"reading {base_name(str(tasks[0].files[0]))} ({_bytes(tasks[0].files) / 1e6:,.1f} MB)")
    with closing(place.run(tasks)) as coming:
        for number, result in enumerate(coming, start=1):
            results.append(result)
            if number < len(tasks):
                part(ends[number - 1], ends[number])
                telling.say(f"{number} of {len(tasks)} files analysed{of}")
    made: dict[int, Any] = {i: r for i, r in enumerate(results) if isinstance(r, CaptureMeasurement)}
    if last := same_last([rank for r in made.values() for rank in r.ranks]):
        asked = replace(request, captures=(), memory=(), window=replace(request.window, last=last))
        again = [i for i, r in made.items() if (last == "goes") != r.ranks[0].last_left_out]
        tasks = [Task(files=[captures[i]], work=partial(measure, captures[i], request=asked)) for i in again]
        with closing(place.run(tasks)) as coming:
            made |= zip(again, coming, strict=True)
    part(MEASURED_FRAC, 1.0)
    measured = in_rank_order(list(made.values()))
    unread = [r for r in results if isinstance(r, UnreadableError)]
    if unread and not measured:
        raise next(r for r in results if isinstance(r, TraceError))
    if request.leave_out:
        measured, short = _cut_short(measured)
        unread += short
    check_distinct(measured)
    check_alike(measured)
    return Found(
        captures=measured,
        silent=[r for r in results if isinstance(r, NoGpuActivityError)],
        memory=[r for r in results if isinstance(r, RankMemory)],
        unread=unread,
    )


def _cut_short(captures: list[CaptureMeasurement]) -> tuple[list[CaptureMeasurement], list[UnreadableError]]:
    """Without those that break off before they have run as long as a step of others, which could be told of
    no rank then. What runs longer has steps, whose names may have stood behind: that is told."""
    windows = [rank.window for capture in captures for rank in capture.ranks]
    step_ns = min((w.duration_ns / w.steps for w in windows if w.steps), default=0)
    whole, short = [], []
    for one in captures:
        if all(n.code != "broken-off" for n in one.notes) or any(r.window.steps for r in one.ranks):
            whole.append(one)
        elif max(rank.span_ns[1] - rank.span_ns[0] for rank in one.ranks) < step_ns:
            short.append(UnreadableError(one.path, "breaks off before its first step ends.", _AGAIN))
        else:
            whole.append(replace(one, notes=[*one.notes, _NAMES_NO_STEP]) if step_ns else one)
    return whole, short


_AGAIN = "Copy or export it again."
_UNNAMED = "The file breaks off before it names a step, where others name theirs: no figure is of steps."
_NAMES_NO_STEP = Note(code="names-no-step", message=_UNNAMED, remedy=_AGAIN)


def _parts(tasks: Sequence[Task[_Result]]) -> list[float]:
    """How much of the whole lies behind each task, by what it reads."""
    sizes = [1 + _bytes(task.files) for task in tasks]
    return [MEASURED_FRAC * done / sum(sizes) for done in accumulate(sizes)]


def _bytes(paths: Sequence[Path]) -> int:
    """Of files that are there; reading tells of those that are gone."""
    total = 0
    for path in paths:
        with suppress(OSError):
            total += content_size(path)
    return total


def in_rank_order(captures: Sequence[CaptureMeasurement]) -> list[CaptureMeasurement]:
    """By the ranks that captures say they are, as given where one does not say: which of two equals is named,
    and the clock that others are held against, must not depend on the order of files."""
    ranks = [min((r.device.rank for r in c.ranks if r.device.rank is not None), default=-1) for c in captures]
    if -1 in ranks:
        return list(captures)
    return [captures[i] for i in sorted(range(len(captures)), key=ranks.__getitem__)]


def _measure_or_leave_out(
    path: Path, **options: Any
) -> CaptureMeasurement | NoGpuActivityError | UnreadableError:
    """As measure_or_explain, but a capture that cannot be read is an answer too."""
    try:
        return measure_or_explain(path, **options)
    except UnreadableError as error:
        return error


def replaying(captures: int) -> DeviceAnalysis:
    """The replay of each rank of this many captures.

    The bound on work kept for the replay of the job is shared evenly between ranks.
    """
    return partial(replay_and_keep, keep_tasks=KEPT_TASKS_MAX // max(captures, 1))


@dataclass(frozen=True, kw_only=True)
class Analysed:
    """A diagnosis, and what it was made from."""

    diagnosis: Diagnosis
    captures: Sequence[CaptureMeasurement]
    """None where memory alone was looked at."""
    settings: Configuration
    """By which the diagnosis goes."""


def analysed(request: AnalysisRequest, *, place: Place | None = None) -> Analysed:
    """Measure and diagnose.

    place: see measure_all. Raises TraceError (NoGpuActivityError where no capture shows any activity) and
    WorkerLostError.
    """
    found = measure_all(request, place=place)
    if not found.captures and found.silent:
        raise found.silent[0]
    stage("diagnosing")
    from perfdoc.diagnose.diagnosis import diagnosis_of  # the command imports it beside the reading

    with copies_of(request.jobs):
        diagnosis, settings = diagnosis_of(found, request.config)
    return Analysed(diagnosis=diagnosis, captures=found.captures, settings=settings)
