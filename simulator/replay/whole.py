"""All ranks that were kept: the job's replay, and what every change would gain."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.ledger.window import Ledger
from perfdoc.analyzers.matching.calls import CollectiveCalls
from perfdoc.analyzers.matching.matches import Matches
from perfdoc.simulator.replay.basis import Basis
from perfdoc.simulator.replay.gains import Gains, no_gains, predict_all
from perfdoc.simulator.replay.kept import KEPT_TASKS_MAX, KeptRank
from perfdoc.simulator.replay.occasional import occasional
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.simulator.replay.replay import Replay, not_replayed, replay_job
from perfdoc.simulator.replay.unprofiled import NOT_LOGGED, FreeLengths, as_unprofiled
from perfdoc.simulator.replay.waits import ASSUMED, without_waits

_FEWER_STEPS = "Analyse fewer steps, with --window START,END."


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
    tasks_max: int = KEPT_TASKS_MAX,
) -> WholeReplay:
    """The job's replay where there are several ranks, and predictions from it; from each rank alone where the
    ranks cannot be joined. All arguments in the same order of ranks.

    free: what the step log says of steps without the profiler. stragglers: (name, dimension) of ranks that
    others wait for beyond chance: without the lateness of any other rank nothing is promised.
    """
    kept = [r.rebuilt for r in ranks if r.rebuilt is not None]
    job, joined = None, None
    if len(ranks) > 1:
        job, joined = _job(ranks, kept, calls, matches, clocks, tasks_max)
    if job is not None and joined is not None:
        return WholeReplay(job=job, gains=predict_all([basis_of(joined, job, ledgers, free)], stragglers))
    if len(kept) < len(ranks) or _tasks(kept) > tasks_max:
        return WholeReplay(job=job, gains=no_gains(*_why_none(ranks, tasks_max)))
    bases = [
        basis_of(rebuilt, r.replay, [ledger], free)
        for rebuilt, r, ledger in zip(kept, ranks, ledgers, strict=True)
    ]
    return WholeReplay(job=job, gains=predict_all(bases, stragglers))


def basis_of(
    rebuilt: Rebuilt, replay: Replay, ledgers: Sequence[Ledger], free: FreeLengths = NOT_LOGGED
) -> Basis:
    """What changes are tried on: the window without the profiler, and without waits for ranks that are not
    here, as far as either is known, with collections as often as the run makes them."""
    said: list[str] = []
    length_ns = None
    unprofiled = as_unprofiled(rebuilt, free)
    if unprofiled is not None:
        rebuilt, length_ns = unprofiled.rebuilt, unprofiled.length_ns
        said += unprofiled.assumptions
    alone = without_waits(rebuilt)
    if alone is not None:
        rebuilt, length_ns = alone.rebuilt, alone.length_ns
        said.append(ASSUMED)
    alone_here = len(rebuilt.ranks) == 1
    return Basis(
        rebuilt=rebuilt,
        replay=replay,
        ledgers=ledgers,
        length_ns=length_ns,
        assumptions=said,
        unprofiled_ns=None if unprofiled is None else unprofiled.length_ns,
        occasional=occasional(rebuilt, free.gc_rank if alone_here else free.gc_job),
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
    return replay_job(kept, calls, matches, clocks)


def _tasks(kept: Sequence[Rebuilt]) -> int:
    return sum(len(r.start_ns) for r in kept)


def _why_none(ranks: Sequence[KeptRank], tasks_max: int) -> tuple[str, str]:
    failed = [r.replay for r in ranks if r.replay.state != "measured"]
    if failed:
        return failed[0].reason, failed[0].remedy
    tasks = sum(r.replay.tasks for r in ranks)
    many = f"{tasks:,} tasks" if len(ranks) == 1 else f"{tasks:,} tasks on {len(ranks)} ranks"
    return f"the windows hold {many}, more than the {tasks_max:,} that are taken together", _FEWER_STEPS
