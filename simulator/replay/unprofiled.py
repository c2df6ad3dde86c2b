"""A profiled window as it would be without the profiler, as far as the run's step log tells.

Collections of garbage look at every object that is alive, the profiler's records among them: of a run of the
trainer they took 374 ms under the profiler and 194 ms without. What removing them saves is the latter; how
often there are any is counted in `Occasional`. One slow batch among those of the window is no more than the
log has of them. And on
a rank that trains on the CPU the profiler writes down every operator: there steps of 290 ms took 330.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.figures import warmup_steps
from perfdoc.analyzers.steps.log import LoggedSteps, of_the_job
from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent
from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.replay.basis import FREE_STEPS_MIN, Counted, collections_of
from perfdoc.simulator.replay.edits.edit import with_durations
from perfdoc.simulator.replay.edits.host import without_host_time
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.simulator.replay.unedited import path_parts

_KEEP_MIN_FRAC = 0.5
"""Less is not believed of computation: other work on the machine made the difference."""
_UNCHANGED_FRAC = 0.995
_APART_FRAC = 0.5
"""A piece of the host's time that is so much of collection or loading is that."""


@dataclass(frozen=True, kw_only=True)
class FreeLengths:
    """Lengths without the profiler over those with it, 1 at the most, and how often there are collections.
    None where the log does not show it."""

    gc_frac: float | None = None
    """Of a collection: the mean of what the longest on any rank takes, over steps that collect."""
    data_frac: float | None = None
    """Of the loading of data: the mean over all steps of what it takes on the rank where it is longest, so
    that one slow batch in the window counts as often as the run has such."""
    step_frac: float | None = None
    """Of a step less its collection and its loading of data: the median over the steps of all ranks."""
    gc_job: Counted | None = None
    """Steps in which any rank collects."""
    gc_rank: Counted | None = None
    """The same of a rank by itself."""


NOT_LOGGED = FreeLengths()


def free_lengths(logs: Mapping[int, LoggedSteps]) -> FreeLengths:
    """What the ranks' logs tell."""
    gc = _of_job(logs, lambda x: x.garbage_ns[x.garbage_ns > 0])
    data = _of_job(logs, lambda x: x.data_ns[x.data_ns >= 0])
    rest = {w: _of(logs, w, _rest_ns) for w in _WHICH}
    enough = len(rest["unprofiled"]) >= FREE_STEPS_MIN * max(len(logs), 1)
    gc_job, gc_rank = collections_of(logs)
    return FreeLengths(
        gc_frac=_ratio(gc, np.mean),
        data_frac=_ratio(data, np.mean) if enough else None,
        step_frac=_ratio(rest, np.median) if enough else None,
        gc_job=gc_job,
        gc_rank=gc_rank,
    )


def as_unprofiled(rebuilt: Rebuilt, free: FreeLengths) -> tuple[Rebuilt, list[str]]:
    """The window with collections, and computation on a CPU, of that length; and what was changed."""
    made, said = rebuilt, []
    if free.gc_frac is not None and any(len(r.host["gc"]) for r in rebuilt.ranks):
        made = without_host_time("gc", keep_frac=free.gc_frac).apply(made)
        said.append(
            f"by the step log, garbage collections take {per_cent(free.gc_frac, 0)} of their time under the "
            "profiler"
        )
    if (
        free.data_frac is not None
        and free.data_frac < _UNCHANGED_FRAC
        and any(len(r.host["data"]) for r in rebuilt.ranks)
    ):
        made = without_host_time("data", keep_frac=free.data_frac).apply(made)
        said.append(
            f"by the mean of the step log, data loading takes {per_cent(free.data_frac, 0)} of its time "
            "under the profiler"
        )
    if free.step_frac is not None and free.step_frac < 1 and all(r.on_host for r in rebuilt.ranks):
        keep = _keep_frac(made, free.step_frac)
        made = _shorter(made, keep)
        said.append(
            f"CPU compute takes {per_cent(keep, 0)} of its time under the profiler: steps of the step log "
            f"take {per_cent(free.step_frac, 0)}"
        )
    return made, said


_WHICH = ("unprofiled", "profiled")


def _of(logs: Mapping[int, LoggedSteps], which: str, take: Callable[[LoggedSteps], I64]) -> I64:
    parts = [take(log.of(getattr(log, which))) for log in logs.values()]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _of_job(logs: Mapping[int, LoggedSteps], take: Callable[[LoggedSteps], I64]) -> dict[str, I64]:
    """Of steps that every rank logged, the most on any of them; warm-up left out."""
    job = of_the_job(logs)
    if job is None:
        return dict.fromkeys(_WHICH, np.empty(0, np.int64))
    free = job.of(job.unprofiled)
    free = free.of(np.arange(warmup_steps(free.duration_ns) or 0, len(free.step)))
    return {"unprofiled": take(free), "profiled": take(job.of(job.profiled))}


def _rest_ns(log: LoggedSteps) -> I64:
    rest: I64 = log.duration_ns - np.maximum(log.garbage_ns, 0) - np.maximum(log.data_ns, 0)
    return rest[rest > 0]


def _ratio(took_ns: Mapping[str, I64], middle: Callable[[I64], np.floating]) -> float | None:
    free_ns, profiled_ns = took_ns["unprofiled"], took_ns["profiled"]
    if not len(free_ns) or not len(profiled_ns) or not profiled_ns.any():
        return None
    return min(float(middle(free_ns) / middle(profiled_ns)), 1.0)


def _keep_frac(rebuilt: Rebuilt, step_frac: float) -> float:
    """The share of the host's own time that makes a step as much shorter: waits and transfers of other ranks'
    data are as long without the profiler."""
    _, parts = path_parts(rebuilt, schedule(rebuilt.graph))
    apart = sum(p.total_ns for p in parts if p.name in ("gc", "data"))
    whole = sum(p.total_ns for p in parts)
    own = sum(p.total_ns for p in parts if p.name in ("compute", "host"))
    return max(1 - (1 - step_frac) * (whole - apart) / own, _KEEP_MIN_FRAC) if own > 0 else 1.0


def _shorter(rebuilt: Rebuilt, keep_frac: float) -> Rebuilt:
    """Computation and what else the host does, collections and loading of data aside, of that share."""
    graph = rebuilt.graph
    mine = rebuilt.on_host & np.isin(graph.kind, (TaskKind.COMPUTE, TaskKind.HOST))
    took = rebuilt.end_ns - rebuilt.start_ns
    for i, frame in enumerate(rebuilt.ranks):
        rows = np.flatnonzero(mine & (graph.rank == i))
        for known in frame.host.values():
            inside = known.covered_within(rebuilt.start_ns[rows], rebuilt.end_ns[rows])
            mine[rows[inside > _APART_FRAC * took[rows]]] = False
    duration = np.where(mine, np.round(graph.duration_ns * keep_frac), graph.duration_ns).astype(np.int64)
    return with_durations(rebuilt, duration)
