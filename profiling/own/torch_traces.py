"""`torch.profiler.profile(**torch_profiler(steps=(5, 8), folder="run"))`: traces for `perfdoc analyze`."""

import importlib
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.errors import TraceError, one_line
from perfdoc.profiling.own.asked_window import window_of_steps
from perfdoc.profiling.own.following import attached, warn
from perfdoc.profiling.process import own_rank
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.whole_file import whole_file
from perfdoc.profiling.window import known_arguments, sync_events


def torch_profiler(
    steps: tuple[int, int], folder: str | Path, *, ranks: Collection[int] | None = None, **more: Any
) -> dict[str, Any]:
    """Arguments of torch.profiler.profile for steps (first, end), counted from where the profiler starts.

    The end is not in them. Each rank writes `folder`/traces/rank<N>.json.gz when the last is over, whole
    or not at all; `perfdoc analyze folder` reads them. ranks: those that write one; None for all.
    `more` goes to the profiler. One step before the first warms the profiler up.

    Raises ValueError for steps that are none, TraceError where this rank has a trace there already or the
    folder cannot be made.
    """
    window = window_of_steps(steps, None if ranks is None else tuple(ranks))
    profiler = importlib.import_module("torch.profiler")
    run = RunDirectory.join(Path(folder))
    rank, _ = own_rank()
    if (path := run.trace_path(rank, "json.gz")).exists():
        raise TraceError(path, "exists and is not overwritten.", "Give another folder.")
    cuda = profiler.ProfilerActivity.CUDA in profiler.supported_activities()
    activities = [profiler.ProfilerActivity.CPU] + [profiler.ProfilerActivity.CUDA] * cuda
    if not window.has_rank(rank):
        return {"activities": activities, "schedule": lambda _: profiler.ProfilerAction.NONE}
    arguments: dict[str, Any] = {
        "activities": activities,
        "schedule": _Schedule(
            profiler.schedule(
                wait=max(0, window.start - 1), warmup=min(1, window.start), active=window.steps, repeat=1
            ),
            window.start,
        ),
        "on_trace_ready": _Writer(run),
        "record_shapes": True,
        "acc_events": True,
    }
    if cuda and (events := sync_events()) is not None:
        arguments["experimental_config"] = events
    return known_arguments(profiler.profile, arguments) | more


class _Schedule:
    """torch's schedule, which it asks at the start of every step; the marks are made on the way."""

    def __init__(self, inner: Callable[[int], Any], first: int) -> None:
        self._inner, self._first = inner, first
        self._marked = False

    def __call__(self, step: int) -> Any:
        if step == self._first:
            attached.expect(True)
        elif step > self._first and not self._marked:
            # Asked while the profiler still collects the step before.
            self._marked = True
            if ranges.on():
                attached.mark()
        return self._inner(step)


class _Writer:
    """Writes the trace, and what else the analyses want of this rank."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run

    def __call__(self, profile: Any) -> None:
        from perfdoc.profiling.distributed import collectives
        from perfdoc.profiling.logs import write_collectives

        rank, _ = own_rank()
        path = self._run.trace_path(rank, "json.gz")
        try:
            with whole_file(path) as part:
                profile.export_chrome_trace(str(part))
            if records := collectives.drain():
                write_collectives(self._run.collectives_path(rank), records)
        except Exception as error:  # noqa: BLE001 - whatever the profiler's, training goes on
            warn(f"no trace: {one_line(error)}")
        else:
            sys.stderr.write(f"perfdoc: rank {rank}: {path}\n")
        attached.expect(False)
