"""One pair's messages or one group's collective that take longer than the same of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfdoc.analyzers.pipeline.recorded_schedule import find_schedule
from perfdoc.results.what_if import WhatIfAnalysis
from perfdoc.rules.facts.culprit_words import cure, does
from perfdoc.simulator.recorded.build import recorded_job
from perfdoc.simulator.recorded.links import _excess_ns
from perfdoc.simulator.recorded.what_if import what_if
from tests.analyzers.planted_operations import MEGABYTE, Lengths, matched, plant
from tests.planted.job import planted_steps
from tests.planted.spec import JobSpec
from tests.rules.planted_cases import planted_case
from tests.simulator.test_what_if import even, slow_rank

Transfer = Callable[[int, int, int], int]
LATENT_NS = 200_000


def usual(_a: int, _b: int, _r: int) -> int:
    return LATENT_NS


def replayed(
    lengths: Lengths, transfer: Transfer, pp: int = 4, dp: int = 3, **more: Any
) -> tuple[WhatIfAnalysis, list[float]]:
    ranks, ends = plant(pp, dp, 8, lengths, steps=6, transfer_ns=transfer, **more)
    return what_if(ranks, find_schedule(ranks), matched(ranks, dp), [r.rank for r in ranks]), ends


def between(first: int, second: int, replica: int, times: int) -> Transfer:
    return lambda a, b, r: LATENT_NS * (times if (a, b, r) == (first, second, replica) else 1)


@pytest.mark.parametrize(("stage", "replica", "dp", "peers"), [(1, 2, 3, 2), (0, 0, 2, 1), (2, 0, 1, 2)])
def test_a_pair_is_named_with_its_price(stage: int, replica: int, dp: int, peers: int) -> None:
    found, ends = replayed(even, between(stage, stage + 1, replica, 15), dp=dp)
    without = replayed(even, usual, dp=dp)[1]
    cause = found.causes[0]
    assert (cause.kind, cause.peers) == ("slow_link", peers)
    assert cause.ranks == [stage * dp + replica, (stage + 1) * dp + replica]
    assert cause.ratio == pytest.approx(15, rel=0.01)
    assert cause.saved_ns == pytest.approx(np.mean(ends) - np.mean(without), abs=0.05 * np.mean(ends))
    assert does(cause, found).startswith(f"Messages of ranks {cause.ranks[0]} and {cause.ranks[1]} take 15 ")
    assert "NIC" in cure(cause)
    assert ("between other stages" in cause.note) is (dp == 1)


def _by_number(_forward: bool, number: int) -> int:
    return MEGABYTE * (16 if number % 2 else 1)


def _by_direction(forward: bool, _number: int) -> int:
    return MEGABYTE // (1 if forward else 16)


@pytest.mark.parametrize("batched", ["pairs", "always"])
@pytest.mark.parametrize("times", [3, 15])
@pytest.mark.parametrize(("dp", "bytes_of"), [(3, _by_number), (3, _by_direction), (1, _by_direction)])
def test_messages_of_several_sizes_are_compared_with_those_of_theirs(
    dp: int, bytes_of: Callable[[bool, int], int], times: int, batched: str
) -> None:
    # As long as the smaller ones, the larger ones would not even take their time on a sound link.
    def transfer(a: int, b: int, r: int) -> int:
        return 10 * between(1, 2, 0, times)(a, b, r)

    more = {"dp": dp, "bytes_of": bytes_of, "batched": batched}
    found, ends = replayed(even, transfer, **more)
    without = replayed(even, lambda *_: 10 * LATENT_NS, **more)[1]
    (cause,) = found.causes
    assert (cause.kind, cause.ranks, cause.kinds_of_wait) == ("slow_link", [dp, 2 * dp], ["messages"])
    assert cause.ratio == pytest.approx(times, rel=0.01)
    assert cause.saved_ns == pytest.approx(np.mean(ends) - np.mean(without), abs=0.05 * np.mean(ends))


def test_the_size_that_costs_most_has_the_words() -> None:
    # 0.2 and 3.2 ms take 3 and 48.
    found, _ = replayed(even, between(1, 2, 0, 15), bytes_of=_by_number)
    assert found.causes[0].note == "48 ms for 32.0 MiB, theirs 3.2 ms"


def test_what_a_link_takes_beyond_others_is_that_of_its_rank_with_most() -> None:
    """Of two ranks messages last half and a quarter as long elsewhere, row by row; in whatever order they
    come, the second has more: 3/4 of its messages to 1/2 of the first one's."""
    ranks, _ = plant(4, 2, 8, lambda *_: 100_000, steps=3, transfer_ns=usual)
    job = recorded_job(ranks, find_schedule(ranks), matched(ranks, 2), None)
    assert job is not None
    several = [c for c, cell in enumerate(job.cells) if cell.lane >= 0 and len(cell.partners) > 1]
    pair = sorted({job.cells[o].member for o in job.cells[several[0]].partners})
    rows = [c for c in several if job.cells[c].member in pair]
    elsewhere = job.takes[rows] * [[0.5 if job.cells[c].member == pair[0] else 0.25] for c in rows]
    longer = job.takes[rows] - elsewhere
    each = [longer[[job.cells[c].member == m for c in rows]].sum(axis=0).mean() for m in pair]
    assert each[1] == pytest.approx(1.5 * each[0])
    for order in (pair, pair[::-1]):
        assert _excess_ns(job, tuple(order), [(rows, elsewhere)]) == pytest.approx(each[1])


