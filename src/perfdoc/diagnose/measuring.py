"""Measuring many files at once: a map over files, wherever it runs, whose results are sorted here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from perfdoc.analyzers.job import check_distinct
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.measure_device import Also
from perfdoc.analyzers.memory.job import RankMemory, measure_rank_memory
from perfdoc.diagnose.asked import Work
from perfdoc.diagnose.place import Here, Place, T, Task
from perfdoc.diagnose.processes import Processes
from perfdoc.diagnose.rank_order import in_rank_order
from perfdoc.profiling.telling import Telling
from perfdoc.results.figures import plural
from perfdoc.simulator.replay.unedited import KEPT_TASKS_MAX, replay_and_keep
from perfdoc.summaries.alike import check_alike
from perfdoc.summaries.reading import measure_or_explain
from perfdoc.traces import NoGpuActivityError, TraceError
from perfdoc.traces.errors import UnreadableError

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


def measure_all(work: Work, jobs: int, also: Also | None = None, place: Place | None = None) -> Found:
    """Measure everything, on up to `jobs` processes.

    also: one more analysis of each device, in place of the replay; it must pickle. place: where else than in
    processes of this machine. Of several captures those that cannot be read are left out where the work says
    so, but not all of them.
    Raises TraceError where a file cannot be measured or two are of one rank, WorkerLostError where a
    process is gone.
    """
    if also is None and work.replay:
        also = replaying(len(work.captures))
    if place is None:
        workers = min(jobs, len(work.captures) + len(work.memory))
        place = Processes(workers) if workers > 1 else Here()
    measure = _measure_or_leave_out if work.leave_out and len(work.captures) > 1 else measure_or_explain
    measure = partial(measure, alone=isinstance(place, Here))
    tasks: list[Task[_Result]] = [
        Task(files=[path], work=partial(measure, path, work.request, work.given, also, work.comm_kernel))
        for path in work.captures
    ]
    tasks += [Task(files=files.paths, work=partial(measure_rank_memory, files)) for files in work.memory]
    results = _run(place, tasks, of_them(len(work.captures), len(work.memory)))
    captures = in_rank_order([r for r in results if isinstance(r, CaptureMeasurement)])
    unread = [r for r in results if isinstance(r, UnreadableError)]
    if unread and not captures:
        raise next(r for r in results if isinstance(r, TraceError))
    check_distinct(captures)
    check_alike(captures)
    return Found(
        captures=captures,
        silent=[r for r in results if isinstance(r, NoGpuActivityError)],
        memory=[r for r in results if isinstance(r, RankMemory)],
        unread=unread,
    )


def _measure_or_leave_out(
    *asked: object, alone: bool
) -> CaptureMeasurement | NoGpuActivityError | UnreadableError:
    """As measure_or_explain, but a capture that cannot be read is an answer too."""
    try:
        return measure_or_explain(*asked, alone=alone)  # type: ignore[arg-type]
    except UnreadableError as error:
        return error


def of_them(captures: int, memory: int) -> str:
    """What the files are, where they are not all captures: a rank's record of memory is counted as one.

    >>> of_them(2, 2)
    ' (2 captures, memory of 2 ranks)'
    """
    if not memory:
        return ""
    return f" ({plural(captures, 'capture')}, memory of {plural(memory, 'rank')})"


def replaying(captures: int) -> Also:
    """The replay of each rank of this many captures.

    The bound on work kept for the replay of the job is shared evenly between ranks.
    """
    return partial(replay_and_keep, keep_tasks=KEPT_TASKS_MAX // max(captures, 1))


def _run(place: Place, tasks: Sequence[Task[T]], of: str = "") -> list[T]:
    """Results in the order of the tasks, whatever the order in which they came."""
    found: dict[int, T] = {}
    with closing(place.run(tasks)) as coming:
        for i, result in _progress(coming, len(tasks), of):
            found[i] = result
    return [found[i] for i in range(len(tasks))]


def _progress(results: Iterable[tuple[int, T]], count: int, of: str) -> Iterator[tuple[int, T]]:
    """Pass results on; say what is done once the work has lasted."""
    telling = Telling()
    for done, result in enumerate(results, 1):
        yield result
        if done < count:
            telling.say(f"{done} of {count} files analysed{of}")
