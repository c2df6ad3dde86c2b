"""What the step of a job would take with some operations as long as their peers'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.pipeline.operations import MESSAGE, RankOperations
from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule
from perfdoc.results.what_if import WhatIfAnalysis, WhatIfPart, no_what_if
from perfdoc.simulator.recorded.absent import absent_of
from perfdoc.simulator.recorded.absent_stages import with_waits_for_absent
from perfdoc.simulator.recorded.build import recorded_job, with_gaps
from perfdoc.simulator.recorded.causes import causes_of, usual_work
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.effects import slow_ranks
from perfdoc.simulator.recorded.in_turn import late_in_turn
from perfdoc.simulator.recorded.peers import ideal_of, unwaited
from perfdoc.simulator.recorded.walk import Plan, plan_of, step_ends, walk, with_buffered_sends
from perfdoc.simulator.recorded.work import work_of
from perfdoc.traces.table import F64, Bool

TOGETHER = 0.25
"""Ends that lie closer than this part of how far starts lie apart were held up for each other."""
TAIL_LANE = 1_000_000
"""No stream has this number."""
MAX_RANKS = 32
"""Of which a part is published each."""
BAR = 0.05
"""Of the measured step, by which the replay may be longer. Launch delays are left out: it may be shorter."""
MAX_AT_ONCE = 128
"""Variants of one walk."""


def what_if(
    ranks: Sequence[RankOperations],
    schedule: JobSchedule,
    matches: Matches,
    names: Sequence[int | None],
    world_size: int | None = None,
) -> WhatIfAnalysis:
    """Replay the recorded operations of all ranks. names: their global ranks, as all captures tell them.
    world_size: of the job."""
    if reason := next((f"{r.label}: {r.reason}" for r in ranks if r.reason), ""):
        return no_what_if(reason)
    if schedule.reason and any((r.kind == MESSAGE).any() for r in ranks):
        return no_what_if(schedule.reason)
    job = recorded_job(ranks, schedule, matches, world_size)
    if job is None:
        return no_what_if("the captures have no step in common", "Capture the same steps on all ranks.")
    # Late launches are left out, but where hosts are late in turn: of one that always is others tell.
    timed = None if any(cell.is_partly_absent for cell in job.cells) else with_gaps(job, ranks)
    if timed is not None:
        works = work_of(timed)
        job = timed if late_in_turn(works, slow_ranks(works)) else job
    plan = plan_of(job.cells, job.of_member)
    if plan is None:
        # Both sides sent before they received: it can be so only if a send does not wait.
        job = replace(job, cells=tuple(with_buffered_sends(job.cells)))
        plan = plan_of(job.cells, job.of_member)
    if plan is not None and (met := with_meeting_at_end(job, plan)) is not job:
        job, plan = met, plan_of(met.cells, met.of_member)
    if plan is None:
        return no_what_if("ranks would wait for each other in a circle: operations were matched wrongly")
    job = with_waits_for_absent(job, plan)
    for late in (with_late_starts(job, plan), plan):  # where some of it was hidden: as if all began at once
        recorded = step_ends(late, [job.takes])[0]
        if recorded.mean() <= (1 + BAR) * job.step_ns.mean():
            break
    else:
        return no_what_if(
            "replayed, the operations take longer than they took: they wait for others than was read"
        )
    absent = absent_of(job, plan, recorded)
    alone = unwaited(job)
    missing = 1 - 1 / absent.times
    whole_job = (1 - missing) * alone + missing * unwaited(replace(job, takes=usual_work(job)))
    ideal = ideal_of(job, whole_job)
    named = [rank.label if n is None else n for n, rank in zip(names, ranks, strict=True)]
    masks, parts = _parts(job, named)
    step = _steps(plan, alone, ideal, masks)
    # The other way round: all but its own.
    rest = _steps(late, alone, ideal, ~masks[:, 1:])
    recorded, whole = recorded + absent.unseen_ns, float(step[0].mean())
    found: dict[str, list[WhatIfPart]] = {"stage": [], "replica": [], "rank": [], "kind": []}
    for (group, name), ends, others in zip(parts, step[1:], rest + absent.unseen_ns, strict=True):
        found[group].append(
            WhatIfPart(name=name, slowdown=float(ends.mean()) / whole, without_ns=round(float(others.mean())))
        )
    for rows in found.values():
        rows.sort(key=lambda p: -p.slowdown)
    return WhatIfAnalysis(
        state="measured",
        steps=job.takes.shape[1],
        ranks=len(ranks),
        schedule=schedule.name,
        pp=schedule.pp,
        vpp=schedule.vpp,
        micro_batches=schedule.micro_batches,
        measured_ns=round(float(job.step_ns.mean())),
        step_ns=round(float(recorded.mean())),
        ideal_ns=round(whole),
        slowdown=float(recorded.mean()) / whole,
        by_stage=found["stage"],
        by_replica=found["replica"][:MAX_RANKS],
        by_rank=found["rank"][:MAX_RANKS],
        by_kind=found["kind"],
        causes=causes_of(job, late, absent, recorded, named),
    )


def _parts(job: RecordedJob, names: Sequence[int | str]) -> tuple[Bool, list[tuple[str, str]]]:
    """Which cells keep their own durations, by cell and variant; the first keeps none."""
    member = np.array([c.member for c in job.cells])
    kind = np.array([c.kind for c in job.cells])
    stage, replica = np.array(job.stage)[member], np.array(job.replica)[member]
    masks = [np.zeros(len(member), bool)]
    parts: list[tuple[str, str]] = []
    for group, values in (("stage", stage), ("replica", replica)):
        several = np.unique(values)
        if len(several) > 1 and (group == "stage" or len(several) < len(job.stage)):
            masks += [values == v for v in several]
            parts += [(group, f"{group} {v}") for v in several.tolist()]
    masks += [member == m for m in range(len(job.stage))]
    parts += [("rank", n if isinstance(n, str) else f"rank {n}") for n in names]
    for name in dict.fromkeys(k for k in kind.tolist() if k != "wait"):
        masks.append(kind == name)
        parts.append(("kind", name))
    return np.array(masks).T, parts


def _steps(plan: Plan, own: F64, ideal: F64, masks: Bool) -> F64:
    """Ends of the steps by variant and step."""
    some = [masks[:, first : first + MAX_AT_ONCE] for first in range(0, masks.shape[1], MAX_AT_ONCE)]
    found = [walk(plan, partial(_mixed, own, ideal, m), (m.shape[1], own.shape[1]))[0] for m in some]
    return np.concatenate(found)


def _mixed(own: F64, ideal: F64, keeps: Bool, c: int) -> F64:
    return np.asarray(np.where(keeps[c][:, None], own[c], ideal[c]))


def with_late_starts(job: RecordedJob, plan: Plan) -> Plan:
    """The plan with ranks that begin steps later than others, once all have ended the one before: that hides
    what another one does later. As it is where ranks that were not captured may be waited for."""
    if any(cell.is_partly_absent for cell in job.cells):
        return plan
    _, of = walk(plan, lambda c: job.takes[c][None, :], (1, job.takes.shape[1]))
    ends = np.array([of[m][0] for m in range(plan.members)])
    late = np.roll(np.maximum(ends + job.behind_ns - ends.max(axis=0), 0.0), 1, axis=1)
    late[:, 0] = np.median(late[:, 1:], axis=1) if late.shape[1] > 1 else 0.0  # what was before is not known
    return replace(plan, begins_ns=late - late.min(axis=0))


def with_meeting_at_end(job: RecordedJob, plan: Plan) -> RecordedJob:
    """The job with its last stretches of work as one that all ranks do together, where they end together
    however late each begins: another collective than captures show, such as the sum of the gradients' norms,
    may hold them up. The same job where they do not. plan: the job's."""
    last = [mine[-1] if mine and job.cells[mine[-1]].is_compute else -1 for mine in job.of_member]
    last = [c if c >= 0 and not job.cells[c].passes else -1 for c in last]
    if len(last) < 2 or min(last) < 0:
        return job
    takes = job.takes.copy()
    takes[last] = 0.0
    _, ends = walk(plan, lambda c: takes[c][None, :], (1, takes.shape[1]))
    begin: F64 = np.array([ends[m][0] for m in range(len(last))])
    apart, left = np.ptp(begin, axis=0), np.ptp(begin + job.takes[last], axis=0)
    if np.median(left) >= TOGETHER * np.median(apart):
        return job
    cells = list(job.cells)
    for c in last:
        cells[c] = replace(cells[c], kind="end of the step", lane=TAIL_LANE, partners=frozenset(last))
    takes[last] = job.takes[last].min(axis=0)
    return replace(job, cells=tuple(cells), takes=takes)
