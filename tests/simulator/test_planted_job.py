"""Planted jobs: their answers against what perfdoc measures, and against a count of every nanosecond."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import RankMeasurement, measure_capture
from perfdoc.simulator.captures.nsys import Clock
from tests.amount import some
from tests.analyzers.brute import counts
from tests.captures.events import Kernel
from tests.planted.answer import RankAnswer
from tests.planted.job import KINDS, JobSpec, planted_job, planted_steps
from tests.planted.spec import Late

CLOCKS = tuple(
    Clock(session_start_ns=37_000_123 * (i % 3), utc_error_ns=500_000 * i, drift_ppb=drift)
    for i, drift in enumerate((0, 21_000, -13_000, 40_000) * 2)
)
"""Sessions that start apart, UTC times wrong by half a millisecond per rank, clocks that drift."""

JOBS: dict[str, JobSpec] = {
    **KINDS,
    "late": replace(KINDS["tp2_pp2_dp2"], late=Late(rank=2, extra_ns=400_003)),
    "late in one step": replace(KINDS["dp4"], late=Late(rank=1, extra_ns=300_001, steps=(1,))),
    "clocks": replace(KINDS["tp2_cp2_ep2_pp2"], clocks=CLOCKS, late=Late(rank=5, extra_ns=200_000)),
    "clocks, messages beside compute": replace(KINDS["pp2_vpp2_dp2"], clocks=CLOCKS[:4]),
    "handover": replace(KINDS["pp4"], pp_handover_ns=1_703, stage_extra_ns=(0, 0, 90_001, 0)),
    "slow messages": replace(KINDS["pp4_vpp2_dp2"], pp_transfer_ns=900_011),
    "fewer micro-batches than stages": replace(KINDS["pp4"], micro_batches=2),
}


AGAIN = {
    "tp2_dp2",
    "cp2_dp2",
    "dp4",
    "ep4",
    "pp4",
    "tp2_pp2_dp2",
    "pp4_vpp2_dp2",
    "cp2_ep2_pp2",
    "clocks",
    "late",
    "slow messages",
}
"""What these plant is in others as well."""


@pytest.mark.parametrize("name", some(JOBS, JOBS.keys() - AGAIN))
def test_perfdoc_measures_what_was_planted(name: str, tmp_path: Path) -> None:
    job = planted_job(JOBS[name])
    paths = job.write(tmp_path)
    assert [p.name for p in paths] == [f"rank{i}.sqlite" for i in range(job.spec.world_size)]
    for path, answer in zip(paths, job.answer.ranks, strict=True):
        capture = measure_capture(path, WindowRequest())
        (measured,) = capture.ranks
        assert (measured.device.rank, capture.world_size) == (answer.rank, job.spec.world_size)
        _equal(measured, answer)


def test_all_ranks_in_one_file(tmp_path: Path) -> None:
    job = planted_job(replace(KINDS["pp2_vpp2_dp2"], one_file=True))
    (path,) = job.write(tmp_path)
    measured = {m.device.process: m for m in measure_capture(path, WindowRequest()).ranks}
    assert len(measured) == 4
    for answer in job.answer.ranks:
        _equal(measured[answer.pid], answer)


def _equal(measured: RankMeasurement, answer: RankAnswer) -> None:
    window, ledger = measured.window, measured.ledger
    assert window.kind == "steps"
    assert tuple(s.start_ns for s in window.step_list) == answer.step_start_ns
    assert (window.start_ns, window.end_ns) == (answer.window_start_ns, answer.window_end_ns)
    assert ledger.compute == answer.compute_ns
    assert _present(ledger.exposed_comm.by_name) == _present(answer.exposed_comm_ns)
    assert ledger.exposed_memcpy == answer.exposed_memcpy_ns
    assert _present(ledger.idle.by_name) == _present(answer.idle_ns)
    for dimension, truth in answer.hidden_comm_ns.items():
        rows = [r for r in measured.communication if r.dimension == dimension]
        hidden, exposed = [r.hidden_ns for r in rows], [r.exposed_ns for r in rows]
        assert {r.evidence for r in rows} == {"communicator"}
        if len({r.group for r in rows}) == 1:
            assert sum(hidden) == truth
            assert sum(exposed) == answer.exposed_comm_ns.get(dimension, 0)
        else:  # The two ways between stages have a communicator each and overlap one another.
            assert dimension == "pp"
            assert max(hidden) <= truth <= sum(hidden)


def _present(leaves: object) -> dict[str, int]:
    return {name: ns for name, ns in dict(leaves).items() if ns}  # type: ignore[call-overload]


@pytest.mark.parametrize("name", some(["late", "clocks, messages beside compute", "handover"], ["handover"]))
def test_the_answer_equals_a_count_of_every_nanosecond(name: str) -> None:
    job = planted_job(JOBS[name])
    for timeline, answer in zip(job.timelines, job.answer.ranks, strict=True):
        low, high = answer.window_start_ns, answer.window_end_ns
        dimension = {k.name: 1 for k in timeline.kernels if k.name.startswith("nccl")}
        # One byte per ns: 1 communication, 2 copy, 4 computation.
        marks = np.zeros(high - low, np.uint8)
        for row in timeline.work:
            if row.end_ns > low:
                bit = 2 if not isinstance(row, Kernel) else dimension.get(row.name, 4)
                marks[row.start_ns - low : row.end_ns - low] |= bit
        count = counts(marks)
        assert answer.compute_ns == count[4:].sum()
        assert sum(answer.exposed_comm_ns.values()) == count[1] + count[3]
        assert answer.exposed_memcpy_ns == count[2]
        assert sum(answer.idle_ns.values()) == count[0]


@pytest.mark.parametrize("name", some(["tp2_cp2_ep2_pp2", "pp4_vpp2_dp2", "clocks"], ["clocks"]))
def test_streams_run_in_order_and_after_their_launches(name: str) -> None:
    for timeline in planted_job(JOBS[name]).timelines:
        called = {a.correlation: a.start_ns for a in timeline.api_calls}
        lanes: dict[int, list[tuple[int, int]]] = {}
        for row in timeline.work:
            assert called[row.correlation] < row.start_ns
            lanes.setdefault(row.stream, []).append((row.start_ns, row.end_ns))
        for spans in lanes.values():
            spans.sort()
            assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


@pytest.mark.parametrize(
    "name",
    some((name for name, spec in KINDS.items() if spec.pp > 1), ["pp4", "pp2_vpp2_dp2", "cp2_ep2_pp2"]),
)
def test_a_balanced_pipeline_has_the_bubble_of_the_formula(name: str) -> None:
    job = planted_job(name)
    spec = job.spec
    assert len(job.answer.pipelines) == spec.steps * spec.world_size // spec.pp
    for pipeline in job.answer.pipelines:
        for stage in pipeline.stages:
            # Every pass of a kind is equally long, so a stage's own time is m * vpp * (forward + backward).
            both, rest = divmod(stage.own_ns, spec.micro_batches * spec.vpp)
            assert rest == 0
            assert stage.bubble_ns == (spec.pp - 1) * both == pipeline.ideal_bubble_ns
            assert stage.late_peer_ns == stage.handover_ns == 0
            assert stage.transfer_ns % spec.pp_transfer_ns == 0 < stage.transfer_ns
            assert stage.own_ns + stage.idle_ns == pipeline.end_ns - pipeline.start_ns


def test_a_late_rank_makes_others_wait_for_it() -> None:
    # tp2 x pp2 x dp2: rank 2 is on stage 0 of the second replica, its tensor peer is 3, its dp peer 0.
    answer = planted_job(JOBS["late"]).answer
    caused = answer.wait_caused_ns("tp")
    # Four forwards a step, three steps. Each delays the tp peer in the all-gather; while that runs, the peer
    # is done with the kernels beside it (29,017 + 300,007), which rank 2 only begins: it ends them that much
    # less the gather's 210,011 after the gather, and the peer waits so long in the reduce-scatter behind it.
    assert caused == {2: 4 * 3 * (400_003 + 29_017 + 300_007 - 210_011)}
    assert set(answer.wait_caused_ns("dp")) == {2, 3, 6, 7}, "the whole second replica comes late to dp"
    slow = {p.step: p for p in answer.pipelines if p.ranks == (2, 6)}
    assert [s.late_peer_ns > 0 for s in slow[0].stages] == [False, True]
    quick = next(p for p in answer.pipelines if p.ranks == (0, 4))
    assert [s.late_peer_ns for s in quick.stages] == [0, 0]


def test_members_of_a_collective_end_together_in_true_time() -> None:
    job = planted_job(JOBS["clocks"])
    for collective in job.answer.collectives:
        assert min(collective.start_ns) < collective.end_ns
        for rank in collective.ranks:
            end = job.spec.clock(rank).local(collective.end_ns)
            ends = {k.end_ns for k in job.timelines[rank].kernels if k.name.startswith("nccl")}
            assert end in ends
    origins = [t.utc_origin_ns for t in job.timelines]
    # Ranks 0 and 3 open their sessions together; rank 3's file says 1.5 ms later.
    assert origins[0] is not None
    assert origins[3] == origins[0] + 1_500_000


def test_norms_are_slower_beside_communication() -> None:
    job = planted_job("tp2_cp2_ep2_pp2")
    for answer in job.answer.ranks:
        passes = 3 * 4 * 2
        assert answer.norm_alone_ns == (20_011,) * passes
        assert answer.norm_contended_ns == (29_017,) * passes * 3  # tp, cp and ep have one each


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'dp3' is none of dp4"):
        planted_job("dp3")


def test_what_is_not_certain_of_every_nanosecond_has_no_answer() -> None:
    with pytest.raises(ValueError, match="goes with dp only"):
        planted_job(JobSpec(pp=2, vpp=2, tp=2))


def test_steps_of_a_job_without_recording_most_of_it(tmp_path: Path) -> None:
    """The same steps, and of the ranks asked for the same captures."""
    whole = planted_job("tp2_pp2_dp2")
    ends = [r.window_end_ns for r in whole.answer.ranks]
    starts = [r.window_start_ns for r in whole.answer.ranks]
    some = planted_steps(whole.spec, (5,))
    assert some.step_ns == (max(ends) - min(starts)) / 3
    assert list(some.timelines) == [5]
    assert some.timelines[5].kernels == whole.timelines[5].kernels
    assert [p.name for p in some.write(tmp_path)] == ["rank5.sqlite"]
