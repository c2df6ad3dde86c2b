"""Simulated jobs replayed: the unedited step, and edits that take planted faults away.

A fault's cost is the difference of two jobs that were laid out apart; the edit sees the faulty captures only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.simulator.forward.job import SimulatedJob
from perfdoc.simulator.forward.program import DATA_NS
from perfdoc.simulator.replay.edits.edit import Edit
from perfdoc.simulator.replay.edits.even_ranks import without_straggler
from perfdoc.simulator.replay.edits.host import without_host_time, without_launches
from perfdoc.simulator.replay.edits.kernels import norms_alone
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.overlap import overlapped, without_queueing
from tests.amount import some
from tests.simulator.rebuilt_of import length
from tests.simulator.scaled import scaled_communication
from tests.simulator.simulated import DENSE, MOE, replayed, simulated

LAYOUTS = ("tp=2,pp=2,dp=2", "pp=4,vpp=2", "cp=2,tp=2", "tp=2,pp=2,vpp=2,dp=2,cp=2")
MIXED, DATA, PLAIN = "tp=2,pp=2,dp=2", "dp=4", "dp=4,distributed_optimizer=off"
WHOLE = "dp=4,distributed_optimizer=off,overlap_grad_reduce=off"
RECOVERED: list[tuple[str, str, Sequence[Edit]]] = [
    ("late_rank=3:1.4", MIXED, [without_straggler(3, "tp")]),
    ("late_rank=2:1.5", DATA, [without_straggler(2, "dp")]),
    ("slow_data=40", MIXED, [without_host_time("data", keep_frac=DATA_NS / (40_000_000 + DATA_NS))]),
    ("gc=40", MIXED, [without_host_time("gc")]),
    ("norm_spin=8", MIXED, [norms_alone()]),
    ("launch_starved=3000", MIXED, [without_launches()]),
    ("small_buckets=4", MIXED, [rebucketed(40_000_000)]),
    ("small_buckets=4", DATA, [rebucketed(20_000_000)]),
    ("small_buckets=5", WHOLE, [rebucketed(80_000_000)]),
    ("small_buckets=2", "tp=2,pp=2,vpp=2,dp=2,overlap_grad_reduce=off", [rebucketed(40_000_000)]),
    ("fp32_reduce", PLAIN, [scaled_communication("dp", 0.5)]),
    ("no_overlap=dp", DATA, [overlapped("dp")]),
    ("no_overlap=dp", PLAIN, [overlapped("dp")]),
    ("no_overlap=dp", MIXED, [overlapped("dp")]),
    ("no_overlap=dp", "tp=2,pp=2,vpp=2,dp=2", [overlapped("dp")]),
    ("no_overlap=tp", "tp=2,pp=2", [overlapped("tp")]),
    ("no_overlap=tp", "tp=4,sp=off", [overlapped("tp")]),
    ("max_connections", "tp=2", [without_queueing()]),
    ("exposed_cp", "cp=4", [overlapped("cp")]),
    ("exposed_ep", "dp=4,ep=4", [overlapped("ep")]),
    ("no_overlap=dp", "dp=8,ep=4", [overlapped("dp")]),
    ("small_buckets=4", "dp=8,ep=4", [rebucketed(40_000_000)]),
]
"""(fault, layout, what takes it away), where an edit means the same as the fault's absence. A cost below zero
is a gain: where few gradients are exposed, gathering weights beside the forward costs more than it hides."""


AGAIN = {
    ("late_rank=3:1.4", MIXED),
    ("gc=40", MIXED),
    ("exposed_cp", "cp=4"),
    ("norm_spin=8", MIXED),
    ("launch_starved=3000", MIXED),
    ("late_rank=2:1.5", DATA),
    ("small_buckets=4", DATA),
    ("small_buckets=4", MIXED),
    ("small_buckets=2", "tp=2,pp=2,vpp=2,dp=2,overlap_grad_reduce=off"),
    ("no_overlap=dp", DATA),
    ("no_overlap=dp", MIXED),
    ("no_overlap=dp", "tp=2,pp=2,vpp=2,dp=2"),
    ("no_overlap=tp", "tp=4,sp=off"),
    ("no_overlap=dp", "dp=8,ep=4"),
    ("small_buckets=4", "dp=8,ep=4"),
}
"""The same edit on another layout, of a fault that it takes away alike, or beside others (below)."""


def recovered(job: SimulatedJob, edits: Sequence[Edit], folder: Path) -> tuple[int, int]:
    """(what the fault costs, what the edits save)."""
    replay, rebuilt = replayed(job, folder)
    assert replay.error_frac == pytest.approx(0, abs=1e-3)
    before = length(rebuilt)
    for edit in edits:
        rebuilt = edit.apply(rebuilt)
    return job.costs[0].cost_ns, before - length(rebuilt)


@pytest.mark.parametrize("layout", some(LAYOUTS, [LAYOUTS[1]]))
def test_a_simulated_job_replays_as_it_was(layout: str, tmp_path: Path) -> None:
    found, _ = replayed(simulated(layout, steps=1 if "vpp" in layout else 2, few_layers=True), tmp_path)
    assert found.error_frac == pytest.approx(0, abs=1e-3)
    assert found.worst_error_frac == pytest.approx(0, abs=1e-3)


def test_a_job_with_experts_replays_as_it_was(tmp_path: Path) -> None:
    found, _ = replayed(simulated("dp=4,ep=4", shape=MOE, steps=1, few_layers=True), tmp_path)
    assert found.worst_error_frac == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize(("fault", "layout", "edits"), some(RECOVERED, lambda case: case[:2] not in AGAIN))
def test_an_edit_recovers_what_a_fault_cost(
    fault: str, layout: str, edits: Sequence[Edit], tmp_path: Path
) -> None:
    few = not fault.startswith("norm_spin")  # which cost little
    job = simulated(layout, fault, shape=MOE if "ep=" in layout else DENSE, few_layers=few)
    cost, saved = recovered(job, edits, tmp_path)
    assert abs(cost) > 500_000
    assert saved == pytest.approx(cost, rel=0.02)


def test_faults_together_are_recovered_by_their_edits_together(tmp_path: Path) -> None:
    """Against a job without any fault; no sum of single gains."""
    job = simulated(MIXED, "late_rank=3:1.4", "gc=40", "norm_spin=8")
    edits = [without_straggler(3, "tp"), without_host_time("gc"), norms_alone()]
    _, saved = recovered(job, edits, tmp_path)
    assert saved == pytest.approx(job.simulation.makespan_ns - job.sound_ns, rel=0.02)


@pytest.mark.slow
def test_larger_buckets_collect_no_garbage(tmp_path: Path) -> None:
    """The host collects between two gathers of one bucket: that is not the buckets' and stays."""
    job = simulated(DATA, "small_buckets=4", "gc=40")
    cost, saved = recovered(job, [rebucketed(20_000_000)], tmp_path)
    assert 2_000_000 < cost < 30_000_000
    assert saved == pytest.approx(cost, rel=0.02)


