"""The job of `perfdoc capture`: run it, take in what the profiler left, say what is there."""

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from perfdoc.capture.prepare import Plan
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.launch_folder import LaunchFolder
from perfdoc.profiling.nsys.collect import (
    LEFT_OVER,
    LOGS,
    collect_reports,
    reported_ranks,
    reports_folder,
    unfinished_folder,
)
from perfdoc.profiling.nsys.rank import RANK_VARIABLE
from perfdoc.profiling.own.asked_window import ask
from perfdoc.profiling.run_directory import FOLDERS, RunDirectory
from perfdoc.profiling.vocabulary import STEP
from perfdoc.records import dataclass
from perfdoc.results.figures import plural, size
from perfdoc.run.execution import clear_up, wait_for

_NO_STEPS = (
    "no step of the window was seen: does the job call perfdoc.profiling.step, and reach it? "
    "A script without it: --delay and --duration (docs/own_trainer.md)"
)
_STOPPED = "the job was stopped before it left a step of the window"


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How it went."""

    code: int
    """Of the job; 128 and the signal where a stop was asked for."""
    traces: int
    """Captures that are there; 0 also where no step of the window is in them."""


def run(planned: Plan, say: Callable[[str], None]) -> Ended:
    """Run the job to its end and collect. Raises UserError where it cannot be started."""
    environment = dict(os.environ)
    if planned.window is not None:
        ask(planned.window, environment)
    if planned.left_out:
        try:
            os.execvpe(planned.program[0], planned.program, environment)
        except OSError as error:
            raise _cannot_run(planned.program[0], error) from error
    is_new = not planned.run.path.exists()
    try:
        folder = RunDirectory.join(planned.run.path)
        if planned.nsys is not None:
            reports_folder(folder, planned.own)
        launch = LaunchFolder.make()
    except OSError as error:
        raise UserError(str(error)) from error
    launch.live_as("run")
    try:
        if planned.nsys is not None:
            launch.name_in(environment)
            if planned.rank is not None:
                environment[RANK_VARIABLE] = str(planned.rank)
        try:
            code, stop = wait_for(planned.command, environment, passes_on=planned.rank is None)
        except OSError as error:
            _take_away_empty(planned, folder, is_new)
            raise _cannot_run(planned.command[0], error) from error
        if code < 0:
            clear_up(launch)
        ranks = set(launch.ranks())
    finally:
        shutil.rmtree(launch.path, ignore_errors=True)
    code = 128 + stop if stop else 128 - code if code < 0 else code
    if not (seen := _collect(planned, folder, ranks, say)):
        say(_STOPPED if stop else _NO_STEPS)
    if traces := _own_traces(planned, folder):
        held = sum(f.stat().st_size for files in traces.values() for f in files)
        say(f"{folder.path}: {plural(len(traces), 'rank')}, {size(held)}")
    else:
        _take_away_empty(planned, folder, is_new)
    return Ended(code=code, traces=len(traces) if seen else 0)


def _cannot_run(program: str, error: OSError) -> UserError:
    return UserError(f"{program}: cannot be run: {error.strerror}.")


def _own_traces(planned: Plan, folder: RunDirectory) -> Mapping[int, tuple[Path, ...]]:
    """This command's captures by rank: in a shared folder those of other ranks lie beside them."""
    traces = folder.files_by_rank("traces")
    return traces if planned.own is None else {n: f for n, f in traces.items() if n == planned.own}


def _take_away_empty(planned: Plan, folder: RunDirectory, is_new: bool) -> None:
    """Leave nothing where nothing was captured: empty folders of ours, and in a shared one only our own."""
    part = unfinished_folder(folder, planned.own)
    left = [part]
    if planned.own is None:
        within = [folder.path / name for name in (*FOLDERS, LOGS)]
        left += [folder.path / "traces" / LEFT_OVER, *within, *([folder.path] if is_new else ())]
    for path in left:
        with contextlib.suppress(OSError):  # not there, or not empty
            path.rmdir()


def _collect(planned: Plan, folder: RunDirectory, ranks: set[int], say: Callable[[str], None]) -> bool:
    """Take nsys's reports in; whether what was asked for is in them."""
    if planned.nsys is None:
        seen = bool(_own_traces(planned, folder))
    else:
        if planned.ranks is not None:
            ranks &= planned.ranks
        if planned.rank is None:
            ranks |= reported_ranks(folder)
        ranks = ranks or {planned.rank or 0}
        collected = collect_reports(folder, planned.nsys, ranks=ranks, marked=False, own=planned.own)
        for report in collected:
            if report.problem is not None:
                say(f"rank {report.rank}: {report.problem}")
        seen = planned.window is None or any(report.ranges.get(STEP) for report in collected)
    return seen
