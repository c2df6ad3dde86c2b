from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.host.activity import host_activity
from perfdoc.analyzers.host.jitter import RankHostSteps, host_jitter
from perfdoc.analyzers.host.steps import HostStep, HostSteps
from perfdoc.results.quality import MEASURED
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import one_gpu

MS = 1_000_000


def rank(number: int, host_ms: Sequence[int], gc_ms: Sequence[int | None]) -> RankHostSteps:
    steps = [
        HostStep(
            name=f"perfdoc.step {i}", host_ns=host * MS, waiting_ns=0, gc_ns=None if gc is None else gc * MS
        )
        for i, (host, gc) in enumerate(zip(host_ms, gc_ms, strict=True))
    ]
    return RankHostSteps(rank=number, label=f"rank {number}", steps=HostSteps(**MEASURED, steps=steps))


def test_collecting_in_turn_costs_every_step() -> None:
    # Three ranks collect for 40 ms, each in a step of its own, and all in step 3.
    # Waiting for the slowest every time costs 40 x 4 = 160; together it would cost 80.
    found = host_jitter(
        [
            rank(0, [140, 100, 100, 140], [40, 0, 0, 40]),
            rank(1, [100, 140, 100, 140], [0, 40, 0, 40]),
            rank(2, [101, 101, 141, 141], [0, 0, 40, 40]),
        ]
    )
    assert (found.ranks, found.common_steps) == (3, 4)
    assert (found.gc.collecting_steps, found.gc.split_steps) == (4, 3)
    assert (found.gc.slowest_sum_ns, found.gc.worst_rank_ns) == (160 * MS, 80 * MS)
    assert found.gc.avoidable_ns == 80 * MS
    # Spreads 40, 40, 41, 1: the median is 40; of the twelve host times it is (101 + 140) / 2.
    assert (found.median_spread_ns, found.worst_spread_ns) == (40 * MS, 41 * MS)
    assert found.median_host_ns == 120_500_000
    assert found.median_spread_frac == 40 / 120.5
    assert (found.worst_step, found.worst_rank) == ("perfdoc.step 2", "rank 2")
    # Nobody is slow all the time. Rank 2 leads twice, by 41 and by 1 over the median.
    assert [(s.label, s.steps, s.recurrence_frac) for s in found.slowest] == [
        ("rank 2", 2, 0.5),
        ("rank 0", 1, 0.25),
        ("rank 1", 1, 0.25),
    ]
    assert found.slowest[0].median_lag_ns == 21 * MS
    assert not any(s.beyond_chance for s in found.slowest)


def test_devices_of_one_process_are_one_host() -> None:
    shared = [replace(rank(i, [100 + i] * 8, [0] * 8), process=(0, 17)) for i in range(3)]
    found = host_jitter(shared)
    assert (found.state, found.ranks) == ("not_measured", None)
    assert found.reason == "One process drives all 3 devices: there is no other host to compare it with."
    # A second process with another two devices, of which the first shows nothing.
    silent = RankHostSteps(rank=3, label="rank 3", steps=HostSteps.missing("no"), process=(1, 17))
    found = host_jitter([*shared, silent, replace(rank(4, [107] * 8, [0] * 8), process=(1, 17))])
    assert (found.ranks, found.median_spread_ns, found.worst_rank, found.reason) == (2, 7 * MS, "rank 4", "")


def test_a_slow_rank_is_told_from_chance() -> None:
    # Rank 1 is 10 ms late in each of 8 steps, where ranks vary by about 1: 2 ranks, (1 / 2) ** 8 * 2 = 0.008.
    noise = [0, 1, -1, 2, 0, -2, 1, -1]
    even, late = [100 + n for n in noise], [110 - n for n in noise]
    found = host_jitter([rank(0, even, [0] * 8), rank(1, late, [0] * 8)])
    assert [(s.label, s.steps, s.beyond_chance) for s in found.slowest] == [("rank 1", 8, True)]
    # Own times less the mean of both: -5 + n and 5 - n, whose MADs are 1; 1.4826 * 1 / sqrt(1 / 2).
    assert found.noise_ns == round(1.4826 * MS * 2**0.5)
    assert found.noise_spread_ns == round(1.4826 * MS * 2**0.5 * 2**0.5 * 0.6744897501960817)
    # Five steps of five are 1 in 16; four too few for anything; a lag of 1 ms is within the noise.
    for steps, lag in ((5, 10), (3, 10), (8, 4)):
        late = [100 + lag - n for n in noise[:steps]]
        found = host_jitter([rank(0, even[:steps], [0] * steps), rank(1, late, [0] * steps)])
        assert not any(s.beyond_chance for s in found.slowest)
        assert (found.noise_ns is None) == (steps < 4)


