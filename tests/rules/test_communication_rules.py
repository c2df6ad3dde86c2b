"""PD101 and PD110: exposed communication, and norms that fight it."""

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.knobs.configuration import Configuration
from perfdoc.results.contention import ContentionCost
from perfdoc.results.waits import RankWait
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.exposed import exposed_ns
from tests.analyzers.test_contention import Plan
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.planted.job import planted_job
from tests.planted.spec import JobSpec, Late
from tests.rules.cases import case_of, gain_of, predicting, result, settings_of, step_with_communication

OFF = {"overlap_grad_reduce": False, "overlap_param_gather": False, "use_distributed_optimizer": True}


def test_pd101_threshold(tmp_path: Path) -> None:
    fires = result("PD101", case_of(tmp_path, step_with_communication(50)))
    assert fires.state == "fires", fires.reason
    # 50 us of each step of 1 ms are exposed, of an all-reduce of 150 us: two thirds are hidden.
    assert [e.value for e in fires.evidence] == ["5.0 %", "50 µs", "67 %"]
    assert result("PD101", case_of(tmp_path, step_with_communication(49))).state == "passes"


def test_pd101_without_dp_communication(tmp_path: Path) -> None:
    hidden = result("PD101", case_of(tmp_path, step_with_communication(0, name="")))
    assert (hidden.state, hidden.reason) == ("not_applicable", "no DP communication was seen")
    unknown = result("PD101", case_of(tmp_path, step_with_communication(80, name="")))
    assert unknown.state == "skipped"
    assert unknown.reason == (
        "8.0 % of the time is exposed communication of unknown dimension, none is known to be DP: see PD100"
    )


def waiting(case: Case, wait_us: int) -> Case:
    """The same, of which so much of both steps was waiting for a late rank."""
    wait = RankWait(
        rank=None,
        name=case.job.labels[0],
        dimension="dp",
        collectives=2,
        own_ns=400_000,
        transfer_ns=400_000 - wait_us * 1000,
        wait_ns=wait_us * 1000,
    )
    skew = replace(case.job.skew, state="measured", waits=[wait])
    return replace(case, job=replace(case.job, skew=skew))


def test_pd101_leaves_waiting_for_late_ranks_to_pd303(tmp_path: Path) -> None:
    """100 us of each step of 1 ms are exposed. Of 50 us of waiting 5 % are left, of 50.5 not. What is hidden
    hides the waiting too, so all of it bounds the gain."""
    case = case_of(tmp_path, step_with_communication(100))
    found = result("PD101", waiting(case, 100))
    assert (found.state, found.evidence[-1].value) == ("fires", "5.0 %")
    assert (gain_of(found).method, gain_of(found).high_ms) == ("ceiling", pytest.approx(0.1))
    found = result("PD101", waiting(case, 101))
    assert (found.state, "PD303" in found.reason, found.gain) == ("passes", True, None)


def test_pd101_of_a_pure_straggler(tmp_path: Path) -> None:
    """Rank 0 computes 20 ms longer in each step than the one it meets: what rank 1 shows as exposed is its
    waiting for it."""
    spec = JobSpec(dp=2, micro_batches=2, late=Late(rank=0, extra_ns=20_000_000))
    captures = [
        measure_capture(write_nsys_sqlite(t, tmp_path / f"late{i}.sqlite"), WindowRequest())
        for i, t in enumerate(planted_job(spec).timelines)
    ]
    case = Case.of(captures)
    assert (case.share(exposed_ns("dp")) or 0) > 0.1
    found = result("PD101", case)
    assert (found.state, "PD303" in found.reason) == ("passes", True)


def test_pd101_gain_is_of_what_may_be_set(tmp_path: Path) -> None:
    """An overlap that is forbidden (FSDP has its own), or set already, brings no replayed gain."""
    builder = step_with_communication(100)
    both = predicting(case_of(tmp_path, builder, settings=OFF), overlapped_dp=(0.05, 0.08, 0.1))
    assert (result("PD101", both).gain_per, result("PD101", both).gain_frac) == ("step", pytest.approx(0.08))
    gather = {**OFF, "overlap_grad_reduce": True}
    found = result(
        "PD101", predicting(case_of(tmp_path, builder, settings=gather), overlapped_dp=(0.05, 0.08, 0.1))
    )
    assert settings_of(found) == {"overlap_param_gather": True}
    assert (gain_of(found).method, gain_of(found).mid_ms) == ("ceiling", None)
    width = {"overlap_grad_reduce": True, "grad_reduce_in_fp32": True}
    case = predicting(case_of(tmp_path, builder, settings=width), dp_half_bytes=(0.01, 0.02, 0.03))
    facts = replace(case.job.facts, dtype="bf16")
    found = result("PD101", replace(case, job=replace(case.job, facts=facts)))
    assert settings_of(found) == {"grad_reduce_in_fp32": False}
    assert (found.gain and gain_of(found).mid_ms) == 0.02