@pytest.mark.slow
def test_one_bucket_of_everything_is_cut_before_it_is_overlapped(tmp_path: Path) -> None:
    """Without overlap Megatron has one bucket a chunk. Against a job with usual buckets, laid out apart."""
    whole = "tp=2,dp=4,bucket=9000000000,overlap_grad_reduce=off,overlap_param_gather=off"
    _, rebuilt = replayed(simulated(whole), tmp_path / "now")
    wanted = simulated("tp=2,dp=4").simulation.makespan_ns
    before = length(rebuilt)
    edited = overlapped("dp").apply(rebuilt)
    cost = simulated(whole).simulation.makespan_ns - wanted
    assert cost > 5_000_000
    assert before - length(edited) == pytest.approx(cost, rel=0.02)


def test_a_job_that_overlaps_gains_nothing_from_overlap(tmp_path: Path) -> None:
    """Its gradients are awaited by the optimizer only, and its weights by the forward that needs them."""
    _, rebuilt = replayed(simulated("dp=4", "slow_data=1"), tmp_path)
    with pytest.raises(ValueError, match="nothing waits for dp"):
        overlapped("dp").apply(rebuilt)


def test_what_is_overlapped_already_is_left(tmp_path: Path) -> None:
    _, rebuilt = replayed(simulated("tp=2,cp=2", steps=1, few_layers=True), tmp_path)
    for edit in (overlapped("tp"), overlapped("cp")):
        with pytest.raises(ValueError, match="that it does not need"):
            edit.apply(rebuilt)
    with pytest.raises(ValueError, match="begins as a later-launched kernel ends"):
        without_queueing().apply(rebuilt)


def test_experts_weights_are_read_at_the_speed_of_any_known_gpu(tmp_path: Path) -> None:
    """A half's GEMMs read the experts' weights once: an L40S reads them at 864 GB/s, an H100 at 3350
    and sooner than it computes."""
    _, rebuilt = replayed(
        simulated("dp=4,ep=4,seq=512", "exposed_ep", shape=MOE, steps=1, few_layers=True), tmp_path
    )

    def takes_ns(gpu: str) -> int:
        ranks = tuple(replace(rank, gpu_name=gpu) for rank in rebuilt.ranks)
        return length(overlapped("ep").apply(replace(rebuilt, ranks=ranks)))

    assert takes_ns("NVIDIA L40S") > takes_ns("NVIDIA H100 80GB HBM3") == takes_ns("without a sheet")


def test_halves_are_not_halved_again(tmp_path: Path) -> None:
    """The second half's way back and the next layer's way there are awaited at once too, but what is computed
    between them is attention: no experts' work that could be done in halves."""
    _, rebuilt = replayed(simulated("dp=4,ep=4,tp=2", shape=MOE, steps=1, few_layers=True), tmp_path)
    with pytest.raises(ValueError, match="no all-to-all of tokens"):
        overlapped("ep").apply(rebuilt)
