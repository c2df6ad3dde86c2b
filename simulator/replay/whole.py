"""All ranks that were kept: the job's replay, and what every change would gain.

A collective's kernel runs from its own rank's arrival, so that it also lasts while a late rank is waited for.
With captures of all its ranks, its transfer is the shortest of their durations. Without them
the fast ones of its size on the same stream give the transfer: what it takes beyond counts as wait. One
of a rare size waited where it took longer than the fast ones of the next larger size; it then gets its share
of their time. The late rank is late whatever becomes of the message, so changes are tried on the step without
those waits. Where every message waits alike (for a rank that is always late) the wait cannot be measured.

A profiled window is taken as without the profiler, as far as the run's step log tells. Collections
of garbage look at every object that is alive, the profiler's records among them: of a run of the trainer they
took 374 ms under the profiler and 194 ms without. What removing them saves is the latter; how often there are
any is counted in `Occasional`. One slow batch among those of the window is no more than the log has of them.
And on a rank that trains on the CPU the profiler writes down every operator: there steps of 290 ms took 330.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.steps.figures import warmup_steps
from perfdoc.analyzers.steps.log import LoggedSteps, of_the_job
from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent
from perfdoc.results.ranks import Ledger
from perfdoc.results.replay import Replay
from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.basis import FREE_STEPS_MIN, Basis, Counted, collections_of, occasional
from perfdoc.simulator.replay.edits.edit import with_durations
from perfdoc.simulator.replay.edits.host import without_host_time
from perfdoc.simulator.replay.gains import Gains, WhyNot, no_gains, predict_all
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.simulator.replay.unedited import KEPT_TASKS_MAX, KeptRank, not_replayed, path_parts, replay_job

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
    parts = [take(log.take(getattr(log, which))) for log in logs.values()]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _of_job(logs: Mapping[int, LoggedSteps], take: Callable[[LoggedSteps], I64]) -> dict[str, I64]:
    """Of steps that every rank logged, the most on any of them; warm-up left out."""
    job = of_the_job(logs)
    if job is None:
        return dict.fromkeys(_WHICH, np.empty(0, np.int64))
    free = job.take(job.unprofiled)
    free = free.take(np.arange(warmup_steps(free.duration_ns) or 0, len(free.step)))
    return {"unprofiled": take(free), "profiled": take(job.take(job.profiled))}


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


_FAST_PERCENTILE = 10
_FEWEST = 4
"""Of one size: fewer do not show which are fast."""
ASSUMED = "waits for ranks without captures stay as measured, apart from the gain itself"


def without_waits(rebuilt: Rebuilt) -> Rebuilt | None:
    """The window so; None where there is no such wait."""
    waits_ns = _waits_ns(rebuilt)
    if not waits_ns.any():
        return None
    return replace(rebuilt, graph=replace(rebuilt.graph, duration_ns=rebuilt.graph.duration_ns - waits_ns))


def _waits_ns(rebuilt: Rebuilt) -> I64:
    """By task: what communication that was not matched (of some ranks of a job: all of it) took beyond the
    fast ones; of GPU ranks."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    matched = np.zeros(len(rebuilt.start_ns), bool)
    # Where ranks of the job are not here, all that are may have waited for one of those.
    if (rebuilt.ranks[0].facts.world_size or 0) <= len(rebuilt.ranks):
        # Behind its own arrival is who left before the others came: it waited for nobody.
        known = np.isin(graph.kind[edges.source], (TaskKind.MEETING, TaskKind.ARRIVAL))
        matched[edges.target[known]] = True
    ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.bytes > 0) & ~rebuilt.on_host
    rows = np.flatnonzero(ours)
    found = np.zeros(len(matched), np.int64)
    if matched[rows].all():
        return found
    alike = (graph.rank, graph.resource, rebuilt.dimension, rebuilt.reduces)
    keys = np.stack([np.asarray(column, np.int64)[rows] for column in alike])
    _, which = np.unique(keys, axis=1, return_inverse=True)
    order = np.lexsort((-rebuilt.bytes[rows], which))
    rows, which = rows[order], which[order]
    size = rebuilt.bytes[rows]
    cuts = np.flatnonzero((which[1:] != which[:-1]) | (size[1:] != size[:-1])) + 1
    larger_ns, larger_bytes, before = np.inf, 1, -1
    for mine, stream in zip(np.split(rows, cuts), which[np.append(0, cuts)].tolist(), strict=True):
        took, held = graph.duration_ns[mine], int(rebuilt.bytes[mine[0]])
        if stream != before:
            larger_ns, larger_bytes, before = np.inf, 1, stream
        if len(mine) >= _FEWEST:
            larger_ns = float(np.percentile(took, _FAST_PERCENTILE, method="lower"))
            larger_bytes = held
        waited = (took > larger_ns) & ~matched[mine]
        found[mine[waited]] = (took[waited] - larger_ns * held / larger_bytes).astype(np.int64)
    return found


_FEWER_STEPS = "Analyse fewer steps, with --window START,END."
_SAME_STEPS = "Analyse the same steps of all ranks, with --step-range or --window START,END."


