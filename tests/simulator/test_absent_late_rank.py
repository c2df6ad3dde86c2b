"""A late rank that was not captured, where another replica of its stage was."""

from __future__ import annotations

import random

import numpy as np
import pytest

from perfdoc.analyzers.pipeline.recorded_schedule import find_schedule
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


@pytest.mark.parametrize("also", [0, 2])
def test_a_late_rank_has_its_price_where_another_replica_of_its_stage_was_captured(also: int) -> None:
    """Rank 4 of 4 x 3 is slow; of its stage one other rank was captured, which waits for it in the sum of
    gradients alone. The third, which was not, is as sound as that one."""

    def of(*place: int) -> int:
        return round(lengths(0, 1.0)(*place) * (1.6 if place[:2] == (1, 1) else 1))  # type: ignore[arg-type]

    made, ends = plant(4, 3, 8, of, steps=STEPS)
    truth = np.mean(ends) - np.mean(plant(4, 3, 8, lengths(0, 1.0), steps=STEPS)[1])
    ranks = [r for r in made if r.rank is not None and (r.rank // 3 != 1 or r.rank == 3 + also)]
    found = what_if(ranks, find_schedule(ranks), matched(ranks, 3), [r.rank for r in ranks])
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.peers) == ("late_stage", [4], 1)
    assert cause.saved_ns == pytest.approx(truth, rel=0.01)
    assert cause.low_ns - 50_000 <= truth <= cause.high_ns + 50_000
