"""Smaller buckets: weights gathered in them come later too. Against jobs that have them, laid out apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.simulator.engine import schedule
from perfdoc.simulator.forward.faults import Job
from perfdoc.simulator.forward.job import simulate_job
from perfdoc.simulator.replay.edits import split_buckets
from perfdoc.simulator.replay.edits.smaller_buckets import split_gathers
from perfdoc.simulator.replay.rebuilt import Rebuilt
from tests.amount import some
from tests.simulator.simulated import DENSE, MOE, replayed, simulated


def length(rebuilt: Rebuilt) -> int:
    return rebuilt.span(schedule(rebuilt.graph).end_ns)


@pytest.mark.parametrize(
    "layout",
    some(
        ["dp=4", "dp=4,overlap_param_gather=off", "tp=2,pp=2,dp=2", "cp=4,dp=2", "dp=4,ep=4"],
        ["dp=4"],
    ),
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
    assert found == pytest.approx(cost, rel=0.35)


def test_whole_buckets_are_left(tmp_path: Path) -> None:
    _, rebuilt = replayed(simulated("dp=2", steps=1), tmp_path)
    same = split_gathers(rebuilt, 1.0, 9_000, "dp")
    assert np.array_equal(schedule(same.graph).end_ns, schedule(rebuilt.graph).end_ns)
    fewer, more = (length(split_gathers(rebuilt, r, 9_000, "dp")) for r in (0.5, 0.125))
    assert length(rebuilt) < fewer < more


def test_a_single_gather_is_cut_too(tmp_path: Path) -> None:
    """One whose size is known on each rank: it is the usual one, and its parts follow one another."""
    _, rebuilt = replayed(simulated("dp=2,overlap_param_gather=off", steps=1), tmp_path)
    gathers = np.flatnonzero((rebuilt.bytes > 0) & (rebuilt.reduces == 0))
    alone = gathers[np.unique(rebuilt.graph.rank[gathers], return_index=True)[1]]
    size = rebuilt.bytes.copy()
    size[np.setdiff1d(gathers, alone)] = -1
    took = rebuilt.graph.duration_ns[alone]
    cut = split_gathers(replace(rebuilt, bytes=size), 0.25, 9_000, "dp").graph.duration_ns[alone]
    assert cut.tolist() == pytest.approx((4 * (9_000 + (took - 9_000) / 4)).tolist(), abs=4)
