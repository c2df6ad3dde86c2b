"""PD101 and PD110: exposed communication, and norms that fight it."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.rules.case import Case
from perfdoc.simulator.nsys_sqlite import write_nsys_sqlite
from tests.analyzers.test_contention import Plan
from tests.rules.cases import case_of, predicting, result, settings_of, step_with_communication

OFF = {"overlap_grad_reduce": False, "overlap_param_gather": False, "use_distributed_optimizer": True}


def test_pd101_threshold(tmp_path: Path) -> None:
    fires = result("PD101", case_of(tmp_path, step_with_communication(50)))
    assert fires.state == "fires", fires.reason
    # 50 us of each step of 1 ms are exposed, of an all-reduce of 150 us: two thirds are hidden.
    assert [e.value for e in fires.evidence] == ["5.0%", "0.05 ms", "67%"]
    assert result("PD101", case_of(tmp_path, step_with_communication(49))).state == "passes"


def test_pd101_without_dp_communication(tmp_path: Path) -> None:
    assert result("PD101", case_of(tmp_path, step_with_communication(0, name=""))).state in (
        "not_applicable",
        "skipped",
    )
    unknown = result("PD101", case_of(tmp_path, step_with_communication(80, name="")))
    assert (unknown.state, "unknown dimension" in unknown.reason) == ("skipped", True)


def test_pd101_advises_only_what_is_known(tmp_path: Path) -> None:
    builder = step_with_communication(100)
    nothing = result("PD101", case_of(tmp_path, builder))
    assert (nothing.advice, "--config" in nothing.remedy) == ([], True)
    off = predicting(case_of(tmp_path, builder, settings=OFF), overlapped_dp=(0.05, 0.08, 0.1))
    found = result("PD101", off)
    assert settings_of(found) == {"overlap_grad_reduce": True, "overlap_param_gather": True}
    assert found.gain is not None
    assert (found.gain.method, found.gain.mid_ms) == ("replay", 0.08)
    on = result("PD101", case_of(tmp_path, builder, settings={"overlap_grad_reduce": True}))
    assert (on.advice, "No setting that is known" in on.remedy) == ([], True)


@pytest.mark.parametrize(
    ("key", "low", "to"),
    [("buckets_x4", 0.01, 4000), ("buckets_x0.25", 0.01, 250), ("buckets_x4", 0.0, None)],
)
def test_pd101_bucket_size_follows_the_replay(tmp_path: Path, key: str, low: float, to: int | None) -> None:
    settings = {"bucket_size": 1000, "overlap_grad_reduce": True}
    case = case_of(tmp_path, step_with_communication(100), settings=settings)
    found = result("PD101", predicting(case, **{key: (low, 0.02, 0.03)}))
    assert settings_of(found) == ({} if to is None else {"bucket_size": to})


def contended(folder: Path, beside_ns: int) -> Case:
    """Eight norms of 10 us alone, eight of the given length beside all-reduces of 24 blocks."""
    plan = Plan()
    for _ in range(8):
        plan.slot(10_000)
    for _ in range(8):
        plan.slot(beside_ns, comm=beside_ns)
    path = write_nsys_sqlite(plan.builder.build(), folder / "x.sqlite", force=True)
    return Case.of([measure_capture(path, WindowRequest())])


def test_pd110(tmp_path: Path) -> None:
    fires = result("PD110", contended(tmp_path, 30_000))
    assert fires.state == "fires", fires.reason
    assert result("PD110", contended(tmp_path, 10_000)).state == "passes"
    plan = Plan()
    plan.slot(10_000)
    path = write_nsys_sqlite(plan.builder.build(), tmp_path / "y.sqlite")
    assert result("PD110", Case.of([measure_capture(path, WindowRequest())])).state == "not_applicable"
