"""What the step of a job would take with some operations as long as their peers'."""

from __future__ import annotations

from collections.abc import Sequence

from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.pipeline.operations import MESSAGE, RankOperations
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule
from perfdoc.results.what_if import WhatIfAnalysis, no_what_if


def what_if(
    ranks: Sequence[RankOperations],
    schedule: JobSchedule,
    matches: Matches,
    names: Sequence[int | None],
    world_size: int | None = None,
) -> WhatIfAnalysis:
    """Replay the recorded operations of all ranks. names: their global ranks, as all captures tell them.
    world_size: of the job."""
    if len(ranks) < 2:
        return no_what_if("one rank has no peers", "Give the captures of several ranks.")
    if reason := next((f"{r.label}: {r.reason}" for r in ranks if r.reason), ""):
        return no_what_if(reason)
    if schedule.reason and any((r.kind == MESSAGE).any() for r in ranks):
        return no_what_if(schedule.reason)
    # The replay's modules, which a single rank does without.
    from perfdoc.simulator.recorded.variants import replayed

    return replayed(ranks, schedule, matches, names, world_size)
