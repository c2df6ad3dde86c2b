"""Jobs of 4 and 8 ranks with everything known, from their files to the diagnosis: every figure comes back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from perfdoc.simulator.captures.nsys import Clock
from tests.amount import some
from tests.analyzers.planted_checks import (
    Diagnosed,
    check_clocks,
    check_contention,
    check_exposure,
    check_pipeline,
    check_stragglers,
    check_waits,
    diagnosed,
)
from tests.planted.job import KINDS, JobSpec
from tests.planted.spec import Late

SLOW = Late(rank=1, extra_ns=400_003)


def offsets(ranks: int) -> tuple[Clock, ...]:
    """Sessions that open one after another, UTC that is wrong by 200 µs more on every rank."""
    return tuple(Clock(session_start_ns=1_000_000 * i, utc_error_ns=200_000 * i) for i in range(ranks))


def drifts(ranks: int) -> tuple[Clock, ...]:
    """Likewise, up to 38 ms and 3.5 ms, and clocks that run apart by up to 53 ppm."""
    rates = (0, 21_000, -13_000, 40_000) * 2
    return tuple(
        Clock(session_start_ns=19_000_123 * (i % 3), utc_error_ns=500_000 * i, drift_ppb=rates[i])
        for i in range(ranks)
    )


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, and who must be named as a straggler of which dimension, and why."""

    spec: JobSpec
    stragglers: dict[tuple[int, str], str] = field(default_factory=dict)


def case(kind: str, stragglers: dict[tuple[int, str], str] | None = None, **changes: object) -> Case:
    return Case(spec=replace(KINDS[kind], **changes), stragglers=stragglers or {})  # type: ignore[arg-type]


# Rank 1 of TP2 x DP2 is late in every forward pass: rank 0 waits for it in TP, then both come late to DP.
PASSED_ON = {(1, "tp"): "compute", (0, "dp"): "waiting", (1, "dp"): "compute"}

CASES = {
    "one file": case("tp2_dp2", PASSED_ON, late=SLOW, one_file=True),
    "a pipeline in one file": case(
        "cp2_ep2_pp2", one_file=True, pp_handover_ns=1_703, stage_extra_ns=(0, 90_001)
    ),
    "offsets": case("pp2_vpp2_dp2", clocks=offsets(4)),
    "drift": case("ep4", {(1, "ep"): "compute"}, late=SLOW, clocks=drifts(4)),
    "everything": case(
        "tp2_cp2_ep2_pp2",
        {(5, "tp"): "compute"},
        late=Late(rank=5, extra_ns=400_003),
        clocks=drifts(8),
        pp_handover_ns=1_703,
        stage_extra_ns=(0, 150_001),
        norm_contended_ns=33_333,
    ),
}


@pytest.mark.parametrize("name", some(CASES, ["everything"]))
def test_every_figure_comes_back(name: str, tmp_path: Path) -> None:
    check(diagnosed(CASES[name].spec, tmp_path), CASES[name])


def check(found: Diagnosed, case: Case) -> None:
    check_exposure(found)
    check_waits(found)
    check_stragglers(found, case.stragglers)
    check_clocks(found)
    check_contention(found)
    if case.spec.pp > 1:
        check_pipeline(found)
    else:
        assert found.found.analyses.pipeline.state == "not_measured"


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["own files", "one file", "offsets", "drift"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_balanced_job(kind: str, variant: str, tmp_path: Path) -> None:
    ranks = KINDS[kind].world_size
    clocks = {"offsets": offsets(ranks), "drift": drifts(ranks)}.get(variant, ())
    balanced = case(kind, clocks=clocks, one_file=variant == "one file")
    check(diagnosed(balanced.spec, tmp_path), balanced)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["one file", "drift"])
@pytest.mark.parametrize(
    ("kind", "late", "stragglers"),
    [
        ("dp4", 1, {(1, "dp"): "compute"}),
        ("cp2_dp2", 3, {(2, "dp"): "waiting", (3, "dp"): "compute"}),
        ("pp4", 2, {}),
        ("pp4_vpp2_dp2", 5, {}),
        ("tp2_pp2_dp2", 2, {(2, "tp"): "compute"}),
        ("tp2_cp2_ep2_pp2", 5, {(5, "tp"): "compute"}),
    ],
)
def test_late_ranks(
    kind: str, late: int, stragglers: dict[tuple[int, str], str], variant: str, tmp_path: Path
) -> None:
    clocks = drifts(KINDS[kind].world_size) if variant == "drift" else ()
    slow = Late(rank=late, extra_ns=400_003)
    job = case(kind, stragglers, late=slow, clocks=clocks, one_file=not clocks)
    check(diagnosed(job.spec, tmp_path), job)


