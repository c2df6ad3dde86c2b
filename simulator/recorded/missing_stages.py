"""A stage of which no replica was captured and for which all wait: by how often a captured one comes to its
next micro-batch, against what it computes for one.

Once a 1F1B pipeline is full every stage does as many micro-batches as the slowest one. A forward pass that
follows a backward pass is of a full pipeline; with twice as many micro-batches as stages each has several.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace
from itertools import pairwise

import numpy as np

from perfdoc.simulator.job.schedule import run_schedule
from perfdoc.simulator.recorded.cells import RecordedJob
from perfdoc.simulator.recorded.effects import NEARLY_ALWAYS, Effect, usual_of
from perfdoc.traces.table import F64

LEAST = 0.05
"""Above what captured stages compute: less is no effect, nor is what forward passes
scatter; where they do, sound stages wait for each other by about as much again."""
FULL = 2
"""Micro-batches over stages from which on a pipeline is full for long enough to tell."""
MESSAGES = 4
"""Of a stage for each micro-batch: one in and one out, either way."""
FORWARD_FRAC = 1 / 3
"""Of a micro-batch's passes, where it is not known."""
NOTE = "none of its ranks was captured: a slow GPU, more layers, its host or its link look the same from here"


def missing_stage(job: RecordedJob, absent: Set[int], recorded: F64) -> list[Effect]:
    """At most one. absent: cells of messages to or from ranks that were not captured.
    recorded: ends of the steps."""
    missing = [stage for stage in range(job.pp) if stage not in job.stage]
    if not missing or job.micro_batches < FULL * job.pp:
        return []
    own: dict[int, list[F64]] = {}
    forwards: list[F64] = []
    for mine, stage in zip(job.of_member, job.stage, strict=True):
        passes = {c: job.cells[c].passes for c in mine if job.cells[c].passes}
        own.setdefault(stage, []).append(job.takes[[*passes]].sum(axis=0) / (job.micro_batches * job.vpp))
        ahead = [c for c, of in passes.items() if all(is_forward for is_forward, _ in of)]
        forwards += [job.takes[ahead]] if ahead else []
    each = {stage: float(usual_of(of).mean()) for stage, of in own.items()}
    longest, usual = max(each.values()), float(np.mean([*each.values()]))
    lonely = [(m, [c for c in mine if c in absent]) for m, mine in enumerate(job.of_member)]
    waits = {m: cells for m, cells in lonely if cells and len(_turns(job, m)) > 1}
    if not waits:
        return []
    every = {m: _every_ns(job, m, cells) for m, cells in waits.items()}
    # Of a pipeline the one that waits most: others wait for it, or elsewhere.
    most = {job.replica[m]: m for m in sorted(every, key=lambda m: float(every[m].mean()))}
    ratio = usual_of([every[m] for m in most.values()]) / max(longest, 1.0)
    times = float(ratio.mean())
    scatter = float(np.mean([of.std() / of.mean() for of in forwards])) if forwards else 0.0
    fastest = float(np.mean([job.takes[waits[m]].min(axis=0).mean() for m in most.values()]))
    # Messages that stages stand still for make a sound pipeline longer than one stage's own.
    surely = times - scatter - 2 * fastest / max(longest, 1.0)
    often = float((ratio > (1 + times) / 2).mean())
    if surely < 1 + max(LEAST, scatter) or often < NEARLY_ALWAYS:
        return []
    share = float(np.mean([of.mean() for of in forwards])) / usual if forwards else FORWARD_FRAC

    def step_ns(late: Sequence[int], times: float, message: float) -> float:
        takes = [times * longest if s in late else each.get(s, usual) for s in range(job.pp)]
        return run_schedule(
            micro_batches=job.micro_batches,
            forward=[[share * ns] * job.vpp for ns in takes],
            backward=[[(1 - share) * ns] * job.vpp for ns in takes],
            message=message,
            overlap=False,
        ).length

    even = step_ns([], 1.0, fastest)
    ways = [step_ns([stage], times, fastest) - even for stage in missing]
    least = min(step_ns([stage], surely, fastest) for stage in missing) - even
    # All of them may be late, and what seems to be transfer waiting too. Of exchanges in which messages of
    # several chunks go together the model leaves out who waits for whom. Last passes of first stages end the
    # step where nobody sees them.
    slowest, quickest = times + MESSAGES * fastest / max(longest, 1.0), step_ns([], 1.0, 0.0)
    several = [*([stage] for stage in missing), missing]
    at_most = max(step_ns(late, slowest, 0.0) for late in several) - quickest
    hidden = slowest * longest * (1 - share) * min(job.stage)
    at_most = max(at_most, float(recorded.mean()) + hidden - quickest) if job.vpp > 1 else at_most
    middle = float(np.median(ways))
    by_step = (ratio - 1) / (times - 1)
    found = Effect(
        kind="late_stage",
        stage=missing[0] if len(missing) == 1 else None,
        ranks=tuple(sorted({r for cells in waits.values() for c in cells for r in job.cells[c].missing})),
        ratio=times,
        recurrence_frac=often,
        falls_ns=middle * by_step,
        unseen_ns=max(at_most - middle, 0.0),
        note=NOTE,
    )
    return [replace(found, otherwise=replace(found, falls_ns=least * by_step))]


def _turns(job: RecordedJob, member: int) -> list[int]:
    """Forward passes that follow a backward pass: places among the rank's cells."""
    found, was_backward = [], False
    for at, c in enumerate(job.of_member[member]):
        if passes := job.cells[c].passes:
            found += [at] if passes[0][0] and was_backward else []
            was_backward = not passes[-1][0]
    return found


def _every_ns(job: RecordedJob, member: int, absent: Sequence[int]) -> F64:
    """From one turn to the next, by step: its passes, and its messages beyond the fastest."""
    mine, turns, every = job.of_member[member], _turns(job, member), []
    transfer = job.takes[absent].min(axis=0)
    for since, until in pairwise(turns):
        cells = mine[since:until]
        messages = [c for c in cells if c in absent]
        passes = [c for c in cells if job.cells[c].passes]
        every.append(job.takes[passes + messages].sum(axis=0) - len(messages) * transfer)
    usual: F64 = np.median(every, axis=0)
    return usual
