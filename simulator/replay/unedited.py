"""The unedited replay of a rank or of a job: its distance from the measured one, its critical path.

A task takes about 130 bytes in all its columns, and joining ranks and editing them some times that. So the
ranks of a job may hold KEPT_TASKS_MAX tasks together; windows with more are replayed one by one, where each
was read, and the job as a whole is not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.memory import give_back
from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernels.attributed import AttributedKernels
from perfdoc.profiling.telling import in_worker
from perfdoc.records import dataclass
from perfdoc.results.figures import brief, per_cent, signed_share
from perfdoc.results.quality import MEASURED
from perfdoc.results.replay import RankReplay, Replay
from perfdoc.simulator.engine import EdgeKind, Schedule, TaskKind, critical_path, schedule
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.engine.schedule import expect
from perfdoc.simulator.replay.first_steps import first_steps, until
from perfdoc.simulator.replay.rebuilt import RankFrame, Rebuilt, rebuild_rank
from perfdoc.simulator.work.rank import RankWork, rank_work
from perfdoc.traces.table import Bool, unique

ERROR_MAX_FRAC = 0.05
"""Past it no prediction is made from the replay."""
CLOCKS_MAX_FRAC = 0.05
"""Ranks that no common ends tie may be that far apart, as a share of the window. It moves a rank's first
tasks once, not each step: what waits for what rests on no clock, and the replay's error shows the rest."""
FIXED_MAX_FRAC = 0.2
"""Share of the critical path without a known dependency: no edit can move it."""


def replay(rebuilt: Rebuilt) -> Replay:
    """Replay what was rebuilt, unedited, and compare it with the measured step."""
    scope: Literal["rank", "job"] = "rank" if len(rebuilt.ranks) == 1 else "job"
    measured = rebuilt.span(rebuilt.end_ns) if len(rebuilt.start_ns) else 0
    if measured <= 0:
        return not_replayed("nothing ran in the window", "Choose another window with --window.", scope=scope)
    times = schedule(rebuilt.graph)
    replayed = rebuilt.span(times.end_ns)
    _, parts = path_parts(rebuilt, times)
    spans = list(zip(rebuilt.spans(rebuilt.end_ns), rebuilt.spans(times.end_ns), strict=True))
    ranks = [
        _rank(rebuilt.ranks[i], spans[i], {p.name: p.total_ns for p in parts if p.rank == i})
        for i in np.flatnonzero(np.bincount(rebuilt.graph.rank)).tolist()
    ]
    error = replayed / measured - 1
    worst = max((r.error_frac for r in ranks), key=abs)
    critical_path = _summed(parts)
    withheld = _withheld(max((error, worst), key=abs), critical_path.get("before", 0) / max(replayed, 1))
    return Replay(
        **MEASURED,
        scope=scope,
        tasks=len(rebuilt.start_ns),
        steps=rebuilt.steps,
        measured_ns=measured,
        replayed_ns=replayed,
        error_frac=error,
        worst_error_frac=worst,
        predicts=not withheld,
        withheld=withheld,
        unexplained_ns=sum(r.unexplained_ns for r in ranks),
        critical_path=critical_path,
        ranks=ranks,
    )


def replay_job(
    ranks: Sequence[Rebuilt], calls: Sequence[CollectiveCalls], matches: Matches, clocks: ClockAlignment
) -> tuple[Replay, Rebuilt | None]:
    """Join the ranks of a job and replay them unedited; and the joined graph, for predictions.

    All arguments in the same order of ranks. Needs matched collectives and clocks that were compared.
    """
    reason, remedy = _not_joined(ranks, matches, clocks)
    if reason:
        return not_replayed(reason, remedy, scope="job"), None
    from perfdoc.simulator.replay.join import join_ranks

    joined = join_ranks(ranks, calls, matches, clocks)
    if joined is None:
        said = "the matched collectives form a dependency cycle between ranks"
        return not_replayed(said, matches.remedy, scope="job"), None
    return replay(joined), joined


def _not_joined(ranks: Sequence[Rebuilt], matches: Matches, clocks: ClockAlignment) -> tuple[str, str]:
    if matches.state != "measured":
        return matches.reason, matches.remedy
    if clocks.state != "measured":
        return clocks.reason, clocks.remedy
    if len({c.component for c in clocks.clocks}) > 1:
        return (
            "clocks of some ranks cannot be aligned: no matched collective connects them",
            "Give the captures of all ranks of a model replica.",
        )
    shortest = min(r.ranks[0].window_end_ns - r.ranks[0].window_start_ns for r in ranks)
    open_ns = clocks.resolution_ns or 0
    if len({c.cluster for c in clocks.clocks}) > 1 and open_ns > CLOCKS_MAX_FRAC * shortest:
        return (
            f"clock error of some ranks is {brief(open_ns)}, more than {per_cent(CLOCKS_MAX_FRAC, 0)} of the "
            "window: no collective synchronizes all of them",
            "Give the captures of all ranks of a model replica, over more steps.",
        )
    return "", ""


