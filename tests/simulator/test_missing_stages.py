"""A stage of which no replica was captured: found by what captured stages wait for each micro-batch, with a
price that holds what was planted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest

from perfdoc.analyzers.pipeline.recorded_schedule import find_schedule
from perfdoc.results.what_if import WhatIfAnalysis
from perfdoc.rules.facts.culprit import leading
from perfdoc.rules.facts.culprit_words import cure, does
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


def seen(
    pp: int,
    dp: int,
    count: int,
    kept: Sequence[int],
    of: Lengths,
    *,
    chunks: int = 1,
    message_ns: int = 1_000,
) -> tuple[WhatIfAnalysis, float]:
    """(what captures of these stages say, the step)."""
    made, ends = plant(
        pp,
        dp,
        count,
        of,
        steps=STEPS,
        chunks=chunks,
        transfer_ns=lambda a, b, _: message_ns if a != b else 1_000,
    )
    ranks = [r for r in made if r.rank is not None and r.rank // dp in kept]
    return what_if(ranks, find_schedule(ranks), matched(ranks, dp), [r.rank for r in ranks]), float(
        np.mean(ends)
    )


@pytest.mark.parametrize(
    ("pp", "dp", "count", "late", "kept", "chunks"),
    [
        (4, 1, 8, 2, [0], 1),
        (4, 1, 8, 0, [3], 1),
        (4, 2, 9, 2, [0, 1, 3], 1),
        (2, 1, 6, 1, [0], 1),
        (8, 1, 16, 5, [2, 3], 1),
        (4, 1, 8, 0, [1, 2], 2),
        (3, 2, 6, 2, [0], 2),
    ],
)
@pytest.mark.parametrize("times", [1.3, 2.0])
def test_it_leads_with_its_price(
    pp: int, dp: int, count: int, late: int, kept: list[int], chunks: int, times: float
) -> None:
    found, step_ns = seen(pp, dp, count, kept, lengths(late, times), chunks=chunks)
    truth = step_ns - seen(pp, dp, count, kept, lengths(late, 1.0), chunks=chunks)[1]
    (cause,) = leading(found)
    missing = [stage for stage in range(pp) if stage not in kept]
    assert (cause.kind, cause.stage) == ("late_stage", late if len(missing) == 1 else None)
    assert cause.ranks == [stage * dp + replica for stage in missing for replica in range(dp)]
    assert cause.ratio == pytest.approx(times, rel=0.02)
    assert cause.low_ns <= truth <= cause.high_ns
    if chunks == 1:
        assert cause.saved_ns == pytest.approx(truth, abs=0.1 * step_ns)
    said = does(cause, found)
    assert "or its link or its host" in said
    assert said.startswith("A stage" if len(missing) > 1 else ("The last", "The first", "Stage 2"))
    assert cure(cause).startswith("Capture rank")


@pytest.mark.parametrize(
    ("pp", "count", "kept", "data", "message_ns", "chunks"),
    [
        (4, 8, [0], 0.0, 1_000, 1),
        (4, 16, [3], 0.5, 1_000, 1),
        (8, 16, [3], 0.3, 1_000, 1),
        (4, 16, [0], 0.0, 600_000, 1),
        (4, 16, [1, 2], 0.0, 1_000_000, 1),
        (4, 8, [1], 0.5, 1_000, 2),
    ],
)
def test_a_sound_pipeline_has_none(
    pp: int, count: int, kept: list[int], data: float, message_ns: int, chunks: int
) -> None:
    """Neither uneven micro-batches nor slow messages make a stage late."""
    of = lengths(0, 1.0, data=data)
    found, _ = seen(pp, 2, count, kept, of, chunks=chunks, message_ns=message_ns)
    assert "late_stage" not in {c.kind for c in found.causes}


@pytest.mark.parametrize("count", [4, 5, 7])
def test_a_pipeline_that_is_full_for_too_short_tells_nothing(count: int) -> None:
    found, _ = seen(4, 1, count, [0, 3], lengths(2, 1.6))
    assert (found.state, found.causes) == ("measured", [])


def test_the_captured_stage_that_is_long_is_no_missing_one() -> None:
    found, _ = seen(4, 1, 12, [0, 1, 3], lengths(1, 1.6))
    assert [(c.kind, c.stage) for c in found.causes] == [("long_stage", 1)]


def test_both_a_captured_and_a_missing_stage_are_late() -> None:
    """Of 1.8 and 1.5: the missing one is compared with the longest that was captured."""

    def of(*place: int) -> int:
        return round(lengths(2, 1.8)(*place) * (1.5 if place[0] == 1 else 1))  # type: ignore[arg-type]

    found, step_ns = seen(4, 1, 12, [0, 1, 3], of)
    first, second = found.causes
    assert (first.kind, first.stage, second.kind, second.stage) == ("late_stage", 2, "long_stage", 1)
    assert first.ratio == pytest.approx(1.2, rel=0.02)
    truth = step_ns - seen(4, 1, 12, [0, 1, 3], lengths(2, 1.0))[1]
    assert first.saved_ns + second.saved_ns <= truth


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(80))
def test_the_truth_is_in_the_band_of_any_pipeline(seed: int) -> None:
    chance = random.Random(seed)
    pp, dp, chunks = chance.choice([2, 3, 4, 6, 8]), chance.choice([1, 1, 2, 3]), chance.choice([1, 1, 2])
    chunks = 1 if pp == 2 else chunks
    count = pp * chance.choice([2, 3, 4]) if chunks > 1 else chance.randint(2 * pp, 4 * pp)
    late, times = chance.randrange(pp), chance.choice([1.0, 1.2, 1.3, 1.6, 2.3])
    others = [stage for stage in range(pp) if stage != late]
    kept = sorted(chance.sample(others, chance.randint(1, len(others))))
    jitter, message_ns = chance.choice([0.005, 0.02, 0.06]), chance.choice([1_000, 100_000])

    def at(ratio: float) -> tuple[WhatIfAnalysis, float]:
        of = lengths(late, ratio, jitter=jitter, seed=seed)
        return seen(pp, dp, count, kept, of, chunks=chunks, message_ns=message_ns)

    found, step_ns = at(times)
    causes = [c for c in found.causes if c.kind == "late_stage"]
    if times == 1.0:
        assert causes == []
    for cause in causes:
        assert cause.low_ns <= step_ns - at(1.0)[1] <= cause.high_ns
    if not causes and times > 1:
        pytest.skip(f"silent: {found.reason or times}")
