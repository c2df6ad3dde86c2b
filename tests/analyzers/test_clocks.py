from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdoc.analyzers.clocks.alignment import ClockAlignment, align_clocks
from perfdoc.analyzers.clocks.differences import Edges, components, fit_line, solve
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.matching.collectives import match_collectives
from perfdoc.traces.job_facts import JobFacts
from tests.amount import tries
from tests.analyzers.device_views import calls_of_file
from tests.analyzers.planted_ranks import Clock, Job

SECOND = 1_000_000_000


def aligned(ranks: list[CollectiveCalls]) -> ClockAlignment:
    return align_clocks(match_collectives(ranks, JobFacts()), ranks)


def everybody_together(ranks: int, count: int, every_ns: int) -> Job:
    """All ranks come to an all-reduce at the same instant, `count` times, and it takes 50 µs."""
    job = Job(ranks=ranks)
    for at in instants(count, every_ns):
        job.collective("dp", dict.fromkeys(range(ranks), at), 50_000)
    return job


def instants(count: int, every_ns: int) -> list[int]:
    """Not quite regular, as steps are not."""
    off = np.random.default_rng(count).integers(0, every_ns // 20, count)
    return (np.arange(count) * every_ns + off).tolist()


def test_a_pure_offset_is_recovered(tmp_path: Path) -> None:
    job = everybody_together(2, 40, 1_000_000)
    paths = job.write_nsys(tmp_path, [Clock(zero_ns=-10_000), Clock(offset_ns=500_000, zero_ns=-10_000)])
    ranks = [c for p in paths for c in calls_of_file(p)]
    clocks = aligned(ranks)
    assert [c.offset_ns for c in clocks.clocks] == [0, 500_000]
    assert [c.source for c in clocks.clocks] == ["ends", "ends"]
    assert (clocks.residual_p5_ns, clocks.residual_p95_ns) == (0, 0)
    for i in range(2):
        start = clocks.aligned(i, ranks[i].start_ns)
        assert (start == clocks.aligned(0, ranks[0].start_ns)).all()


def test_drift_is_recovered() -> None:
    # 200 all-reduces over 2 s; rank 1's clock gains 20 ppm and is 1 ms ahead in the middle.
    job = everybody_together(2, 200, 10_000_000)
    middle = job.calls[0][100].end_ns
    ranks = job.columns([Clock(), Clock(offset_ns=1_000_000, drift=20e-6, middle_ns=middle)])
    clocks = aligned(ranks)
    assert clocks.clocks[1].drift_ppm == pytest.approx(20, abs=0.01)
    assert clocks.clocks[1].offset_ns == pytest.approx(1_000_000, abs=200)
    assert clocks.residual_p95_ns is not None
    assert clocks.residual_p95_ns <= 2
    # Without the drift ends would differ by up to 20 µs on either side.
    assert np.abs(clocks.aligned(1, ranks[1].end_ns) - clocks.aligned(0, ranks[0].end_ns)).max() <= 3


def test_drift_is_told_without_any_common_epoch() -> None:
    job = everybody_together(2, 200, 10_000_000)
    ranks = job.columns([Clock(), Clock(drift=-35e-6, zero_ns=-5 * SECOND)], utc=False)
    clocks = aligned(ranks)
    assert clocks.clocks[1].drift_ppm == pytest.approx(-35, abs=0.01)
    assert not clocks.clocks[1].has_utc
    assert np.abs(clocks.aligned(1, ranks[1].end_ns) - clocks.aligned(0, ranks[0].end_ns)).max() <= 3


def test_two_hops_over_overlapping_groups() -> None:
    # TP {0,1} {2,3}, DP {0,2} {1,3}: rank 3 shares no group with rank 0.
    job = Job(ranks=4)
    for at in instants(30, 1_000_000):
        for pair in ((0, 1), (2, 3)):
            job.collective("tp", dict.fromkeys(pair, at), 20_000)
        for pair in ((0, 2), (1, 3)):
            job.collective("dp", dict.fromkeys(pair, at + 300_000), 30_000)
    offsets = [0, 120_000, -80_000, 450_000]
    clocks = aligned(job.columns([Clock(offset_ns=o) for o in offsets]))
    assert [c.offset_ns for c in clocks.clocks] == offsets
    assert {c.component for c in clocks.clocks} == {0}
    assert (clocks.residual_p5_ns, clocks.residual_p95_ns) == (0, 0)


def test_disconnected_groups_are_not_compared() -> None:
    job = Job(ranks=4)
    for at in instants(30, 1_000_000):
        for pair in ((0, 1), (2, 3)):
            job.collective("tp", dict.fromkeys(pair, at), 20_000)
    clocks = aligned(job.columns([Clock(offset_ns=o) for o in (0, 90_000, 7_000_000, 7_050_000)]))
    assert [c.component for c in clocks.clocks] == [0, 0, 1, 1]
    assert [c.is_reference for c in clocks.clocks] == [True, False, True, False]
    # Within each component against its own reference.
    assert [c.offset_ns for c in clocks.clocks] == [0, 90_000, 0, 50_000]


def test_devices_of_one_capture_keep_their_clock() -> None:
    # Ranks 0 and 1 in one file: that rank 1's ends are 40 µs late is no clock.
    job = Job(ranks=3)
    for at in instants(30, 1_000_000):
        job.collective("dp", dict.fromkeys(range(3), at), 60_000, jitter={1: 40_000})
    clocks = aligned(
        job.columns([Clock(), Clock(), Clock(offset_ns=300_000)], files=["node0", "node0", "node1"])
    )
    assert [c.offset_ns for c in clocks.clocks[:2]] == [0, 0]
    # Against the mean of the two: 300 µs less half of 40 µs.
    assert clocks.clocks[2].offset_ns == 280_000


def test_noisy_ends_do_not_move_clocks_that_are_set_well() -> None:
    # Ends scatter by 100 µs: the median of 60 of them is off by chance, UTC is exact.
    rng = np.random.default_rng(1)
    job = Job(ranks=2)
    for i in range(60):
        late = rng.exponential(100_000, 2).astype(int).tolist()
        job.collective(
            "dp", dict.fromkeys((0, 1), i * 5_000_000), 50_000, jitter=dict(enumerate(late)), step=i
        )
    clocks = aligned(job.columns(sequences=True))
    assert [(c.offset_ns, c.source) for c in clocks.clocks] == [(0, "utc"), (0, "utc")]
    assert clocks.residual_p95_ns is not None
    assert clocks.residual_p95_ns > 100_000


def test_broadcasts_align_nothing() -> None:
    # The root of a broadcast leaves when its data are gone, whenever the others come.
    job = Job(ranks=2)
    for at in instants(30, 1_000_000):
        job.collective("dp", {0: at, 1: at + 400_000}, 20_000, operation="broadcast", jitter={0: -300_000})
    clocks = aligned(job.columns())
    assert clocks.state == "not_measured"
    assert [c.source for c in clocks.clocks] == ["none", "none"]


def test_a_group_that_ranks_leave_before_others_come_is_thrown_out() -> None:
    # Two groups that the captures call by one name, so that calls of different groups are matched by number.
    job = Job(ranks=2)
    off = np.random.default_rng(3).integers(0, 90_000, 40).tolist()
    for at, late in zip(instants(40, 1_000_000), off, strict=True):
        job.collective("dp", dict.fromkeys((0, 1), at), 20_000)
        job.collective("tp", {0: at + 200_000}, 5_000)
        job.collective("tp", {1: at + 600_000 + late}, 5_000)
    job.communicators[("tp", (0,))] = job.communicators[("tp", (1,))] = 0xBAD
    ranks = [
        replace(r, groups=tuple(replace(g, size=None) for g in r.groups))
        for r in job.columns([Clock(), Clock(offset_ns=500_000)], sequences=True)
    ]
    matches = match_collectives(ranks, JobFacts())
    clocks = align_clocks(matches, ranks)
    assert [c.offset_ns for c in clocks.clocks] == [0, 500_000]
    assert [matches.groups[g].label for g in clocks.contradicted] == ["tp"]
    assert (clocks.residual_p5_ns, clocks.residual_p95_ns) == (0, 0)


@settings(max_examples=tries(12, 60), deadline=None)
@given(st.data())
def test_random_clocks_against_the_planted_ones(data: st.DataObject) -> None:
    """Grid of TP x DP groups, random offsets to 10 ms, drifts to 50 ppm, ends that scatter by 2 µs."""
    tp, dp = data.draw(st.integers(1, 3), "tp"), data.draw(st.integers(2, 3), "dp")
    ranks = tp * dp
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), "seed"))
    job = Job(ranks=ranks)
    at = 0
    for _ in range(60):
        at += int(rng.integers(8_000_000, 12_000_000))
        for groups in (
            ("tp", [[d * tp + t for t in range(tp)] for d in range(dp)]) if tp > 1 else None,
            ("dp", [[d * tp + t for d in range(dp)] for t in range(tp)]),
        ):
            if groups is None:
                continue
            for members in groups[1]:
                # Skews up to 3 ms, that must not enter into the clocks.
                came = {m: at + int(rng.exponential(300_000)) for m in members}
                jitter = {m: int(rng.normal(0, 1_000)) for m in members}
                job.collective(groups[0], came, 40_000, jitter=jitter)
            at += 4_000_000
    planted = [
        Clock(
            offset_ns=int(rng.integers(-10_000_000, 10_000_000)),
            drift=float(rng.uniform(-50e-6, 50e-6)),
            middle_ns=at // 2,
            zero_ns=int(rng.integers(-SECOND, SECOND)),
        )
        for _ in range(ranks)
    ]
    columns = job.columns(planted, sequences=bool(rng.integers(2)))
    clocks = aligned(columns)
    assert clocks.residual_ns is not None
    assert clocks.residual_ns < 5_000
    for i in range(1, ranks):
        assert clocks.clocks[i].drift_ppm == pytest.approx((planted[i].drift - planted[0].drift) * 1e6, abs=8)
        # What every clock shows for one true instant must come out as one time.
        for true in (0, at // 2, at):
            here = clocks.aligned(i, np.array([planted[i].local(true)]))
            there = clocks.aligned(0, np.array([planted[0].local(true)]))
            assert abs(int(here[0]) - int(there[0])) < min(6_000, clocks.resolution_between([0, i]) or 0)


@settings(deadline=None)
@given(st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_the_graph_against_dense_least_squares(nodes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 3 * nodes))
    source, target = rng.integers(0, nodes, (2, count))
    keep = source != target
    source, target = source[keep], target[keep]
    truth = rng.normal(0, 1e6, nodes)
    edges = Edges(
        source=source,
        target=target,
        difference=truth[target] - truth[source],
        error=rng.uniform(1, 10, len(source)),
    )
    component, _ = components(edges, nodes)
    fixed = np.unique(component)
    value = solve(edges, nodes, fixed)
    # Differences without contradiction come back exactly, each component against its fixed node.
    assert value == pytest.approx(truth - truth[component], abs=1e-3)


def test_an_edge_that_contradicts_the_rest_counts_little() -> None:
    # A square of three good edges and one that is off by 100 ms.
    edges = Edges(
        source=np.array([0, 1, 2, 0]),
        target=np.array([1, 2, 3, 3]),
        difference=np.array([10.0, 20.0, 30.0, 1e8]),
        error=np.full(4, 1.0),
    )
    assert solve(edges, 4, np.array([0]))[1:].tolist() == pytest.approx([10, 30, 60], abs=1)


def test_a_line_through_outliers() -> None:
    rng = np.random.default_rng(7)
    time = np.sort(rng.uniform(0, 1e9, 400))
    difference = 1234.0 + 30e-6 * time + rng.normal(0, 50, 400)
    difference[rng.integers(0, 400, 60)] += 1e6
    line = fit_line(time, difference)
    assert line.drift == pytest.approx(30e-6, abs=1e-7)
    assert line.offset_ns == pytest.approx(1234, abs=40)


def test_a_drift_that_is_not_told_from_none_is_none() -> None:
    rng = np.random.default_rng(7)
    time = np.sort(rng.uniform(0, 1e9, 100))
    assert fit_line(time, rng.normal(0, 1_000, 100)).drift == 0.0
    assert fit_line(time[:10], rng.normal(0, 1_000, 10)).drift is None


def test_no_clock_drifts_as_fast_as_time() -> None:
    time = np.arange(1, 101) * 1e7
    assert fit_line(time, -1e-4 * time).drift == pytest.approx(-1e-4)
    assert fit_line(time, -time).drift is None  # stands still


@pytest.mark.parametrize("count", [1, 2, 23, 24, 500])
def test_ends_of_one_instant_tell_no_drift(count: int) -> None:
    """A division by their spread, which is none, warned, and pytest takes a warning for an error."""
    line = fit_line(np.full(count, 5e9), np.linspace(-100.0, 100.0, count))
    assert (line.drift or 0.0) == 0.0
    assert np.isfinite(line.offset_ns)