def _withheld(error_frac: float, fixed_frac: float) -> str:
    if abs(error_frac) > ERROR_MAX_FRAC:
        return f"the replay error is {signed_share(error_frac)}, more than {per_cent(ERROR_MAX_FRAC, 0)}"
    if fixed_frac > FIXED_MAX_FRAC:
        return (
            f"no dependency is known for what starts {per_cent(fixed_frac, 0)} into the window, so no change "
            "would show"
        )
    return ""


def not_replayed(reason: str, remedy: str, *, scope: Literal["rank", "job"]) -> Replay:
    """A result without a replay."""
    return Replay.missing(reason, remedy, scope=scope, predicts=False, withheld=reason, critical_path={})


def _summed(parts: Iterable[PathPart]) -> dict[str, int]:
    """Over ranks, longest first."""
    total: dict[str, int] = {}
    for part in parts:
        total[part.name] = total.get(part.name, 0) + part.total_ns
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))


def _rank(frame: RankFrame, spans: tuple[int, int], critical_path: dict[str, int]) -> RankReplay:
    measured, replayed = spans
    return RankReplay(
        rank=frame.rank,
        name=frame.name,
        measured_ns=measured,
        replayed_ns=replayed,
        error_frac=replayed / measured - 1 if measured > 0 else 0.0,
        unexplained_ns=frame.unexplained_ns,
        critical_path=critical_path,
    )


_TASK_NAMES: Mapping[TaskKind, str] = {
    TaskKind.COMPUTE: "compute",
    TaskKind.COPY: "copy",
    TaskKind.ARRIVAL: "collective",
    TaskKind.MEETING: "collective",
}
_EDGE_NAMES: Mapping[EdgeKind, str] = {
    EdgeKind.HOST_ORDER: "host",
    EdgeKind.HOST_HANDOVER: "host",
    EdgeKind.LAUNCH: "launch_latency",
    EdgeKind.STREAM_ORDER: "launch_latency",
    EdgeKind.EVENT: "dependency",
    EdgeKind.INFERRED: "dependency",
    EdgeKind.HOST_SYNC: "host_return",
    EdgeKind.COLLECTIVE: "collective",
}
_BETWEEN_CALLS = (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER)


@dataclass(frozen=True, kw_only=True)
class PathPart:
    """Time of the critical path by what it was spent on, and on which rank."""

    rank: int
    """Index into Rebuilt.ranks."""
    name: str
    """compute, communication.<dimension>, copy, host_call (inside CUDA calls), host (other work of it), gc,
    data, launch_latency, dependency, host_return, collective (waiting for other ranks), before (nothing is
    known to hold up the first task)."""
    total_ns: int


def path_parts(rebuilt: Rebuilt, times: Schedule) -> tuple[I64, tuple[PathPart, ...]]:
    """The path's tasks in time order, and its time from the window's start to its end by rank and part; they
    sum to it exactly. Between two tasks it is the later one's rank that time is spent on."""
    graph = rebuilt.graph
    path = critical_path(graph, times, last_task(rebuilt, times))
    rank = graph.rank[path]
    from_ns = min(r.window_start_ns for r in rebuilt.ranks)
    totals: dict[tuple[int, str], int] = {(int(rank[0]), "before"): int(times.start_ns[path[0]]) - from_ns}
    until = np.append(times.start_ns[path[1:]], times.end_ns[path[-1]])
    spent = until - times.start_ns[path]
    own = np.minimum(spent, graph.duration_ns[path])
    lag = (spent - own)[:-1]

    def add(name: str, total_ns: I64, of_rank: I64) -> None:
        for i in unique(of_rank).tolist():
            totals[i, name] = totals.get((i, name), 0) + int(total_ns[of_rank == i].sum())

    for name, mine in _by_task(rebuilt, path):
        add(name, own[mine], rank[mine])
    edge_kind = graph.edges.kind[times.binding[path[1:]]]
    for kind in EdgeKind:
        mine = edge_kind == kind
        add(_EDGE_NAMES[kind], lag[mine], rank[1:][mine])
    on_host = rebuilt.on_host[path] & (graph.kind[path] == TaskKind.HOST)
    between = np.isin(edge_kind, _BETWEEN_CALLS)
    for i, frame in enumerate(rebuilt.ranks):
        inside, gap = on_host & (rank == i), between & (rank[1:] == i)
        for name, known in frame.host.items():
            if not len(known):
                continue
            covered = known.covered_within(rebuilt.start_ns[path], rebuilt.end_ns[path])
            part = int(np.minimum(covered, own)[inside].sum())
            covered = known.covered_within(rebuilt.end_ns[path[:-1]], rebuilt.start_ns[path[1:]])
            part += int(np.minimum(covered, lag)[gap].sum())
            for of, moved in ((name, part), ("host", -part)):
                totals[i, of] = totals.get((i, of), 0) + moved
    assert sum(totals.values()) == int(times.end_ns[path[-1]]) - from_ns
    parts = (PathPart(rank=i, name=n, total_ns=t) for (i, n), t in totals.items() if t)
    return path, tuple(sorted(parts, key=lambda p: (-p.total_ns, p.name, p.rank)))


