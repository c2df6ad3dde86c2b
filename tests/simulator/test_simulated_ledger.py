"""Simulated jobs: perfdoc measures in their captures what was laid, to the nanosecond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.simulator.captures.nsys import Clock
from perfdoc.simulator.forward.answer import rank_ledger
from perfdoc.simulator.forward.tape import OpKind
from tests.amount import some
from tests.analyzers.brute import counts
from tests.simulator.simulated import DENSE, MOE, measured, present, simulated, written

LAYOUTS = {
    "one rank": "dp=1",
    "dp4": "dp=4",
    "tp2_pp2_dp2": "tp=2,pp=2,dp=2",
    "pp4_vpp2": "pp=4,vpp=2",
    "cp2": "cp=2",
    "tp2_cp2_pp2_vpp2": "tp=2,cp=2,pp=2,vpp=2",
    "all-reduces": "tp=2,dp=2,sp=off,distributed_optimizer=off",
    "nothing overlaps": "tp=2,dp=2,pp=2,overlap_grad_reduce=off,overlap_param_gather=off,overlap_tp=off",
}
MOE_LAYOUTS = {"ep4": "dp=4,ep=4", "tp2_cp2_ep4_pp2": "tp=2,cp=2,ep=2,dp=2,pp=2", "ep2 of dp4": "dp=4,ep=2"}
FAULTS = {"norms": "norm_spin=3", "starved": "launch_starved=900", "connections": "max_connections"}
ALL = (
    *FAULTS.values(),
    *("small_buckets", "gc", "slow_data", "late_rank=5:1.5", "uneven_stages=1", "fp32_reduce"),
)


def check(layout: str, *faults: str, moe: bool = False, folder: Path) -> None:
    """Every rank's ledger, window and dimensions."""
    job = simulated(layout, *faults, shape=MOE if moe else DENSE, few_layers=True)
    for path, timed in zip(written(job, folder), job.simulation.ranks, strict=True):
        found, truth = measured(path), rank_ledger(timed)
        window, ledger = found.window, found.ledger
        assert (window.kind, found.device.rank) == ("steps", timed.work.rank)
        assert tuple(s.start_ns for s in window.step_list) == truth.step_start_ns
        assert (window.start_ns, window.end_ns) == (truth.window_start_ns, truth.window_end_ns)
        assert ledger.compute == truth.compute_ns
        assert present(ledger.exposed_comm.by_name) == truth.exposed_comm_ns
        assert ledger.exposed_memcpy == truth.exposed_memcpy_ns
        assert present(ledger.idle.by_name) == truth.idle_ns
        dimensions = {g.dimension for g in timed.work.groups.values()}
        assert {c.dimension for c in found.communication} == dimensions
        assert {c.evidence for c in found.communication} <= {"communicator"}
        for dimension, ns in truth.comm_ns.items():
            rows = [c for c in found.communication if c.dimension == dimension]
            if len({c.group for c in rows}) == 1:
                assert sum(c.hidden_ns + c.exposed_ns for c in rows) == ns


@pytest.mark.parametrize("name", some(LAYOUTS, LAYOUTS.keys() & {"tp2_cp2_pp2_vpp2"}))
def test_dense_layouts(name: str, tmp_path: Path) -> None:
    check(LAYOUTS[name], folder=tmp_path)


@pytest.mark.parametrize("name", some(MOE_LAYOUTS, ["ep2 of dp4"]))
def test_layouts_with_experts(name: str, tmp_path: Path) -> None:
    check(MOE_LAYOUTS[name], moe=True, folder=tmp_path)


@pytest.mark.parametrize("name", some(FAULTS, ["starved"]))  # and all of them together, below
def test_faults(name: str, tmp_path: Path) -> None:
    check("tp=2,pp=2,dp=2", FAULTS[name], folder=tmp_path)


@pytest.mark.slow
def test_all_faults_together(tmp_path: Path) -> None:
    check("tp=2,pp=2,dp=2", *ALL, folder=tmp_path)


