"""Ranks whose hosts are late in turn, each at places of the step of its own: their sums may be alike."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.binomial import at_least
from perfdoc.analyzers.steps.scatter import CHANCE, beyond_chance, is_nearly_always, student_t
from perfdoc.simulator.recorded.effects import MOSTLY, Effect, excess_of
from perfdoc.simulator.recorded.work import StageWork, usual_of
from perfdoc.traces.table import F64, Bool

FEWEST, LEAST_FRAC = 3, 0.01
"""Steps; of all work of a step, what a host is late at one place."""


def late_in_turn(works: Sequence[StageWork], slow: Sequence[Effect]) -> list[Effect]:
    """These ranks as one effect, all whom sums alone show among them. slow: what those show."""
    work = works[0] if len(works) == 1 else None
    if work is None or not work.is_by_place or work.own.shape[2] < FEWEST:
        return []
    usual, lates = work.own.copy(), np.zeros_like(work.own, bool)
    certain = np.zeros(len(work.own), bool)
    above = (work.own - work.own.min(axis=0)).mean(axis=2)
    for m, i in np.argwhere(above > LEAST_FRAC * work.own.sum(axis=1).mean()).tolist():
        usual[m, i] = usual_of(np.delete(work.own[:, i], m, axis=0))
        lates[m, i] = _late_at(work, m, i, usual[m, i], CHANCE)
        if lates[m, i].any():
            certain[m] |= _late_at(work, m, i, usual[m, i], CHANCE / len(work.items)).any()
    for m, places in enumerate(lates.any(axis=2).sum(axis=1).tolist()):
        certain[m] |= at_least(places, len(work.items), CHANCE) <= CHANCE
    lates &= certain[:, None, None]
    late = lates.any(axis=(1, 2))
    members = tuple(np.array(work.members)[late].tolist())
    if len(members) < 2 or any(e.kind != "late_host" or not {*e.members} <= {*members} for e in slow):
        return []
    own = (np.where(lates, np.minimum(1.0, usual / np.maximum(work.own, 1.0)), 1.0),)
    ratio = float(work.own[lates].sum() / usual[lates].sum())
    often, most = float(lates.max(axis=1)[late].mean(axis=1).min()), excess_of(work, own[0], "late_host")
    found = Effect(kind="late_host", members=members, ratio=ratio, recurrence_frac=often, own=own)
    return [replace(found, note="cured alone, each saves its own part", excess_ns=most)]


def _late_at(work: StageWork, m: int, i: int, usual: F64, chance: float) -> Bool:
    """The steps in which a rank's host is late at a place: nearly all, and beyond what chance does there, by
    what it is late in each step. usual: what its peers take there."""
    own, gaps = work.own[:, i], work.gaps[:, i]
    beyond, idle = own[m] - usual, gaps[m] - usual_of(np.delete(gaps, m, axis=0))
    sure = student_t(len(beyond) - 1, 1 - chance) / np.sqrt(len(beyond))
    is_so = beyond.mean() > sure * beyond.std(ddof=1) and idle.mean() > MOSTLY * beyond.mean()
    found = beyond_chance(own, m) if is_so and is_nearly_always(own[m] / np.maximum(usual, 1.0)) else None
    return np.zeros(len(beyond), bool) if found is None else found