@dataclass(frozen=True, kw_only=True)
class WholeReplay:
    """What all ranks together gave."""

    job: Replay | None
    """None where there is one rank only."""
    gains: Gains


def replay_whole(
    ranks: Sequence[KeptRank],
    calls: Sequence[CollectiveCalls],
    matches: Matches,
    clocks: ClockAlignment,
    ledgers: Sequence[Ledger],
    *,
    free: FreeLengths = NOT_LOGGED,
    stragglers: Collection[tuple[str, str]] = (),
    why_not: WhyNot = lambda _key, _ways: "",
    tasks_max: int = KEPT_TASKS_MAX,
    withheld: Gains | None = None,
) -> WholeReplay:
    """The job's replay where there are several ranks, and predictions from it; from each rank alone where the
    ranks cannot be joined. All arguments in the same order of ranks.

    free: what the step log says of steps without the profiler. stragglers: (name, dimension) of ranks that
    others wait for beyond chance: without the lateness of any other rank nothing is promised. why_not: see
    predict_all. withheld: in place of predictions, where none would hold for a step.
    """
    kept = [r.rebuilt for r in ranks if r.rebuilt is not None]
    job, joined = None, None
    if len(ranks) > 1:
        job, joined = _job(ranks, kept, calls, matches, clocks, tasks_max)
    if withheld is not None:
        return WholeReplay(job=job, gains=withheld)
    if job is not None and joined is not None:
        bases = [basis_of(joined, job, ledgers, free)]
    elif len(kept) < len(ranks) or _tasks(kept) > tasks_max:
        return WholeReplay(job=job, gains=no_gains(*_why_none(ranks, tasks_max)))
    else:
        bases = [
            basis_of(rebuilt, r.replay, [ledger], free)
            for rebuilt, r, ledger in zip(kept, ranks, ledgers, strict=True)
        ]
    return WholeReplay(job=job, gains=predict_all(bases, stragglers, why_not))


def basis_of(
    rebuilt: Rebuilt, replay: Replay, ledgers: Sequence[Ledger], free: FreeLengths = NOT_LOGGED
) -> Basis:
    """What changes are tried on: the window without the profiler, and without waits for ranks that are not
    here, as far as either is known, with collections as often as the run makes them."""
    said: list[str] = []
    if replay.window_steps is not None:
        said.append(
            f"the first {replay.steps:,} of {replay.window_steps:,} steps of the window were replayed"
        )
    length_ns = unprofiled_ns = None
    unprofiled, changed = as_unprofiled(rebuilt, free)
    if changed:
        rebuilt = unprofiled
        length_ns = unprofiled_ns = rebuilt.span(schedule(rebuilt.graph).end_ns)
        said += changed
    alone = without_waits(rebuilt)
    if alone is not None:
        rebuilt, length_ns = alone, alone.span(schedule(alone.graph).end_ns)
        said.append(ASSUMED)
    alone_here = len(rebuilt.ranks) == 1
    return Basis(
        rebuilt=rebuilt,
        replay=replay,
        ledgers=ledgers,
        length_ns=length_ns,
        assumptions=said,
        unprofiled_ns=unprofiled_ns,
        # A window of which a part is replayed is long: its own ledger says how often it collects.
        occasional=None
        if replay.window_steps is not None
        else occasional(rebuilt, free.gc_rank if alone_here else free.gc_job),
    )


def _job(
    ranks: Sequence[KeptRank],
    kept: Sequence[Rebuilt],
    calls: Sequence[CollectiveCalls],
    matches: Matches,
    clocks: ClockAlignment,
    tasks_max: int,
) -> tuple[Replay, Rebuilt | None]:
    if len(kept) < len(ranks) or _tasks(kept) > tasks_max:
        reason, remedy = _why_none(ranks, tasks_max)
        return not_replayed(reason, remedy, scope="job"), None
    job, joined = replay_job(kept, calls, matches, clocks)
    of = max((r.replay.window_steps for r in ranks if r.replay.window_steps is not None), default=None)
    return replace(job, window_steps=of), joined


def _tasks(kept: Sequence[Rebuilt]) -> int:
    return sum(len(r.start_ns) for r in kept)


def _why_none(ranks: Sequence[KeptRank], tasks_max: int) -> tuple[str, str]:
    failed = [r.replay for r in ranks if r.replay.state != "measured"]
    if failed:
        return failed[0].reason, failed[0].remedy
    tasks = sum(r.replay.tasks for r in ranks)
    if tasks <= tasks_max:
        return "the ranks were not replayed over the same steps", _SAME_STEPS
    many = f"{tasks:,} tasks" if len(ranks) == 1 else f"{tasks:,} tasks on {len(ranks)} ranks"
    of = "the windows"
    if any(r.replay.window_steps is not None for r in ranks):
        of = f"the first {max(r.replay.steps for r in ranks):,} steps of the windows"
    return f"{of} hold {many}; a joint replay is limited to {tasks_max:,}", _FEWER_STEPS
