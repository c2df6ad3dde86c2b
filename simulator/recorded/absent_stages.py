"""Waits for stages that were not captured, against the same waits in other replicas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.pipeline.recorded_schedule import JobSchedule
from perfdoc.analyzers.steps.scatter import FEWEST_STEPS
from perfdoc.simulator.recorded.absent import MAX_UNSEEN_FRAC, unwaited_at, whole_alike
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.effects import ERRORS, MOSTLY, Effect
from perfdoc.simulator.recorded.walk import Plan, walk
from perfdoc.simulator.recorded.work import Link, usual_of
from perfdoc.traces.table import F64

FEW = 7.0
"""Of a scatter known from n differences, 1 + this / n² times as many errors are chance."""
BACKWARD = 3.0
"""Of a forward pass: a backward pass that computes activations again."""
SUMS_NOTE = "how long sums of gradients with it take without waiting is not known: the most is a bound"
LAST_NOTE = "its first stage's last backward pass is seen by no captured rank: up to {:.1f} ms more"


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


def with_waits_for_absent(job: RecordedJob, plan: Plan) -> RecordedJob:
    """The job in which messages of those who exchange some with an absent rank too last beyond their captured
    sides' coming as long as they did: the replay alone knows when these came, durations do not."""
    cells = job.cells
    rows = [c for c, cell in enumerate(cells) if cell.kind == "messages" and len(cell.partners) > 1]
    waits = {c: job.lasts[c][None, :] for c in rows if _absent(job, c)}
    if not waits:
        return job
    walk(plan, lambda c: job.takes[c][None, :], (1, job.takes.shape[1]), waits)
    takes = job.takes.copy()
    takes[[*waits]] = np.concatenate([*waits.values()])
    return replace(job, takes=takes)


