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