def test_stages_that_share_three_all_reduces(tmp_path: Path) -> None:
    # TP and DP tie ranks 0 to 3, and 4 to 7; between the stages are three all-reduces of 21 µs, and messages
    # of 30 µs both ways. UTC of rank 4 is 800 µs wrong: nothing may rest on it.
    job = case("tp2_pp2_dp2", {(2, "tp"): "compute"}, late=Late(rank=2, extra_ns=400_003), clocks=offsets(8))
    found = diagnosed(job.spec, tmp_path)
    check(found, job)
    skew, pipeline = found.found.analyses.skew, found.found.analyses.pipeline
    assert [c.source for c in skew.clocks] == ["ends"] * 4 + ["bounds"] * 4
    assert [c.offset_ns for c in skew.clocks] == [200_000 * i for i in range(8)]
    # What can be told inside a stage is told to a tick.
    assert {s.resolution_ns for s in skew.stragglers} == {1_000}
    assert max(c.resolution_ns or 0 for c in skew.clocks[:4]) < 1_300
    # Nothing proves more than the messages' transfer, 1 µs of every clock's ticks, and some drift in 45 ms.
    assert all(31_000 < (c.resolution_ns or 0) < 50_000 for c in skew.clocks[4:])
    assert (skew.resolution_ns or 0) > 31_000
    assert any("bounded by the order of messages" in limit for limit in skew.limits)
    assert 62_000 < pipeline.uncertainty_ns < 100_000
    assert pipeline.bubble_frac is not None
    assert (pipeline.transfer_frac, pipeline.late_peer_frac) == (None, None)


# What others fall for where there are several ranks.


def test_a_pure_clock_offset_names_nobody(tmp_path: Path) -> None:
    # 500 µs more on every rank, and nobody ever waits. By its starts rank 3 comes last to all collectives.
    clocks = tuple(Clock(session_start_ns=1_000_000 * i, utc_error_ns=500_000 * i) for i in range(4))
    job = case("dp4", clocks=clocks)
    found = diagnosed(job.spec, tmp_path)
    check(found, job)
    skew = found.found.analyses.skew
    assert (skew.stragglers_state, skew.largest_spreads) == ("not_distinguishable", [])
    assert [c.offset_ns for c in skew.clocks] == [0, 500_000, 1_000_000, 1_500_000]
    assert {w.wait_ns for w in skew.waits} == {0}


def test_starts_far_apart_without_any_epoch(tmp_path: Path) -> None:
    # Sessions begin 102 ms after one another and no file says when: ends still tell who is late.
    clocks = tuple(Clock(session_start_ns=102_000_000 * i) for i in range(4))
    job = case("dp4", {(3, "dp"): "compute"}, late=Late(rank=3, extra_ns=400_003), clocks=clocks)
    found = diagnosed(job.spec, tmp_path, utc=False)
    check_exposure(found)
    check_waits(found)
    check_stragglers(found, job.stragglers)
    assert {c.offset_ns for c in found.found.analyses.skew.clocks} == {None}


def test_two_late_ranks_and_no_group_of_all(tmp_path: Path) -> None:
    # TP {0,1} {2,3}, DP {0,2} {1,3}, clocks that drift. Rank 1 is late by 400 µs a forward, rank 2 by 250: in
    # TP each is waited for; in DP the first replica is, by what remains between them.
    lates = (Late(rank=1, extra_ns=400_003), Late(rank=2, extra_ns=250_001))
    stragglers = {(1, "tp"): "compute", (2, "tp"): "compute", (0, "dp"): "waiting", (1, "dp"): "compute"}
    job = case("tp2_dp2", stragglers, late=lates, clocks=drifts(4))
    found = diagnosed(job.spec, tmp_path)
    assert max(len(c.ranks) for c in found.job.answer.collectives) == 2
    check(found, job)


def test_ranks_come_from_the_trace_and_not_from_the_name(tmp_path: Path) -> None:
    job = case("tp2_dp2", PASSED_ON, late=SLOW)
    found = diagnosed(job.spec, tmp_path, name=lambda rank: f"rank{3 - rank}.sqlite")
    assert [Path(i.path).name for i in found.found.inputs] == [f"rank{i}.sqlite" for i in range(4)]
    assert [r.input for r in found.found.ranks] == [3, 2, 1, 0]
    check(found, job)


def test_waiting_in_a_collective_is_no_host_time(tmp_path: Path) -> None:
    (tmp_path / "even").mkdir()
    even = diagnosed(KINDS["tp2_dp2"], tmp_path / "even").found.ranks[0].ledger_ns
    found = diagnosed(replace(KINDS["tp2_dp2"], late=Late(rank=1, extra_ns=4_000_003)), tmp_path)
    check_exposure(found)
    waiting = found.found.ranks[0].ledger_ns
    # In each of 2 x 3 forwards rank 0 waits as much longer, 119,013 of it in the reduce-scatter: by so much
    # what runs beside the all-gather lasts longer than that, and rank 1 only begins it then.
    assert waiting.exposed_comm.tp - even.exposed_comm.tp == 6 * 4_000_003
    assert waiting.idle == even.idle
