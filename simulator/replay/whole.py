"""All ranks that were kept: the job's replay, and what every change would gain.

A collective's kernel runs from its own rank's arrival, so that it also lasts while a late rank is waited for.
With captures of all its ranks, its transfer is the shortest of their durations. Without them
the fast ones of its size on the same stream give the transfer: what it takes beyond counts as wait. One
of a rare size waited where it took longer than the fast ones of the next larger size; it then gets its share
of their time. The late rank is late whatever becomes of the message, so changes are tried on the step without
those waits. Where every message waits alike (for a rank that is always late) the wait cannot be measured.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.records import dataclass
from perfdoc.results.ranks import Ledger
from perfdoc.results.replay import Replay
from perfdoc.simulator.engine import TaskKind, schedule
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.basis import Basis, occasional
from perfdoc.simulator.replay.gains import Gains, WhyNot, no_gains, predict_all
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.simulator.replay.unedited import KEPT_TASKS_MAX, KeptRank, not_replayed, replay_job
from perfdoc.simulator.replay.unprofiled import NOT_LOGGED, FreeLengths, as_unprofiled

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
) -> WholeReplay:
    """The job's replay where there are several ranks, and predictions from it; from each rank alone where the
    ranks cannot be joined. All arguments in the same order of ranks.

    free: what the step log says of steps without the profiler. stragglers: (name, dimension) of ranks that
    others wait for beyond chance: without the lateness of any other rank nothing is promised. why_not: see
    predict_all.
    """
    kept = [r.rebuilt for r in ranks if r.rebuilt is not None]
    job, joined = None, None
    if len(ranks) > 1:
        job, joined = _job(ranks, kept, calls, matches, clocks, tasks_max)
    if job is not None and joined is not None:
        return WholeReplay(
            job=job, gains=predict_all([basis_of(joined, job, ledgers, free)], stragglers, why_not)
        )
    if len(kept) < len(ranks) or _tasks(kept) > tasks_max:
        return WholeReplay(job=job, gains=no_gains(*_why_none(ranks, tasks_max)))
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
