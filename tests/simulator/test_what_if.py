"""The replay of recorded operations: steps as they were planted, and what is lost to what."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.pipeline.recorded_schedule import find_schedule
from perfdoc.results.what_if import WhatIfAnalysis
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.culprit import gain_of, leading
from perfdoc.rules.facts.culprit_words import does, who, why_blamed
from perfdoc.simulator.recorded.cells import Cell
from perfdoc.simulator.recorded.walk import plan_of, walk, with_buffered_sends
from perfdoc.simulator.recorded.what_if import what_if
from tests.analyzers.planted_operations import Lengths, matched, plant

STEPS = 8


def even(stage: int, replica: int, step: int, forward: bool, number: int) -> int:
    """Passes of one length, but for a hundredth of noise."""
    noise = random.Random(f"{stage} {replica} {step} {forward} {number}").random()
    return round((1_000_000 if forward else 2_000_000) * (0.995 + 0.01 * noise))


def test_a_replay_that_is_longer_than_the_step_is_none() -> None:
    """Launch delays are left out of it: it may be shorter. 6 % longer, waits were read wrongly."""
    ranks, ends = plant(2, 2, 4, even, steps=STEPS)
    for frac, state in ((1.5, "measured"), (1.0, "measured"), (1 / 1.06, "not_measured")):
        step_ns = [np.full(STEPS, round(frac * float(np.mean(ends)))) for _ in ranks]
        changed = [replace(rank, step_ns=ns) for rank, ns in zip(ranks, step_ns, strict=True)]
        found = what_if(changed, find_schedule(ranks), matched(ranks, 2), [r.rank for r in ranks])
        assert (found.state, bool(found.reason)) == (state, state != "measured")


def replayed(pp: int, dp: int, count: int, lengths: Lengths) -> tuple[WhatIfAnalysis, list[float]]:
    ranks, ends = plant(pp, dp, count, lengths, steps=STEPS)
    return what_if(ranks, find_schedule(ranks), matched(ranks, dp), [r.rank for r in ranks]), ends


@given(pp=st.integers(2, 4), dp=st.integers(1, 3), count=st.integers(1, 6), seed=st.integers(0, 99))
def test_the_step_is_the_one_that_was_planted(pp: int, dp: int, count: int, seed: int) -> None:
    def lengths(*place: int) -> int:
        return random.Random(f"{seed} {place}").randint(300_000, 3_000_000)

    found, ends = replayed(pp, dp, count, lengths)
    assert found.step_ns == pytest.approx(np.mean(ends), rel=1e-4)


def test_a_pipeline_of_two_by_hand() -> None:
    # One micro-batch, forward 1 and backward 2 ms, the second stage twice as long: 1 + 2 + 4 + 2 ms and four
    # transfers of 1 us (gather, two messages, reduce-scatter); each kind's mean: 1.5 + 1.5 + 3 + 3.
    def lengths(stage: int, _replica: int, _step: int, forward: bool, _number: int) -> int:
        return (1 + stage) * (1_000_000 if forward else 2_000_000)

    found, _ = replayed(2, 1, 1, lengths)
    assert found.step_ns == pytest.approx(9_004_000, abs=100)
    assert found.ideal_ns == pytest.approx(9_004_000, abs=100)
    # Only the second stage's own: 1.5 + 2 + 4 + 3.
    slowdown = {p.name: p.slowdown for p in found.by_stage}
    assert slowdown["stage 1"] == pytest.approx(10.504 / 9.004, rel=1e-4)
    assert slowdown["stage 0"] == pytest.approx(7.504 / 9.004, rel=1e-4)


def slow_rank(*place: int, of: Lengths = even) -> int:
    stage, replica, *_ = place
    return round(of(*place) * (2.3 if (stage, replica) == (1, 2) else 1))


def long_stage(*place: int, of: Lengths = even) -> int:
    return round(of(*place) * (1.6 if place[0] == 3 else 1))


def uneven(*place: int, of: Lengths = even) -> int:
    _, replica, step, _, number = place
    return round(of(*place) * random.Random(f"{replica} {step} {number}").choice([0.6, 0.8, 1, 1.6]))


CAUSES: Mapping[str, Callable[..., int]] = {
    "slow_rank": slow_rank,
    "long_stage": long_stage,
    "uneven_data": uneven,
}


def price(with_it: Lengths, without: Lengths) -> float:
    """What a step of the planted job falls by."""
    return float(
        np.mean(plant(4, 4, 8, with_it, steps=STEPS)[1]) - np.mean(plant(4, 4, 8, without, steps=STEPS)[1])
    )


@pytest.mark.parametrize("kind", CAUSES)
def test_one_cause_is_named_with_its_price(kind: str) -> None:
    found, ends = replayed(4, 4, 8, CAUSES[kind])
    (cause,) = found.causes
    assert cause.kind == kind
    assert cause.saved_ns == pytest.approx(price_of(kind, CAUSES[kind], even), abs=0.05 * np.mean(ends))
    assert cause.low_ns <= cause.saved_ns <= cause.high_ns
    assert cause.step_ns == pytest.approx(found.step_ns - cause.saved_ns, abs=2)  # type: ignore[operator]
    if kind == "slow_rank":
        assert (cause.ranks, cause.stage, cause.peers) == ([6], 1, 15)
        assert cause.ratio == pytest.approx(2.3, rel=0.01)
    if kind == "long_stage":
        assert (cause.ranks, cause.stage, cause.peers) == ([], 3, 3)
        assert cause.ratio == pytest.approx(1.6, rel=0.01)


def price_of(kind: str, with_it: Lengths, without: Lengths) -> float:
    """A long stage is as long as the mean stage without its excess: 1.15 of the others."""
    mean = (lambda *p: round(without(*p) * (1.15 if p[0] == 3 else 1))) if kind == "long_stage" else without
    return price(with_it, mean)


@pytest.mark.parametrize("first", CAUSES)
@pytest.mark.parametrize("second", CAUSES)
def test_two_causes_are_told_apart(first: str, second: str) -> None:
    if first >= second:
        return
    found, _ = replayed(4, 4, 8, partial(CAUSES[first], of=CAUSES[second]))
    assert {c.kind for c in found.causes} == {first, second}


@pytest.mark.parametrize("seed", range(3))
def test_the_price_of_uneven_data_allows_for_a_slow_rank_that_they_hide(seed: int) -> None:
    """With lengths of +- 50 % one of eight ranks is 1.2 times as slow, unseen: even lengths leave it so."""

    def long(replica: int, step: int, number: int) -> float:
        return 1 + random.Random(f"{seed} {replica} {step} {number}").uniform(-0.5, 0.5)

    def lengths(*place: int, usual: float | None = None) -> int:
        stage, replica, step, _, number = place
        over = usual or long(replica, step, number)
        return round(even(*place) * over * (1.2 if (stage, replica) == (1, 1) else 1))  # type: ignore[arg-type]

    ranks, ends = plant(2, 4, 4, lengths, steps=3)
    found = what_if(ranks, find_schedule(ranks), matched(ranks, 4), [r.rank for r in ranks])
    mean = float(np.mean([long(*at) for at in np.ndindex(4, 3, 4)]))
    truth_ns = np.mean(ends) - np.mean(plant(2, 4, 4, partial(lengths, usual=mean), steps=3)[1])
    assert [c.kind for c in found.causes] == ["uneven_data"]
    assert found.causes[0].low_ns - 50_000 < truth_ns < found.causes[0].high_ns + 50_000


def test_an_even_job_has_no_cause() -> None:
    found, _ = replayed(4, 4, 8, even)
    assert found.causes == []
    assert found.slowdown == pytest.approx(1, abs=0.05)


def test_a_slow_rank_alone_on_its_stage_is_not_told_from_a_long_stage() -> None:
    found, _ = replayed(4, 1, 8, lambda *p: round(even(*p) * (2.3 if p[0] == 1 else 1)))
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.stage) == ("long_stage", [1], 1)
    assert "one replica" in cause.note


@pytest.mark.parametrize(("dp", "said"), [(2, True), (3, False)])
def test_two_replicas_that_are_both_long_may_be_two_slow_gpus(dp: int, said: bool) -> None:
    found, _ = replayed(3, dp, 6, lambda *p: round(even(*p) * (1.6 if p[0] == 2 else 1)))
    (cause,) = found.causes
    assert (cause.kind, cause.stage) == ("long_stage", 2)
    assert ("two slow GPUs would look the same" in cause.note) is said


def test_the_same_micro_batch_in_every_step_is_no_data() -> None:
    found, _ = replayed(2, 2, 8, lambda *p: round(even(*p) * (2 if (p[1], p[4]) == (1, 3) else 1)))
    assert "uneven_data" not in {c.kind for c in found.causes}


def test_ranks_that_hide_each_other_are_named_together() -> None:
    # Without one of them all wait for the other: neither alone has a price.
    def two(stage: int, replica: int, *rest: int) -> int:
        return round(even(stage, replica, *rest) * (1.5 if (stage, replica) in ((1, 2), (1, 3)) else 1))  # type: ignore[arg-type]

    found, ends = replayed(4, 4, 8, two)
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.stage, cause.peers) == ("slow_rank", [6, 7], 1, 2)
    assert cause.saved_ns == pytest.approx(price(two, even), abs=0.02 * np.mean(ends))
    assert does(cause, found).startswith("Ranks 6 and 7 compute 1.5 times as long as their 2 peers")


def test_two_slow_ranks_of_three_replicas_are_compared_with_the_third() -> None:
    # The median of the other two is half way to the other slow one.
    def two(stage: int, replica: int, *rest: int) -> int:
        slow = {(1, 0): 1.9, (1, 2): 1.6}.get((stage, replica), 1)
        return round(even(stage, replica, *rest) * slow)  # type: ignore[arg-type]

    ranks, ends = plant(3, 3, 6, two, steps=STEPS)
    without = plant(3, 3, 6, even, steps=STEPS)[1]
    found = what_if(ranks, find_schedule(ranks), matched(ranks, 3), [r.rank for r in ranks])
    assert [(c.kind, c.ranks) for c in found.causes] == [("slow_rank", [3]), ("slow_rank", [5])]
    assert [c.ratio for c in found.causes] == pytest.approx([1.9, 1.6], rel=0.02)
    saved = sum(c.saved_ns for c in found.causes)
    assert saved == pytest.approx(np.mean(ends) - np.mean(without), abs=0.02 * np.mean(ends))


@pytest.mark.parametrize("waits", [True, False])
def test_a_rank_that_waits_inside_its_passes_is_not_the_slow_one(waits: bool) -> None:
    # All beyond its peers' is communication inside its passes: another rank of its group is slow.
    ranks, _ = plant(4, 4, 8, slow_rank, steps=STEPS)
    shared = (ranks[6].busy_ns * (1.3 / 2.3)).astype(np.int64)
    ranks[6] = replace(ranks[6], shared_ns=shared if waits else ranks[6].shared_ns)
    found = what_if(ranks, find_schedule(ranks), matched(ranks, 4), [r.rank for r in ranks])
    assert [c.ranks for c in found.causes] == ([] if waits else [[6]])


@pytest.mark.parametrize(("absent", "kind", "ranks"), [(0, "slow_rank", [6]), (1, "late_stage", [6])])
@pytest.mark.parametrize("batched", ["pairs", "always"])
def test_a_stage_that_was_not_captured_hides_no_price(
    absent: int, kind: str, ranks: list[int], batched: str
) -> None:
    # Rank 6 is stage 1's third replica. What its replica waits for the absent stage goes with it: in the
    # other replicas it does not wait so long.
    ranks_of_all, ends = plant(4, 4, 8, slow_rank, steps=STEPS, batched=batched)
    without = plant(4, 4, 8, even, steps=STEPS, batched=batched)[1]
    kept = [r for r in ranks_of_all if r.rank is not None and r.rank // 4 != absent]
    found = what_if(kept, find_schedule(kept), matched(kept, 4), [r.rank for r in kept])
    assert (found.state, found.pp) == ("measured", 4)
    first = found.causes[0]
    assert (first.kind, first.ranks) == (kind, ranks)
    assert first.saved_ns == pytest.approx(np.mean(ends) - np.mean(without), abs=0.05 * np.mean(ends))
    assert "slow_link" not in {c.kind for c in found.causes}
    if kind == "late_stage":
        said = does(first, found)
        assert said.startswith("One replica waits ")
        assert "for rank 6, which was not captured" in said


@pytest.mark.parametrize(
    ("pp", "absent", "slow"), [(4, [2], 2), (4, [3], 3), (4, [2, 3], 2), (6, [3], 3), (6, [2, 3, 4], 3)]
)
def test_whoever_waits_for_who_waits_for_an_absent_stage_is_in_its_price(
    pp: int, absent: list[int], slow: int
) -> None:
    # Stage 0 waits for stage 1, whose batch of messages waits for stage 2, which was not captured.
    def late(stage: int, replica: int, *rest: int) -> int:
        return round(even(stage, replica, *rest) * (2.3 if (stage, replica) == (slow, 2) else 1))  # type: ignore[arg-type]

    made, ends = plant(pp, 4, 8, late, steps=STEPS, batched="always")
    truth = np.mean(ends) - np.mean(plant(pp, 4, 8, even, steps=STEPS, batched="always")[1])
    kept = [r for r in made if r.rank is not None and r.rank // 4 not in absent]
    (cause,) = what_if(kept, find_schedule(kept), matched(kept, 4), [r.rank for r in kept]).causes
    assert (cause.kind, cause.ranks) == ("late_stage", [4 * stage + 2 for stage in absent])
    assert cause.saved_ns == pytest.approx(truth, abs=0.03 * np.mean(ends))


@pytest.mark.parametrize(
    ("pp", "dp", "count", "slow", "embeddings"),
    [
        (2, 2, 8, 0, False),
        (2, 3, 8, 1, False),
        (4, 2, 8, 0, False),
        (4, 2, 8, 0, True),
        (4, 2, 3, 0, False),
        (4, 3, 8, 2, False),
        (4, 2, 8, 3, False),
        (6, 2, 8, 0, False),
        (6, 2, 8, 3, False),
    ],
)
def test_the_price_of_an_absent_stage_holds_the_truth(
    pp: int, dp: int, count: int, slow: int, embeddings: bool
) -> None:
    # The last replica's rank of a stage that was not captured takes 2.3 times as long. The first stage ends
    # the step with a backward pass of its own: no captured rank sees its 1.3 x 2 ms.
    def late(stage: int, replica: int, *rest: int) -> int:
        is_slow = (stage, replica) == (slow, dp - 1)
        return round(even(stage, replica, *rest) * (2.3 if is_slow else 1))  # type: ignore[arg-type]

    made, ends = plant(pp, dp, count, late, steps=STEPS, embeddings=embeddings)
    truth = np.mean(ends) - np.mean(plant(pp, dp, count, even, steps=STEPS, embeddings=embeddings)[1])
    kept = [r for r in made if r.rank is not None and r.rank // dp != slow]
    found = what_if(kept, find_schedule(kept), matched(kept, dp), [r.rank for r in kept])
    (cause,) = found.causes
    assert (cause.kind, cause.ranks) == ("late_stage", [slow * dp + dp - 1])
    noise_ns = 30_000
    assert cause.low_ns - noise_ns <= truth <= cause.high_ns + noise_ns
    assert cause.high_ns - cause.low_ns < (5_000_000 if slow == 0 else 200_000)
    assert ("seen by no captured rank" in cause.note) is (slow == 0)
    if slow:
        assert cause.saved_ns == pytest.approx(truth, rel=0.005)
        assert found.step_ns == pytest.approx(np.mean(ends), rel=1e-3)
    elif not embeddings:
        assert truth - cause.saved_ns == pytest.approx(1.3 * 2_000_000, rel=0.03)


def test_stages_of_a_sound_pipeline_do_not_wait_for_absent_ranks() -> None:
    # The last stage was not captured: what the others wait for it is the schedule.
    ranks, _ = plant(3, 2, 4, even, steps=STEPS, batched="always")
    kept = [r for r in ranks if r.rank is not None and r.rank < 4]
    found = what_if(kept, find_schedule(kept), matched(kept, 2), [r.rank for r in kept])
    assert (found.state, found.pp, found.causes) == ("measured", 3, [])


def test_a_replica_that_is_long_on_all_its_stages_has_no_slow_gpus() -> None:
    # What its ranks have in common is their data: three GPUs that are slow alike are not in one pipeline.
    found, _ = replayed(3, 3, 6, lambda *p: round(even(*p) * (1.5 if p[1] == 1 else 1)))
    assert [c.kind for c in found.causes if c.ranks] == []
    partly, _ = replayed(3, 3, 6, lambda *p: round(even(*p) * (1.5 if p[1] == 1 and p[0] else 1)))
    assert {r for c in partly.causes for r in c.ranks} == {4, 7}


def test_one_step_is_not_every_step() -> None:
    ranks, _ = plant(4, 2, 4, lambda *p: round(even(*p) * (1.5 if p[:2] == (1, 1) else 1)), steps=1)
    found = what_if(ranks, find_schedule(ranks), matched(ranks, 2), [r.rank for r in ranks])
    (cause,) = found.causes
    assert does(cause, found) == "Rank 3 computes 1.5 times as long as its 7 peers in the one step captured"


@pytest.mark.parametrize("kind", ["slow_rank", "long_stage"])
def test_stages_of_several_chunks(kind: str) -> None:
    def long(*place: int) -> int:
        stage, replica, *_ = place
        is_slow = (stage, replica) == (1, 1) if kind == "slow_rank" else stage == 1
        return round(even(*place) * (1.6 if is_slow else 1))  # type: ignore[arg-type]

    ranks, ends = plant(3, 2, 6, long, steps=STEPS, chunks=2)
    # A long stage's price is that of its excess over the mean of all: 1.2.
    still = 1.2 if kind == "long_stage" else 1
    _, without = plant(
        3, 2, 6, lambda *p: round(even(*p) * (still if p[0] == 1 else 1)), steps=STEPS, chunks=2
    )
    found = what_if(ranks, find_schedule(ranks), matched(ranks, 2), [r.rank for r in ranks])
    assert (found.schedule, found.vpp) == ("interleaved 1F1B", 2)
    assert found.step_ns == pytest.approx(np.mean(ends), rel=1e-4)
    (one,) = found.causes
    assert (one.kind, one.ranks or one.stage) == (kind, [3] if kind == "slow_rank" else 1)
    assert one.saved_ns == pytest.approx(np.mean(ends) - np.mean(without), abs=0.02 * np.mean(ends))


def test_ranks_that_both_send_first_do_not_stand_still() -> None:
    # Rank 0 works for 5 ns and rank 1 for 2, then each sends and receives, 1 ns for each message. A send that
    # waits for the receive behind the other's send waits for ever. Sent and gone: rank 0 has sent at 6 and
    # received at 7; rank 1 has sent at 3, waits until rank 0 sends, at 5, and has it at 6.
    def message(member: int, partners: set[int], *, is_send: bool) -> Cell:
        found = Cell(member=member, kind="messages", lane=0 if is_send else 1, is_send=is_send)
        return replace(found, partners=frozenset(partners))

    cells = [
        Cell(member=0, kind="compute"),
        message(0, {1, 5}, is_send=True),
        message(0, {2, 4}, is_send=False),
        Cell(member=1, kind="compute"),
        message(1, {2, 4}, is_send=True),
        message(1, {1, 5}, is_send=False),
    ]
    order = [[0, 1, 2], [3, 4, 5]]
    assert plan_of(cells, order) is None
    plan = plan_of(with_buffered_sends(cells), order)
    assert plan is not None
    takes = np.array([5.0, 1, 1, 2, 1, 1])[:, None]
    _, ends = walk(plan, lambda c: takes[c][None, :], (1, 1))
    assert [float(ends[m][0, 0]) for m in range(2)] == [7.0, 6.0]


@pytest.mark.parametrize("absent", [0, 1, 2])
def test_uneven_data_makes_no_stage_late_that_was_not_captured(absent: int) -> None:
    # Each replica in turn waits longer for it than the others do.
    ranks, _ = plant(3, 3, 8, uneven, steps=STEPS)
    kept = [r for r in ranks if r.rank is not None and r.rank // 3 != absent]
    found = what_if(kept, find_schedule(kept), matched(kept, 3), [r.rank for r in kept])
    assert [c.kind for c in found.causes] == ["uneven_data"]
    # What the absent stage's data costs is not in the price; the truth is in its band.
    truth = np.mean(plant(3, 3, 8, uneven, steps=STEPS)[1]) - np.mean(plant(3, 3, 8, even, steps=STEPS)[1])
    (cause,) = found.causes
    assert cause.low_ns <= truth <= cause.high_ns
    assert "captured" in cause.note
    said = why_blamed(found, cause if cause in leading(found) else None)
    # Without the stage in the middle too little is left to lead.
    assert ("evened out on the captured ranks alone" in said) is (absent != 1)


def test_the_price_of_a_late_stage_is_a_prediction() -> None:
    ranks, _ = plant(4, 4, 8, slow_rank, steps=STEPS)
    kept = [r for r in ranks if r.rank is not None and r.rank // 4 != 1]
    found = what_if(kept, find_schedule(kept), matched(kept, 4), [r.rank for r in kept])
    (cause,) = leading(found)
    gain = gain_of(
        cast(Case, SimpleNamespace(what_if=found, ranks=[], job=SimpleNamespace(devices=[]))), cause
    )
    assert (cause.kind, gain.method, gain.is_predicted) == ("late_stage", "replay", True)
    assert gain.mid_ms == cause.saved_ns / 1e6
    assert "without that" in why_blamed(found, cause)


def test_a_late_stage_is_not_hidden_by_a_slow_rank() -> None:
    # Rank 6 was not captured; rank 8, of another replica, is slow as well.
    def two(stage: int, replica: int, *rest: int) -> int:
        slow = {(1, 2): 2.3, (2, 0): 1.7}.get((stage, replica), 1)
        return round(even(stage, replica, *rest) * slow)  # type: ignore[arg-type]

    ranks, ends = plant(4, 4, 8, two, steps=STEPS)
    kept = [r for r in ranks if r.rank is not None and r.rank // 4 != 1]
    found = what_if(kept, find_schedule(kept), matched(kept, 4), [r.rank for r in kept])
    assert [(c.kind, c.ranks) for c in leading(found)] == [("late_stage", [6]), ("slow_rank", [8])]
    both = sum(c.saved_ns for c in found.causes)
    assert both == pytest.approx(np.mean(ends) - np.mean(plant(4, 4, 8, even, steps=STEPS)[1]), rel=0.03)


def test_ranks_without_a_number_are_said_to_be_where_they_are() -> None:
    made, _ = plant(4, 4, 8, slow_rank, steps=STEPS)
    where = "device 0 of process 7 in Late_B.json"
    ranks = [replace(r, label=where) if r.rank == 6 else r for r in made]
    names = [None if r.rank == 6 else r.rank for r in ranks]
    found = what_if(ranks, find_schedule(ranks), matched(ranks, 4), names)
    (cause,) = found.causes
    assert (cause.ranks, cause.captures) == ([], [where])
    assert does(cause, found).startswith("Device 0 of process 7 in Late_B.json computes 2.3 times")
    assert who(replace(cause, ranks=[1])) == f"rank 1 and {where}"
    assert who(replace(cause, ranks=[0, 1, 2, 3, 4, 5], captures=[])) == "ranks 0, 1, 2, 3 and 2 more"