def test_a_clock_that_is_wrong_moves_the_window_and_nothing_else(tmp_path: Path) -> None:
    job = simulated("tp=2")
    (path, _) = written(job, tmp_path, clock=Clock(utc_error_ns=70_000))
    ledger = measured(path).ledger
    assert ledger.compute == rank_ledger(job.simulation.ranks[0]).compute_ns


@pytest.mark.slow
def test_the_answer_equals_a_count_of_every_nanosecond() -> None:
    """One byte per nanosecond and rank: 1 communication, 2 copy, 4 computation."""
    for timed in simulated(
        "tp=2,pp=2,vpp=2,dp=2,micro_batches=2", "late_rank=1", few_layers=True
    ).simulation.ranks:
        truth = rank_ledger(timed)
        begin = truth.window_start_ns
        marks = np.zeros(truth.window_end_ns - begin, np.uint8)
        bits = {OpKind.COMMUNICATION: 1, OpKind.COPY: 2, OpKind.COMPUTE: 4}
        for step in range(2):
            for i, op in enumerate(timed.work.tape.ops):
                marks[timed.start_ns[step, i] - begin : timed.end_ns[step, i] - begin] |= bits[op.kind]
        count = counts(marks)
        assert truth.compute_ns == count[4:].sum()
        assert sum(truth.exposed_comm_ns.values()) == count[1] + count[3]
        assert truth.exposed_memcpy_ns == count[2]
        assert sum(truth.idle_ns.values()) == count[0]


def test_streams_run_in_order_and_after_their_launches() -> None:
    for timed in simulated("tp=2,pp=2,vpp=2", "norm_spin", "gc", few_layers=True).simulation.ranks:
        ops = timed.work.tape.ops
        segment, call = (np.array([getattr(o, n) for o in ops]) for n in ("segment", "call_ns"))
        for step in range(2):
            assert (timed.start_ns[step] > timed.host_ns(step, segment, call)).all()
            for stream in {o.stream for o in ops}:
                mine = [i for i, o in enumerate(ops) if o.stream == stream]
                assert (timed.start_ns[step, mine[1:]] >= timed.end_ns[step, mine[:-1]]).all()
            for waiting, awaited in timed.work.tape.waits:
                assert timed.start_ns[step, waiting] >= timed.end_ns[step, awaited]


@pytest.mark.parametrize("layout", ["tp=2,pp=4,micro_batches=6", "tp=2,pp=2,vpp=2,dp=2"])
def test_a_pass_begins_when_the_one_that_it_needs_has_ended(layout: str) -> None:
    """Forward passes need the chunk before theirs, backward passes the chunk behind it."""
    job = simulated(layout, "late_rank=1:1.3", few_layers=True)
    lay = job.simulation.setting.layout
    for ranks in {timed.work.groups["pp"].ranks for timed in job.simulation.ranks}:
        for step in range(2):
            spans: dict[tuple[bool, int, int], tuple[int, int]] = {}
            for stage, rank in enumerate(ranks):
                timed = job.simulation.ranks[rank]
                for forward, micro_batch, chunk, first, end in timed.work.tape.passes:
                    # Gradients may still be reduced when a pass is over.
                    ops = timed.work.tape.ops
                    work = [i for i in range(first, end) if ops[i].group != "dp"]
                    spans[forward, micro_batch, chunk * lay.pp + stage] = (
                        int(timed.start_ns[step, work].min()),
                        int(timed.end_ns[step, work].max()),
                    )
            last = lay.pp * lay.vpp - 1
            assert len(spans) == 2 * lay.passes * (last + 1)
            for (forward, micro_batch, place), (start, _) in spans.items():
                needed = (
                    (True, micro_batch, place - 1)
                    if forward and place
                    else (False, micro_batch, place + 1)
                    if not forward and place < last
                    else (True, micro_batch, place)
                )
                if needed != (forward, micro_batch, place):
                    assert start > spans[needed][1]
