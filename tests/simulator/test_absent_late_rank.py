"""A late rank that was not captured, where others of its stage were or were not."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from perfdoc.analyzers.pipeline.recorded_schedule import find_schedule
from perfdoc.results.what_if import WhatIfAnalysis
from perfdoc.rules.facts.culprit import leading
from perfdoc.simulator.recorded.what_if import what_if
from tests.analyzers.planted_operations import Lengths, matched, plant

STEPS = 6


def lengths(late: int, times: float, *, jitter: float = 0.005, data: float = 0.0, seed: int = 0) -> Lengths:
    """Passes of 1 and 2 ms, of one stage so many times as long. data: how far a micro-batch's passes of all
    stages differ from the mean together; jitter: each one alone."""

    def of(stage: int, replica: int, step: int, forward: bool, number: int) -> int:
        alone = random.Random(f"{seed} {stage} {replica} {step} {forward} {number}").uniform(-1, 1)
        together = random.Random(f"{seed} {replica} {step} {number}").uniform(-1, 1)
        ns = (1_000_000 if forward else 2_000_000) * (times if stage == late else 1)
        return round(ns * (1 + jitter * alone) * (1 + data * together))

    return of


def one_late(
    dp: int, missing: Sequence[int], sum_ns: int, *, sized: bool = True
) -> tuple[WhatIfAnalysis, float]:
    """(what is said where a rank of 4 x dp, the second replica's of the second stage, takes 1.6 times as long
    and these were not captured, what the step falls by without)."""

    def of(*place: int) -> int:
        return round(lengths(0, 1.0)(*place) * (1.6 if place[:2] == (1, 1) else 1))  # type: ignore[arg-type]

    def transfer_ns(_a: int, _b: int, replica: int) -> int:
        return sum_ns if replica == -1 else 1_000

    made, ends = plant(4, dp, 8, of, steps=STEPS, transfer_ns=transfer_ns)
    sound = plant(4, dp, 8, lengths(0, 1.0), steps=STEPS, transfer_ns=transfer_ns)[1]
    ranks = [r if sized else replace(r, bytes=np.full_like(r.bytes, -1)) for r in made]
    ranks = [r for r in ranks if r.rank not in missing]
    found = what_if(ranks, find_schedule(ranks), matched(ranks, dp), [r.rank for r in ranks])
    return found, float(np.mean(ends) - np.mean(sound))


@pytest.mark.parametrize(("dp", "missing"), [(2, [3]), (3, [4]), (3, [4, 3]), (3, [4, 5]), (3, [4, 8])])
@pytest.mark.parametrize("sum_ns", [1_000, 6_000_000])
def test_a_late_rank_has_its_price_whoever_else_was_not_captured(
    dp: int, missing: list[int], sum_ns: int
) -> None:
    """Others of its stage wait for it in the sum of gradients alone, which takes half as long."""
    found, truth = one_late(dp, missing, sum_ns)
    (cause,) = leading(found)
    assert (cause.kind, cause.ranks, cause.peers) == ("late_stage", missing[:1], dp - 1)
    assert cause.ratio is not None
    assert 1.2 < cause.ratio < 4
    assert cause.saved_ns == pytest.approx(truth, rel=0.01)
    assert cause.low_ns - 50_000 <= truth <= cause.high_ns + 50_000


def test_where_no_whole_group_tells_how_long_a_sum_takes_the_most_is_a_bound() -> None:
    found, truth = one_late(3, [4, 5], 6_000_000, sized=False)
    (cause,) = [c for c in found.causes if c.kind == "late_stage"]
    assert cause.low_ns < truth < cause.high_ns
    assert "bound" in cause.note


@pytest.mark.parametrize("seed", range(2))
def test_the_same_long_micro_batches_in_all_steps_are_no_late_rank(seed: int) -> None:
    """Each replica's micro-batches are up to 40 % longer or shorter on all stages, alike in every step: the
    replica of which a rank is missing waits longer for it, as its other ranks compute longer."""

    def of(stage: int, replica: int, step: int, forward: bool, number: int) -> int:
        alone = random.Random(f"{seed} {stage} {replica} {step} {forward} {number}").uniform(-1, 1)
        long = random.Random(f"{seed} {replica} {number}").uniform(-1, 1)
        return round((1_000_000 if forward else 2_000_000) * (1 + 0.005 * alone) * (1 + 0.4 * long))

    made, _ = plant(4, 3, 4, of, steps=STEPS)
    for missing in range(12):
        ranks = [r for r in made if r.rank != missing]
        found = what_if(ranks, find_schedule(ranks), matched(ranks, 3), [r.rank for r in ranks])
        assert "late_stage" not in {c.kind for c in found.causes}
