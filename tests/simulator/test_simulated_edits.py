"""Simulated jobs replayed: the unedited step, and edits that take planted faults away.

A fault's cost is the difference of two jobs that were laid out apart; the edit sees the faulty captures only.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from perfdoc.simulator.engine import schedule
from perfdoc.simulator.forward.job import SimulatedJob
from perfdoc.simulator.forward.program import DATA_NS
from perfdoc.simulator.replay.edits import (
    Edit,
    norms_alone,
    overlapped,
    rebucketed,
    scaled_communication,
    without_host_time,
    without_launches,
    without_straggler,
)
from tests.simulator.simulated import MOE, replayed, simulated

LAYOUTS = ("tp=2,pp=2,dp=2", "pp=4,vpp=2", "cp=2,tp=2", "tp=2,pp=2,vpp=2,dp=2,cp=2")
MIXED, DATA, PLAIN = "tp=2,pp=2,dp=2", "dp=4", "dp=4,distributed_optimizer=off"
RECOVERED: dict[str, tuple[str, Sequence[Edit]]] = {
    "late_rank=3:1.4": (MIXED, [without_straggler(3, "tp")]),
    "late_rank=2:1.5": (DATA, [without_straggler(2, "dp")]),
    "slow_data=40": (MIXED, [without_host_time("data", keep_frac=DATA_NS / (40_000_000 + DATA_NS))]),
    "gc=40": (MIXED, [without_host_time("gc")]),
    "norm_spin=8": (MIXED, [norms_alone()]),
    "launch_starved=3000": (MIXED, [without_launches()]),
    "small_buckets=4": (MIXED, [rebucketed(40_000_000)]),
    "small_buckets=4.0": (DATA, [rebucketed(20_000_000)]),
    "small_buckets=5": (PLAIN, [rebucketed(80_000_000)]),
    "small_buckets=2": ("tp=2,pp=2,vpp=2,dp=2,overlap_grad_reduce=off", [rebucketed(40_000_000)]),
    "fp32_reduce": (PLAIN, [scaled_communication("dp", 0.5)]),
}
"""By fault: (layout, what takes it away), where an edit means the same as the fault's absence."""


def recovered(job: SimulatedJob, edits: Sequence[Edit], folder: Path) -> tuple[int, int]:
    """(what the fault costs, what the edits save)."""
    replay, rebuilt = replayed(job, folder)
    assert replay.error_frac == pytest.approx(0, abs=1e-3)
    before = rebuilt.span(schedule(rebuilt.graph).end_ns)
    for edit in edits:
        rebuilt = edit.apply(rebuilt)
    return job.costs[0].cost_ns, before - rebuilt.span(schedule(rebuilt.graph).end_ns)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_simulated_job_replays_as_it_was(layout: str, tmp_path: Path) -> None:
    found, _ = replayed(simulated(layout, steps=1 if "vpp" in layout else 2), tmp_path)
    assert found.error_frac == pytest.approx(0, abs=1e-3)
    assert found.worst_error_frac == pytest.approx(0, abs=1e-3)


def test_a_job_with_experts_replays_as_it_was(tmp_path: Path) -> None:
    found, _ = replayed(simulated("dp=4,ep=4", shape=MOE, steps=1), tmp_path)
    assert found.worst_error_frac == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("fault", RECOVERED)
def test_an_edit_recovers_what_a_fault_cost(fault: str, tmp_path: Path) -> None:
    layout, edits = RECOVERED[fault]
    cost, saved = recovered(simulated(layout, fault), edits, tmp_path)
    assert cost > 500_000
    assert saved == pytest.approx(cost, rel=0.02)


def test_faults_together_are_recovered_by_their_edits_together(tmp_path: Path) -> None:
    """Against a job without any fault; no sum of single gains."""
    job = simulated(MIXED, "late_rank=3:1.4", "gc=40", "norm_spin=8")
    edits = [without_straggler(3, "tp"), without_host_time("gc"), norms_alone()]
    _, saved = recovered(job, edits, tmp_path)
    assert saved == pytest.approx(job.laying.makespan_ns - job.sound_ns, rel=0.02)


@pytest.mark.parametrize(
    ("layout", "fault", "dimension"),
    [("dp=4", "no_overlap=dp", "dp"), ("cp=4", "exposed_cp", "cp"), ("tp=2", "no_overlap=tp", "tp")],
)
def test_overlap_is_rough(layout: str, fault: str, dimension: str, tmp_path: Path) -> None:
    """The edit lets nothing wait before the optimizer; a job that overlaps waits where it needs data. Of dp
    it finds about half: gathers of weights stay, and it starts nothing earlier than it was."""
    job = simulated(layout, fault)
    cost, saved = recovered(job, [overlapped(dimension)], tmp_path)
    assert cost > 0
    low, high = (0.5, 1.0) if dimension == "dp" else (1.0, 2.5)
    assert low * cost <= saved <= high * cost


def test_a_job_that_overlaps_gains_nothing_from_overlap(tmp_path: Path) -> None:
    """Its gradients are awaited by the optimizer only, and its weights by the forward that needs them."""
    _, rebuilt = replayed(simulated("dp=4", "slow_data=1"), tmp_path)
    with pytest.raises(ValueError, match="nothing waits for dp"):
        overlapped("dp").apply(rebuilt)