def with_late_stages(job: RecordedJob, slow: Sequence[Effect], recorded: F64) -> list[Effect]:
    """Slow ranks with their replicas' waits for absent stages; others' that are longer than their peers'.
    recorded: ends of the steps as they were replayed."""
    links: dict[int, list[Link]] = defaultdict(list)
    transfer: dict[int, list[Link]] = defaultdict(list)
    waits: dict[int, list[tuple[F64, F64]]] = defaultdict(list)
    alone: dict[int, tuple[tuple[int, ...], int]] = {}
    longer = float((job.span_ns - recorded).mean())
    least = longer if longer < MAX_UNSEEN_FRAC * job.span_ns.mean() else 0.0
    unseen: dict[int, float] = {}
    uneven: dict[int, float] = defaultdict(float)
    cells = job.of_member
    held_up = {job.replica[m] for e in slow for m in e.members}
    for member, mine in enumerate(cells):
        at = [k for k, c in enumerate(mine) if _absent(job, c)]
        alike = [m for m, stage in enumerate(job.stage) if stage == job.stage[member] and m != member]
        alike = [m for m in alike if len(cells[m]) == len(mine)]
        alike = [m for m in alike if job.replica[m] not in held_up] or alike
        lonely = [mine[k] for k in at if job.cells[mine[k]].kind == "messages"]
        transfer[job.replica[member]] += [] if alike else [([mine[k] for k in at], np.zeros((len(at), 1)))]
        works = [k for k, c in enumerate(mine) if job.cells[c].is_compute] if alike else []
        if works:
            # Micro-batches that are long in every step, on the ranks that are here.
            usual = usual_of([job.takes[[cells[m][k] for k in works]] for m in alike])
            longer_ns = job.takes[[mine[k] for k in works]] - usual
            by_chance = 2 * longer_ns.std(axis=1) / np.sqrt(longer_ns.shape[1])
            uneven[job.replica[member]] += float((abs(longer_ns.mean(axis=1)) - by_chance).clip(0.0).sum())
        if lonely and alike:
            own, replica = [mine[k] for k in at], job.replica[member]
            # With waiting: of those whose ranks are all here nothing but the transfer is left without.
            theirs = [[cells[m][k] for k in at] for m in alike]
            peers = [job.lasts[of] for of in theirs]
            beyond = job.lasts[own] - usual_of(peers)
            same = [job.takes[of] for of in theirs if all(_absent(job, c) for c in of)]
            left = [np.maximum(job.takes[own] - beyond, 0.0), *([usual_of(same)] if same else [])]
            links[replica].append((own, np.minimum.reduce(left)))
            transfer[replica].append((own, usual_of([job.takes[of] for of in theirs])))
            # Each wait is for what the late one takes longer for a micro-batch, the first for a forward pass.
            excess = beyond.mean(axis=1)
            most = max(least, float(excess.max()), BACKWARD * float(excess[0]))
            unseen[replica] = max(unseen.get(replica, 0.0), most)
            # One replica's, in all steps: of two the shorter in each is shorter than what either waits.
            each = sorted((p.sum(axis=0) for p in peers), key=np.mean)
            waits[replica].append((job.lasts[own].sum(axis=0), each[(len(each) - 1) // 2]))
            alone[replica] = _absent(job, lonely[0]), len(peers)
    both = {r: np.sum(of, axis=0) for r, of in waits.items()}
    spread = [np.var(own - usual, ddof=1) for own, usual in both.values() if len(own) >= FEWEST_STEPS]
    scatter = np.sqrt(np.mean(spread)) if spread else np.inf
    errors = ERRORS * (1 + FEW / max(sum(len(own) - 1 for own, _ in both.values()), 1) ** 2)
    held = [tuple(link for m in e.members for link in links.pop(job.replica[m], ())) for e in slow]
    found = [replace(e, links=of) for e, of in zip(slow, held, strict=True)]
    for r, of in links.items():
        (own, usual), (missing, count) = both[r], alone[r]
        beyond = own - usual
        here = {s for s, of in zip(job.stage, job.replica, strict=True) if of == r}
        if beyond.mean() > errors * scatter / np.sqrt(len(own)) + uneven[r]:
            sums, untold = _sums_with_absent(job, here)
            notes = [] if 0 in here else [LAST_NOTE.format(unseen[r] / 1e6)]
            notes += [SUMS_NOTE] if untold else []
            late = Effect(
                kind="late_stage",
                links=(*of, (sums, unwaited_at(job, sums))) if sums else tuple(of),
                ranks=missing,
                ratio=float(own.mean() / max(usual.mean(), 1.0)),
                peers=count,
                recurrence_frac=float((beyond > MOSTLY * beyond.mean()).mean()),
                unseen_ns=0.0 if 0 in here else unseen[r],
                note="; ".join(notes),
            )
            # At most all that is waited there is for it, sums whose transfer nothing tells among them.
            gone = (*late.links, *transfer[r], (untold, np.zeros((len(untold), 1))))
            found.append(replace(late, otherwise=replace(late, links=gone)))
    return found


def _sums_with_absent(job: RecordedJob, here: Set[int]) -> tuple[list[int], list[int]]:
    """(cells in which other replicas of an absent rank wait for it as they sum gradients, those of them whose
    transfer no whole group tells). here: stages captured of its replica, to none of which it belongs."""
    sums = [
        c for c, cell in enumerate(job.cells) if cell.is_collective and job.stage[cell.member] not in here
    ]
    whole = whole_alike(job, sums)
    known = {c for of in whole.values() for c in of}
    # Of unknown size a group may seem whole that is smaller than those of other stages.
    apart = {c for c in sums if not (job.cells[c].group_size or c in known)}
    found = [c for c in sums if job.cells[c].is_partly_absent or c in apart]
    return found, [c for c in found if not whole[job.cells[c].kind, job.cells[c].bytes]]


def _absent(job: RecordedJob, c: int) -> tuple[int, ...]:
    """Ranks that were not captured that a cell waits for; of messages also through the other side's batch."""
    cell = job.cells[c]
    sides = (c, *cell.partners) if cell.kind == "messages" else (c,)
    return next((missing for side in sides if (missing := job.cells[side].missing)), ())