def test_a_group_is_named_with_its_price() -> None:
    # The gradients of stage 2's replicas take 5 ms, those of the others 0.2.
    found, ends = replayed(even, lambda a, b, r: 5_000_000 if (a, b, r) == (2, 2, -1) else LATENT_NS)
    without = replayed(even, usual)[1]
    (cause,) = found.causes
    assert (cause.ranks, cause.peers) == ([6, 7, 8], 3)
    assert cause.kinds_of_wait == ["all-gather", "reduce-scatter"]
    assert cause.saved_ns == pytest.approx(np.mean(ends) - np.mean(without), abs=0.02 * np.mean(ends))
    assert does(cause, found).startswith("All-gather and reduce-scatter of ranks 6, 7 and 8 take 25 times")


def test_links_that_differ_little_and_slow_ranks_are_no_slow_links() -> None:
    found, _ = replayed(even, between(1, 2, 1, 1))
    assert found.causes == []
    # All wait for rank 5 in messages and collectives: they are long, their transfers are not.
    found, _ = replayed(lambda *p: round(even(*p) * (2 if p[:2] == (1, 2) else 1)), usual)
    assert [c.kind for c in found.causes] == ["slow_rank"]


def test_a_slow_rank_and_a_slow_link_are_told_apart() -> None:
    found, ends = replayed(slow_rank, between(2, 3, 0, 40))
    without = replayed(even, usual)[1]
    assert {c.kind for c in found.causes} == {"slow_rank", "slow_link"}
    saved = sum(c.saved_ns for c in found.causes)
    assert saved == pytest.approx(np.mean(ends) - np.mean(without), abs=0.02 * np.mean(ends))


def test_a_link_is_slow_in_steps_in_which_the_others_take_longer_too() -> None:
    # 60 times as long as they usually are; in two of six steps they take 10 times as long, and it still 6.
    now = [0]

    def lengths(stage: int, replica: int, step: int, is_forward: bool, number: int) -> int:
        now[0] = step
        return even(stage, replica, step, is_forward, number)

    def transfer(a: int, b: int, r: int) -> int:
        return LATENT_NS * (60 if (a, b, r) == (1, 2, 0) else sound(a, b, r) // LATENT_NS)

    def sound(_a: int, _b: int, _r: int) -> int:
        return LATENT_NS * (10 if now[0] in (1, 4) else 1)

    found, ends = replayed(lengths, transfer)
    without = replayed(lengths, sound)[1]
    cause = found.causes[0]
    assert (cause.kind, cause.ranks, cause.recurrence_frac) == ("slow_link", [3, 6], 1.0)
    assert cause.saved_ns == pytest.approx(np.mean(ends) - np.mean(without), abs=0.05 * np.mean(ends))


@pytest.mark.parametrize(("tp", "dp", "pp"), [(2, 4, 1), (4, 2, 1), (2, 2, 2)])
def test_tensor_parallel_peers_of_a_slow_group_wait_for_it_inside_their_passes(
    tp: int, dp: int, pp: int
) -> None:
    """Rank 1's replicas reduce gradients ten times as slowly; rank 0 has quick ones, and waits for rank 1."""
    ill = JobSpec(tp=tp, dp=dp, pp=pp, micro_batches=4, steps=3, slow_port=(1, 10.0), slow_port_in="dp")
    gains_ns = planted_steps(ill).step_ns - planted_steps(replace(ill, slow_port=None)).step_ns
    case = planted_case(ill)
    operations, job = [rank.operations for rank in case.ranks], case.job
    found = what_if(operations, job.schedule, job.matches, [d.rank for d in job.devices], job.world_size)
    (cause,) = found.causes
    assert (cause.kind, cause.ranks) == ("slow_link", [1 + tp * r for r in range(dp)])
    assert cause.saved_ns == pytest.approx(gains_ns, rel=0.01)
    assert cause.low_ns <= 1.01 * gains_ns <= 1.01 * cause.high_ns