def last_task(rebuilt: Rebuilt, times: Schedule) -> int:
    """What ends last on any device; of ranks that train on the CPU, on the host. There must be some."""
    rows = np.flatnonzero(rebuilt.on_host | (rebuilt.graph.kind != TaskKind.HOST))
    return int(rows[np.argmax(times.end_ns[rows])])


def _by_task(rebuilt: Rebuilt, path: I64) -> Iterator[tuple[str, Bool]]:
    kind = rebuilt.graph.kind[path]
    for k, name in _TASK_NAMES.items():
        yield name, kind == k
    is_host = kind == TaskKind.HOST
    yield "host", is_host & rebuilt.on_host[path]
    yield "host_call", is_host & ~rebuilt.on_host[path]
    for i, text in enumerate(DIMENSIONS):
        communicates = kind == TaskKind.COMMUNICATION
        yield f"communication.{text}", communicates & (rebuilt.dimension[path] == i)


KEPT_TASKS_MAX = 1_000_000
"""Over all ranks: about 130 MB that travel, 0.5 GB while changes are predicted."""


@dataclass(frozen=True, kw_only=True)
class KeptRank:
    """A rank's replay, and what it was made from."""

    replay: Replay
    rebuilt: Rebuilt | None
    """None where it holds more tasks than may be kept, or nothing could be replayed."""
    work: RankWork | None = None
    """For the model of the job; None where no range shows passes of whole steps."""

    @property
    def bounds_until_ns(self) -> int | None:
        """Of which kernels bounds are of use, by their start: changes are predicted of what is kept alone."""
        return None if self.rebuilt is None else self.rebuilt.ranks[0].window_end_ns


def replay_and_keep(
    view: DeviceView, kernels: AttributedKernels | None = None, *, keep_tasks: int = KEPT_TASKS_MAX
) -> KeptRank | None:
    """Rebuild one rank's window, replay it unedited, and keep it if it is small enough.

    None where the capture holds only part of the events: nothing is predicted of it.

    kernels: as of `rebuild_rank`. keep_tasks: what all devices of the capture may hold together; each its
    share.
    """
    if view.events.partial:
        return None
    work = rank_work(view)
    each = _most_tasks_each(len(view.trace.devices), work, keep_tasks)
    part = first_steps(view, KEPT_TASKS_MAX // len(view.trace.devices), each)
    rebuilt = rebuild_rank(part, kernels if part is view else None, each, kernels.lanes if kernels else None)
    if part is not view:
        rebuilt = until(rebuilt, int(view.step_ranges.met.start_ns[part.window.steps]))
    give_back(len(rebuilt.start_ns))
    if len(rebuilt.start_ns) <= each and not in_worker():
        expect(rebuilt.graph, 5)  # as it is and with a few changes; numba starts here, beside other analyses
    found = replay(rebuilt)
    if part.window.steps < view.window.steps:
        found = replace(found, window_steps=view.window.steps)
    keep = may_keep(found, len(view.trace.devices), work, keep_tasks)
    return KeptRank(replay=found, rebuilt=rebuilt if keep else None, work=work)


def may_keep(found: Replay, devices: int, work: RankWork | None, keep_tasks: int) -> bool:
    """Whether the tasks of a rank's replay are kept, where all devices of its capture may hold so many."""
    return found.state == "measured" and found.tasks <= _most_tasks_each(devices, work, keep_tasks)


def _most_tasks_each(devices: int, work: RankWork | None, keep_tasks: int) -> int:
    """Of one of the devices of a capture. A rank of more is rebuilt without what changes ask for."""
    return (keep_tasks if work is None else max(keep_tasks, _of_first_pipeline(work))) // devices


def is_of_first_pipeline(kept: KeptRank) -> bool:
    """Whether it is one of the ranks that stand for a job of too many."""
    return kept.work is not None and _of_first_pipeline(kept.work) > 0


def _of_first_pipeline(work: RankWork) -> int:
    """Tasks that a rank of a job with stages may hold, one for every stage: of too many ranks these stand for
    the job. 0 for any other rank."""
    pp = len(work.group) or work.facts.pp or 1
    world = work.world_size or 0
    first = pp > 1 and work.rank is not None and world % pp == 0 and work.rank % (world // pp or 1) == 0
    return KEPT_TASKS_MAX // pp if first else 0
