"""Ranks that go through their passes together: tensor-parallel groups of which all ranks were captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from perfdoc.analyzers.communication.calls import CallGroup
from perfdoc.analyzers.communication.matches import Matches, MatchGroup, no_matches
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.pipeline.operations import COMPUTE, RankOperations
from perfdoc.analyzers.pipeline.recorded_schedule import find_schedule
from perfdoc.results.what_if import WhatIfAnalysis
from perfdoc.rules.facts.culprit_words import does
from perfdoc.simulator.recorded.effects import slow_ranks
from perfdoc.simulator.recorded.what_if import what_if
from perfdoc.simulator.recorded.work import StageWork
from tests.analyzers.planted_operations import plant
from tests.simulator.test_what_if import even

STEPS = 6
Slow = Callable[[int, int, int, int], float]
"""How many times as long (stage, replica, member of the group, step) computes."""


def times(pp: int, dp: int, slow: Slow, steps: int = STEPS) -> tuple[list[RankOperations], float]:
    """Groups of two ranks, the second with a number behind all first ones, and the mean step: a pass takes as
    long as it does the slower of the two, and the other one waits for it in collectives inside."""

    def lasts(stage: int, replica: int, step: int, forward: bool, number: int) -> int:
        worst = max(slow(stage, replica, t, step) for t in range(2))
        return round(even(stage, replica, step, forward, number) * worst)

    first, ends = plant(pp, dp, 4, lasts, steps=steps)
    found = []
    for t in range(2):
        for i, rank in enumerate(first):
            stage, replica = divmod(i, dp)
            each = [[slow(stage, replica, u, step) for u in range(2)] for step in range(steps)]
            own = np.array([e[t] / max(e) for e in each])
            shared, before = (
                np.where(rank.kind[:, None] == COMPUTE, busy * (1 - own), 0).astype(np.int64)
                for busy in (rank.busy_ns, rank.busy_before_ns)
            )
            group = rank.groups[0]
            moved = CallGroup(
                name=f"{t}", ranks=tuple(r + t * len(first) for r in group.ranks), size=group.size
            )
            found.append(
                replace(
                    rank,
                    rank=i + t * len(first),
                    label=f"rank {i + t * len(first)}",
                    groups=(moved,),
                    peer=np.where(rank.peer >= 0, rank.peer + t * len(first), -1),
                    shared_ns=shared,
                    shared_before_ns=before,
                )
            )
    return found, float(np.mean(ends))


def in_groups(ranks: Sequence[RankOperations], dimension: str = "tp") -> Matches:
    """One collective of every two ranks, inside a pass."""
    half = len(ranks) // 2
    return replace(
        no_matches("", ""),
        state="measured",
        groups=tuple(MatchGroup(label=f"{i}", size=2, members=(i, i + half)) for i in range(half)),
        operations=("all_reduce",),
        first=np.arange(half + 1) * 2,
        member=np.array([m for i in range(half) for m in (i, i + half)], np.int32),
        row=np.full(2 * half, 10**6),
        group=np.arange(half, dtype=np.int32),
        operation=np.zeros(half, np.int32),
        dimension=np.full(half, DIMENSIONS.index(dimension), np.int8),
        is_complete=np.ones(half, bool),
    )


def analysed(ranks: Sequence[RankOperations], dimension: str = "tp") -> WhatIfAnalysis:
    return what_if(ranks, find_schedule(ranks), in_groups(ranks, dimension), [r.rank for r in ranks])


def even_job(*_: int) -> float:
    return 1.0


def test_the_slow_rank_of_a_group_and_not_its_neighbour_has_the_price() -> None:
    # Rank 9 is the second member of stage 0's replica 1 in a job of 8 groups: (0, 1, 1).
    ranks, step = times(4, 2, lambda *p: 2.0 if p[:3] == (0, 1, 1) else 1.0)
    found = analysed(ranks)
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.peers) == ("slow_rank", [9], 15)
    assert cause.ratio == pytest.approx(2.0, rel=0.02)
    assert cause.saved_ns == pytest.approx(step - times(4, 2, even_job)[1], rel=0.03)
    # Alone with its own durations it makes the step longer; its neighbour does not.
    slowdown = {p.name: p.slowdown for p in found.by_rank}
    assert slowdown["rank 9"] > 1.2 > 1.02 > slowdown["rank 1"]


def test_two_slow_ranks_of_one_group_have_a_price_together() -> None:
    # Without one of them the group goes on at the speed of the other.
    ranks, step = times(2, 2, lambda *p: {0: 1.5, 1: 1.6}[p[2]] if p[:2] == (0, 0) else 1.0)
    found = analysed(ranks)
    assert {r for c in found.causes for r in c.ranks} == {0, 4}
    assert sum(c.saved_ns for c in found.causes) == pytest.approx(
        step - times(2, 2, even_job)[1], abs=0.03 * step
    )


def test_a_rank_that_shares_experts_may_have_more_tokens() -> None:
    ranks, _ = times(2, 2, lambda *p: 1.5 if p[:3] == (0, 1, 1) else 1.0)
    assert "experts" in analysed(ranks, "ep").causes[0].note
    assert analysed(ranks).causes[0].note == ""


@pytest.mark.parametrize(
    ("slow_steps", "said", "since"),
    [({0, 2, 4}, "in 50 % of the steps", ""), ({3, 4, 5}, "from step 3 on", "step 3")],
)
def test_a_rank_that_is_slow_in_some_steps(slow_steps: set[int], said: str, since: str) -> None:
    ranks, step = times(2, 3, lambda *p: 1.6 if p[:3] == (1, 2, 0) and p[3] in slow_steps else 1.0)
    found = analysed(ranks)
    (cause,) = found.causes
    assert (cause.ranks, cause.since) == ([5], since)
    assert cause.ratio == pytest.approx(1.6, rel=0.02)
    assert cause.saved_ns == pytest.approx(step - times(2, 3, even_job)[1], abs=0.02 * step)
    assert said in does(cause, found)


def test_a_hiccup_and_hiccups_of_everybody_are_nobody_s_habit() -> None:
    once, _ = times(2, 3, lambda *p: 1.6 if p == (1, 2, 0, 3) else 1.0)
    assert analysed(once).causes == []
    # In each step another rank, and the last one twice.
    places = [(s, r, t) for s in range(2) for r in range(3) for t in range(2)]
    each = {step: places[step % 5] for step in range(10)}
    everybody, _ = times(2, 3, lambda *p: 1.6 if each[p[3]] == p[:3] else 1.0, steps=10)
    assert [c for c in analysed(everybody).causes if c.ranks] == []


@pytest.mark.parametrize(("every", "found"), [(3, True), (0, False)])
def test_a_rank_that_is_slow_in_some_of_very_many_steps_is_found(every: int, *, found: bool) -> None:
    """2,000 steps, of which one rank is half as long again in every third: the ways to choose them are no
    float."""
    own = np.full((4, 2, 2_000), 1e6)
    if every:
        own[1, :, ::every] *= 1.5
    work = StageWork(
        stage=0,
        members=(0, 1, 2, 3),
        items=(("forward", 0), ("backward", 0)),
        takes=own,
        gaps=np.zeros_like(own),
        own=own,
        units=(0, 1, 2, 3),
        shares_experts=(False,) * 4,
        several=(False,) * 4,
        data=(0, 1, 2, 3),
        stretches=np.zeros((*own.shape[:2], 0, own.shape[2])),
        is_experts=np.zeros((*own.shape[:2], 0), bool),
        cells=(),
    )
    assert [effect.members for effect in slow_ranks([work])] == ([(1,)] if found else [])
