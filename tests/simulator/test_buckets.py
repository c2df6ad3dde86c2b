"""Buckets: cut, and what smaller ones cost; larger ones, and what computation beside them takes less."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.forward.faults import Job
from perfdoc.simulator.forward.job import simulate_job
from perfdoc.simulator.replay.edits.buckets import split_buckets
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.rewiring import in_parts, is_transfer
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from tests.amount import some
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import trace_of
from tests.captures.timeline import TimelineBuilder
from tests.simulator.rebuilt_of import length
from tests.simulator.simulated import DENSE, MOE, replayed, simulated


@pytest.mark.parametrize(
    "layout",
    some(["dp=4", "dp=4,overlap_param_gather=off", "tp=2,pp=2,dp=2", "cp=4,dp=2", "dp=4,ep=4"], ["dp=4"]),
)
def test_buckets_of_a_quarter_cost_what_they_cost(layout: str, tmp_path: Path) -> None:
    """A layer of 218 M parameters needs five buckets of 40 M, of which one was sent for ahead, and 21 of
    10 M, of which one is: the others are waited for."""
    job = simulated(layout, shape=MOE if "ep=" in layout else DENSE)
    _, rebuilt = replayed(job, tmp_path)
    lay = job.simulation.setting.layout
    small = Job(layout=replace(lay, bucket=lay.bucket_parameters // 4))
    cost = simulate_job(job.shape, small, job.gpu, job.steps).makespan_ns - job.simulation.makespan_ns
    reductions = rebuilt.bytes[(rebuilt.reduces == 1) & (rebuilt.dimension == 0)]
    usual = int(np.median(reductions[reductions * 2 > reductions.max()]))
    found = length(split_buckets(usual // 4).apply(rebuilt)) - length(rebuilt)
    assert cost > 1_000_000
    assert found == pytest.approx(cost, rel=0.2)


LATENCY_NS = 9_000


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Rebuilt:
    """Two ranks that reduce all gradients at the end of the step."""
    whole = "dp=2,distributed_optimizer=off,overlap_grad_reduce=off,bucket=400000000,micro_batches=1"
    return replayed(simulated(whole, steps=1), tmp_path_factory.mktemp("pair"))[1]


def test_parts_pay_the_latency_each_and_nothing_else(pair: Rebuilt) -> None:
    """Every reduction follows the one before: in three parts two latencies more for each, 18,000 ns."""
    ours = is_transfer(pair, "dp")
    count = int(ours.sum()) // 2
    cut = in_parts(pair, np.where(ours, 3, 1), LATENCY_NS)
    assert int(is_transfer(cut, "dp").sum()) == 3 * int(ours.sum())
    assert length(cut) - length(pair) == pytest.approx(count * 2 * LATENCY_NS, abs=3 * count)
    assert cut.bytes[is_transfer(cut, "dp")].sum() == pytest.approx(pair.bytes[ours].sum(), abs=6 * count)


def test_all_members_are_cut_into_what_any_is(pair: Rebuilt) -> None:
    """One rank asks for four parts, the other for none: both have four, and four meetings."""
    ours = np.flatnonzero(is_transfer(pair, "dp"))
    first = [ours[pair.graph.rank[ours] == rank][0] for rank in (0, 1)]
    parts = np.ones(len(pair.start_ns), np.int64)
    parts[first[0]] = 4
    cut = in_parts(pair, parts, LATENCY_NS)
    more = {
        kind: int((cut.graph.kind == kind).sum() - (pair.graph.kind == kind).sum())
        for kind in (TaskKind.COMMUNICATION, TaskKind.ARRIVAL, TaskKind.MEETING)
    }
    assert more == {TaskKind.COMMUNICATION: 6, TaskKind.ARRIVAL: 6, TaskKind.MEETING: 3}
    assert in_parts(pair, np.ones(len(parts), np.int64), LATENCY_NS) is pair


def test_the_capture_is_left_as_it_was(pair: Rebuilt) -> None:
    before = pair.graph.duration_ns.copy(), pair.bytes.copy()
    in_parts(pair, np.where(is_transfer(pair, "dp"), 5, 1), LATENCY_NS)
    assert (pair.graph.duration_ns == before[0]).all()
    assert (pair.bytes == before[1]).all()


US = 1_000


def step(folder: Path, *, batches: int) -> Rebuilt:
    """Forwards and backwards of 99 us each, 1 us apart, but the last backward takes 129: in it 1000 bytes are
    reduced [20, 40) us after it began and 2000 bytes [70, 100), which is 10 us and 10 ns a byte. Then the
    optimizer, 70 us."""
    builder = TimelineBuilder()
    process = builder.process(pid=77)
    main, backend = process.thread(tid=77), process.thread(tid=78)
    main.range("perfdoc.rank 0 world=2 device=cpu", 0, 0)
    last = 200 * batches - 100
    end = last + 130  # 1 us of it for nothing
    for i in range(batches):
        main.range("perfdoc.forward", 200 * i * US, (200 * i + 99) * US)
        until = end if i == batches - 1 else 200 * i + 200
        main.range("perfdoc.backward", (200 * i + 100) * US, (until - 1) * US)
    for number, (size, begin, took) in enumerate(((1000, 20, 20), (2000, 70, 30))):
        facts = f"all_reduce group=DATA_PARALLEL_GROUP pg=1 bytes={size} seq={number}"
        at = last + begin
        main.range(f"perfdoc.comm.issue {facts}", at * US, at * US)
        backend.range(f"perfdoc.comm.run {facts}", at * US, (at + took) * US, kind="start_end")
    main.range("perfdoc.optimizer", end * US, (end + 70) * US)
    main.range("perfdoc.step 0", 0, (end + 70) * US)
    (view,) = views_of(trace_of(builder, folder))
    return rebuild_rank(view)


def test_fewer_reductions_take_less_of_what_runs_beside_them(tmp_path: Path) -> None:
    """Beside 50 us of reductions the last backward computes 30 us longer than the first: 60 %. Together they
    take 10 + 30 us, 10 less, so the pass is 6 us shorter."""
    rebuilt = step(tmp_path, batches=2)
    assert length(rebuilt) == 500 * US
    assert length(rebucketed(3000).apply(rebuilt)) == pytest.approx(494 * US, abs=10)


def test_without_a_pass_to_compare_with_nothing_is_said(tmp_path: Path) -> None:
    """One micro-batch: how long its backward were without reductions is not known."""
    rebuilt = step(tmp_path, batches=1)
    assert length(rebuilt) == 300 * US
    assert length(rebucketed(3000).apply(rebuilt)) == 300 * US
