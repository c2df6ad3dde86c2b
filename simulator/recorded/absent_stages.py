"""Waits for stages that were not captured, against the same waits in other replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.effects import Effect, usual_of
from perfdoc.simulator.recorded.work import Link


def absent_sides(
    schedule: JobSchedule, cell_of: Mapping[tuple[int, int], int], captured: Set[int | None]
) -> dict[int, tuple[int, ...]]:
    """By cell of a message to or from a stage that was not captured: global ranks of those that were not."""
    found = {}
    for member, rank in enumerate(schedule.ranks):
        chain = () if rank is None else schedule.pipelines[rank.pipeline]
        missing = tuple(r for r in chain if r not in captured)
        for i, carried in rank.messages.items() if rank is not None and missing else ():
            if any(chain[stage] in missing for _, *both, _ in carried for stage in both):
                found[cell_of[member, i]] = missing
    return found


def with_late_stages(job: RecordedJob, slow: Sequence[Effect]) -> list[Effect]:
    """Slow ranks, with their replicas' waits for absent stages; those of others, by absent ranks."""
    links: dict[int, list[Link]] = defaultdict(list)
    missing: dict[int, tuple[int, ...]] = {}
    cells = job.of_member
    for member, mine in enumerate(cells):
        at = [k for k, c in enumerate(mine) if job.cells[c].missing]
        alike = [m for m, stage in enumerate(job.stage) if stage == job.stage[member] and m != member]
        peers = [[cells[m][k] for k in at] for m in alike if len(cells[m]) == len(mine)]
        lonely = [c for c in mine if job.cells[c].missing and job.cells[c].kind == "messages"]
        if lonely and peers:
            usual = usual_of([job.takes[rows] for rows in peers])
            links[job.replica[member]].append(([mine[k] for k in at], usual))
            missing[job.replica[member]] = job.cells[lonely[0]].missing
    held = [tuple(link for m in e.members for link in links.pop(job.replica[m], ())) for e in slow]
    late = [Effect(kind="not_captured", links=tuple(of), ranks=missing[r]) for r, of in links.items()]
    return [replace(e, links=of) for e, of in zip(slow, held, strict=True)] + late