def test_pd101_advises_only_what_is_known(tmp_path: Path) -> None:
    builder = step_with_communication(100)
    nothing = result("PD101", case_of(tmp_path, builder))
    assert (nothing.advice, "--config" in nothing.remedy) == ([], True)
    off = predicting(case_of(tmp_path, builder, settings=OFF), overlapped_dp=(0.05, 0.08, 0.1))
    found = result("PD101", off)
    assert settings_of(found) == {"overlap_grad_reduce": True, "overlap_param_gather": True}
    assert (gain_of(found).method, gain_of(found).mid_ms) == ("replay", 0.08)
    on = result("PD101", case_of(tmp_path, builder, settings={"overlap_grad_reduce": True}))
    assert (on.advice, "No known setting" in on.remedy) == ([], False)
    assert "bucket_size" in on.remedy


@pytest.mark.parametrize(
    ("key", "low", "to"),
    [
        ("buckets_x4", 0.01, 4000),
        ("buckets_x0.25", 0.01, 250),
        ("buckets_x4", 0.0, 40_000_000),
        ("buckets_x0.25", 0.0, None),
    ],
)
def test_pd101_bucket_size_follows_the_replay(tmp_path: Path, key: str, low: float, to: int | None) -> None:
    settings = {"bucket_size": 1000, "overlap_grad_reduce": True}
    case = case_of(tmp_path, step_with_communication(100), settings=settings)
    found = result("PD101", predicting(case, **{key: (low, 0.02, 0.03)}))
    assert settings_of(found) == ({} if to is None else {"bucket_size": to})
    replayed = low > 0
    assert (gain_of(found).method, gain_of(found).mid_ms) == (
        ("replay", 0.02) if replayed else ("ceiling", None)
    )


MARGINS = ("nvte_fwd_layernorm_sm_margin", "nvte_bwd_layernorm_sm_margin")


def contended(folder: Path, beside_ns: int, now: tuple[int | None, int | None] = (None, None)) -> Case:
    """Eight norms of 10 us alone, eight of the given length beside all-reduces of 24 blocks. now: the
    margins that are set, None where they are not known."""
    plan = Plan()
    for _ in range(8):
        plan.slot(10_000)
    for _ in range(8):
        plan.slot(beside_ns, comm=beside_ns)
    path = write_nsys_sqlite(plan.builder.build(), folder / "x.sqlite", force=True)
    values = {knob: at for knob, at in zip(MARGINS, now, strict=True) if at is not None}
    case = replace(
        Case.of([measure_capture(path, WindowRequest())]),
        configuration=Configuration(values=values, dialect="env"),
    )
    return predicting(case, norms_alone=(0.1, 0.15, 0.16))


def test_pd110(tmp_path: Path) -> None:
    fires = result("PD110", contended(tmp_path, 30_000))
    assert fires.state == "fires", fires.reason
    assert settings_of(fires) == dict.fromkeys(MARGINS, 24)
    assert (fires.gain and fires.gain.mid_ms) == 0.15
    assert [e.value for e in fires.evidence[1:]] == ["10 µs, 30 µs", "24"]
    assert result("PD110", contended(tmp_path, 10_000)).state == "passes"
    plan = Plan()
    plan.slot(10_000)
    path = write_nsys_sqlite(plan.builder.build(), tmp_path / "y.sqlite")
    assert result("PD110", Case.of([measure_capture(path, WindowRequest())])).state == "not_applicable"


def test_pd110_threshold(tmp_path: Path) -> None:
    """Cost over windows: just at half a percent it fires, one nanosecond of cost below it passes."""
    case = contended(tmp_path, 30_000)
    windows = sum(r.ledger.total for r in case.ranks)
    for cost, state in ((-(-windows // 200), "fires"), (-(-windows // 200) - 1, "passes")):
        found = replace(case.job.contention, norm_cost=ContentionCost(low_ns=cost, mid_ns=cost, high_ns=cost))
        assert result("PD110", replace(case, job=replace(case.job, contention=found))).state == state


def test_pd110_never_lowers_a_margin(tmp_path: Path) -> None:
    some = result("PD110", contended(tmp_path, 30_000, (32, 16)))
    assert settings_of(some) == {MARGINS[1]: 24}
    assert (some.gain and some.gain.mid_ms) == 0.15
    for now in (24, 32):
        found = result("PD110", contended(tmp_path, 30_000, (now, now)))
        assert (found.state, found.advice, found.gain) == ("fires", [], None)
        assert "already set" in found.remedy