@given(st.integers(0, 2**32), st.integers(2, 8))
def test_equal_ranks_are_hardly_ever_slow(seed: int, ranks: int) -> None:
    rng = np.random.default_rng(seed)
    found = host_jitter(
        [rank(i, rng.integers(100_000, 100_100, 12).tolist(), [0] * 12) for i in range(ranks)]
    )
    # None by chance in 95 of 100; and whoever is called slow led in half of the steps or more.
    assert all(s.steps >= 6 for s in found.slowest if s.beyond_chance)


def test_collecting_together_saves_nothing() -> None:
    ranks = [rank(i, [100, 140, 100], [0, 40, 0]) for i in range(4)]
    found = host_jitter(ranks)
    assert (found.gc.split_steps, found.gc.avoidable_ns, found.worst_spread_ns) == (0, 0, 0)


def test_steps_are_matched_by_name() -> None:
    first, second = rank(0, [1, 2, 3], [0, 0, 0]), rank(1, [20, 30, 40], [0, 0, 0])
    later = RankHostSteps(rank=1, label="rank 1", steps=HostSteps(**MEASURED, steps=second.steps.steps[1:]))
    found = host_jitter([first, later])
    assert (found.common_steps, found.worst_spread_ns) == (2, 37 * MS)


def test_abstains() -> None:
    one = rank(0, [1], [0])
    for ranks in ([], [one]):
        assert host_jitter(ranks).state == "not_measured"
    missing = RankHostSteps(rank=1, label="rank 1", steps=HostSteps.missing("no steps", "mark them"))
    found = host_jitter([one, missing])
    assert (found.state, found.remedy, found.gc.state) == ("not_measured", "mark them", "not_measured")
    assert "no steps" in found.reason
    empty = RankHostSteps(rank=2, label="rank 2", steps=HostSteps(**MEASURED, steps=[]))
    assert "same name" in host_jitter([one, empty]).reason
    # Two ranks are enough, and the third is named; garbage that one capture does not show is not 0.
    found = host_jitter([one, rank(1, [3], [None]), missing])
    assert (found.state, found.ranks, found.median_spread_ns) == ("measured", 2, 2 * MS)
    assert found.reason.startswith("1 of 3 ranks")
    assert (found.gc.state, found.gc.avoidable_ns) == ("not_measured", None)


def test_waits_are_no_host_time(tmp_path: Path) -> None:
    # Step [0, 1000): the host waits [300, 800), of which [350, 360) as a wait inside the wait. 500 of work.
    builder, thread, device = one_gpu()
    thread.range("perfdoc.step 0", 0, 1000)
    device.kernel(GEMM, 100, 790, launch=(thread, 10, 20))
    thread.api("cudaMemcpy", 300, 800)
    thread.synchronize("stream", 350, 360, stream=7)
    thread.range("perfdoc.gc generation=1", 900, 930)
    (step,) = host_activity(view_of(builder, tmp_path))[1].steps
    assert (step.name, step.host_ns, step.waiting_ns) == ("perfdoc.step 0", 500, 500)
    assert step.gc_ns == 30


def test_eight_ranks_of_one_real_step(shared_traces: Path) -> None:
    ranks = []
    for i in range(8):
        path = shared_traces / "kineto" / f"dlrm_8gpu_v100_rank{i}.pt.trace.json.gz"
        (view,) = views_of(read_kineto(path))
        ranks.append(RankHostSteps(rank=i, label=f"rank {i}", steps=host_activity(view)[1]))
    found = host_jitter(ranks)
    # The steps take 10 to 19 ms, mostly waiting for the all-to-all; the hosts' own work is even to 10 %.
    assert (found.ranks, found.common_steps, found.worst_rank) == (8, 1, "rank 3")
    assert found.median_spread_frac is not None
    assert 0.08 < found.median_spread_frac < 0.11
