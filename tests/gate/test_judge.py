"""All tests of a check share the 1 % of false alarms; sessions, drift and what promotions cost."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from perfdoc.analyzers.steps.slower import compare, student_t
from perfdoc.compare.baseline_files import ANCHOR_RUNS, MAX_RUNS, with_runs
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.check import judge
from perfdoc.compare.gate.measures import DRIFT, PARTS, Compared, Family
from perfdoc.compare.gate.sessions import note_one_session, number_sessions, scatter_of_sessions
from tests.amount import some, tries
from tests.gate.commands import MS, MakeRun, gate, record
from tests.gate.scatter import EXCHANGEABLE
from tests.gate.test_changed_baselines import run, steady_of

FIGURES = ("median_step_ns", "mean_step_ns", "p95_step_ns", "p99_step_ns", "late_ratio", "whole_mean_step_ns")


def whole(number: int, figures: Sequence[float], **more: object) -> RunFigures:
    """A run that says every figure, in seconds."""
    values = {n: v if n == "late_ratio" else round(v * 1e9) for n, v in zip(FIGURES, figures, strict=True)}
    return msgspec.structs.replace(run(number), **values, left_out_steps=1, **more)


def equal(count: int, first: int = 0, **more: object) -> list[RunFigures]:
    return [whole(first + i, [1.0] * 6, **more) for i in range(count)]


def family_of(old: list[RunFigures], new: list[RunFigures], with_drift: bool) -> Family:
    return Family.of(old, new, 0.02, with_drift=with_drift)


def test_the_chances_of_all_tests_sum_to_1_per_cent() -> None:
    logged = {"logged_ns": {"data": 1}}
    for old, new, drift, names in (
        (equal(5), equal(3, 10), True, 6),
        (equal(8), equal(3, 10), True, 7),
        (equal(8), equal(3, 10), False, 6),
        (equal(8, **logged), equal(3, 10, **logged), True, 8),
        (equal(2), equal(3, 10), True, 2),  # low history: step and mean
        ([run(i) for i in range(5)], [run(10)], True, 3),  # too few steps for percentiles and thirds
    ):
        chance = family_of(old, new, drift).chance
        assert len(chance) == names
        assert sum(chance.values()) == pytest.approx(0.01)
    full = family_of(equal(8, **logged), equal(3, 10, **logged), True).chance
    # 3 + 3 + 1 + 1 + 1 + 1 + 1 + 2 shares.
    assert (full["step_time"], full["late_part"]) == (pytest.approx(0.03 / 13), pytest.approx(0.01 / 13))
    assert (full[PARTS], full[DRIFT]) == (pytest.approx(0.01 / 13), pytest.approx(0.02 / 13))


def test_the_limit_is_that_of_the_share() -> None:
    # s = 1 % of 5 runs against 3 without scatter; ten shares: the step has 3, the 95th percentile 1.
    steps = [1 + 0.01 * x for x in (-1.2649, -0.6325, 0, 0.6325, 1.2649)]
    old = [whole(i, [s] * 6) for i, s in enumerate(steps)]
    found = {one.measure.name: one.result for one in family_of(old, equal(3, 9), False).compare()}
    for name, share in (("step_time", 3), ("mean_step", 3), ("p95_step", 1)):
        noise = student_t(4, 1 - 0.001 * share) * 0.01 * math.sqrt(8 / 15)
        assert found[name].noise_frac == pytest.approx(noise, rel=1e-3)


@pytest.mark.parametrize("design", ["5 and 3", "10 and 5", "5 pairs"])
@pytest.mark.parametrize("shape", ["skewed (log-normal)", "outliers (half Cauchy)", "normal, 2 %"])
def test_false_alarms_of_all_tests_together(shape: str, design: str) -> None:
    """Six figures that have nothing to do with one another: so the tests have the most chances."""
    trials = tries(30, 300)
    random = np.random.default_rng(41)
    old, new = {"5 and 3": (5, 3), "10 and 5": (10, 5), "5 pairs": (5, 5)}[design]
    if shape in EXCHANGEABLE:
        draws = np.stack([EXCHANGEABLE[shape](random, trials, old + new) for _ in range(6)], axis=-1)
    else:
        draws = 1 + 0.02 * random.standard_normal((trials, old + new, 6))
    fails = 0
    for rows in draws.tolist():
        runs = [whole(i, figures) for i, figures in enumerate(rows)]
        checks = judge(runs[:old], runs[old:], in_pairs=design == "5 pairs").checks
        fails += any(c.state == "fail" for c in checks)
    assert fails / trials <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials)


def begun(times: Sequence[str | None]) -> list[RunFigures]:
    return [msgspec.structs.replace(run(i), utc=utc) for i, utc in enumerate(times)]


@pytest.mark.parametrize(
    ("times", "noted"),
    [
        (("2026-11-21T01:00:00Z", "2026-11-21T01:30:00Z", "2026-11-21T02:00:00Z"), True),
        (("2026-11-21T01:00:00Z", "2026-11-21T01:30:00Z", "2026-11-21T02:00:01Z"), False),
        (("2026-11-21T01:00:00Z", "2026-11-21T03:00:00+02:00"), True),  # one moment, two zones
        (("2026-11-21T01:00:00Z", "2026-11-21T01:00:00"), True),  # without a zone: UTC
        (("2026-11-21T01:00:00Z", None), False),  # unknown is not said to be near
        (("2026-11-21T01:00:00Z", "yesterday"), False),
        (("2026-11-21T01:00:00Z",), False),
    ],
)
def test_within_an_hour(times: tuple[str | None, ...], noted: bool) -> None:
    assert bool(note_one_session(begun(times))) is noted


def test_a_session_ends_where_no_run_began_for_an_hour() -> None:
    clock = ["05:00", "01:00", "01:59", "02:58", "03:58:01"]
    assert number_sessions(begun([f"2026-11-21T{c}Z" for c in clock])) == [2, 0, 0, 0, 1]
    assert number_sessions(begun(["2026-11-21T01:00:00Z", None])) == []


DAYS = [f"2026-11-{day:02}T09:00:00Z" for day in range(1, 6)]
HOUR = [f"2026-11-21T09:0{i}:00Z" for i in range(3)]


def test_sessions_by_hand() -> None:
    # Days: mean 1000, s^2 = 1000 / 4 = 250. New ones: s^2 = 9. 250 - 9 = 241 is the day's.
    days, hour = [980, 990, 1000, 1010, 1020], [1030, 1033, 1036]
    runs_alone = 1 / 3 + 1 / 5
    found = scatter_of_sessions(begun(DAYS), days, begun(HOUR), hour)
    assert found == (pytest.approx(math.sqrt((241 + 9 / 3 + 250 / 5) / runs_alone)), 4)
    # The same runs, as two of one day each but the last: 3 days of means 985, 1005 and 1020, and m = 5/3.
    old = [DAYS[0], DAYS[0], DAYS[1], DAYS[1], DAYS[2]]
    between = np.var([985, 1005, 1020], ddof=1)
    variance = between - 9 * 3 / 5 + 9 / 3 + between / 3
    found = scatter_of_sessions(begun(old), days, begun(HOUR), hour)
    assert found == (pytest.approx(math.sqrt(variance / runs_alone)), 2)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (DAYS[:1] * 5, HOUR),  # one session
        ([*DAYS[:1] * 4, DAYS[1]], HOUR),  # two
        ([None, *DAYS[1:]], HOUR),
        (DAYS, [None, *HOUR[1:]]),
        ([*DAYS[:4], "2026-11-21T08:30:00Z"], HOUR),  # one in common
    ],
)
def test_nothing_is_made_of_what_is_not_known(old: Sequence[str | None], new: Sequence[str | None]) -> None:
    assert scatter_of_sessions(begun(old), [99, 100, 101, 100, 100], begun(new), [100] * 3) is None


@pytest.mark.parametrize("days", some([5, 10], [5]))
@pytest.mark.parametrize(("of_days", "within"), [(0.01, 0.002), (0.01, 0.005), (0.01, 0.01), (0.0, 0.01)])
def test_false_alarms_where_days_differ(of_days: float, within: float, days: int) -> None:
    """One baseline run a day, three new runs of one day; claimed 1 %."""
    trials = tries(800, 3000)
    random = np.random.default_rng(31)
    old = begun([f"2026-11-{day:02}T09:00:00Z" for day in range(1, days + 1)])
    new = begun(HOUR)
    levels = 1 + of_days * random.standard_normal((trials, days + 1))
    levels = np.repeat(levels, [1] * days + [3], axis=1) + within * random.standard_normal((trials, days + 3))

    def fails(loss: float) -> float:
        rows = levels * np.where(np.arange(days + 3) < days, 1, 1 + loss)
        found = 0
        for row in rows.tolist():
            before, after = row[:days], row[days:]
            sessions = scatter_of_sessions(old, before, new, after)
            found += compare(before, after, sessions=sessions).verdict == "fail"
        return found / trials

    assert fails(0.0) <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / trials)
    assert fails(0.05) >= {5: 0.5, 10: 0.75}[days]


def test_days_through_the_command(tmp_path: Path, make_run: MakeRun) -> None:
    times = (98, 99, 100, 101, 102)
    days = [make_run(f"d{i}", ms, utc=utc) for i, (ms, utc) in enumerate(zip(times, DAYS, strict=True))]
    assert gate(tmp_path, "record", *days)[0] == 0
    # The step has 3 of the 8 shares of 1 %: t(0.99625, 4) = 4.99. 6 % more: beyond 4.99 * 1.58 % * sqrt(8/15)
    # = 5.8 %, within the 4.99 * 1.58 % * sqrt(6/5) = 8.7 % of a day that all three share.
    hour = [make_run(f"n{i}", 106 + i / 100, utc=utc) for i, utc in enumerate(HOUR)]
    code, out, _ = gate(tmp_path, "check", *hour)
    assert (code, "the limit is 8.7 %" in out) == (3, True), out
    assert "other hours too, or old ones in turn" in out
    # What is no loss by that limit joins the baseline too.
    later = [make_run(f"l{i}", 106 + i / 100, utc=f"2026-11-25T09:0{i}:00Z") for i in range(3)]
    others = [make_run(f"o{i}", 106 + i / 100, utc=f"2026-11-2{i}T20:00:00Z") for i in range(3)]
    assert gate(tmp_path, "check", *others)[0] == 1
    assert gate(tmp_path, "record", *others)[0] == 2
    code, _, err = gate(tmp_path, "record", *later)
    assert (code, "8 runs, 3 of them new" in err) == (0, True), err


def drift(old: Sequence[float], new: Sequence[float]) -> Compared | None:
    """With 1 % of the chance: by the step alone."""
    one, two = ([run(i, **steady_of(round(v))) for i, v in enumerate(side)] for side in (old, new))
    family = family_of(one, two, True)
    if DRIFT in family.chance:
        family.chance[DRIFT] = 0.01
    return family.compare_with_first()


def test_drift_by_hand() -> None:
    # First five of 1000; all eight have mean 1015 and squares of deviations 5 * 225 + 3 * 625 = 3000.
    found = drift([1e6] * 5 + [1.04e6] * 3, [1.06e6] * 3)
    assert found is not None
    assert found.result.slower_frac == pytest.approx(0.06)
    limit = student_t(7, 0.99) * math.sqrt(3000 / 7) / 1000 * math.sqrt(1 / 3 + 1 / 5)
    assert found.result.limit_frac == pytest.approx(limit, rel=1e-6)
    assert found.fails
    assert drift([1000] * 7, [2000]) is None  # three later runs are the least
    edge = [drift([100_000] * 8, [ns]) for ns in (102_000, 102_010)]
    assert [one is not None and one.fails for one in edge] == [False, True]


def test_the_first_runs_of_a_level_stay() -> None:
    baseline = with_runs(None, {"x": 1}, [run(0)])
    for i in range(1, 40):
        baseline = with_runs(baseline, {"x": 1}, [run(i)])
    kept = [r.source for r in baseline.runs]
    assert len(kept) == MAX_RUNS
    assert kept[:ANCHOR_RUNS] == [f"r{i}" for i in range(ANCHOR_RUNS)]
    assert kept[ANCHOR_RUNS:] == [f"r{i}" for i in range(25, 40)]
    assert len(with_runs(None, {"x": 1}, [run(i) for i in range(30)]).runs) == MAX_RUNS


def test_the_commands_stop_a_drift(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = record(tmp_path, make_run, (100, 100.1, 99.9, 100, 100))
    for i, ms in enumerate((100.9, 101.4, 101.8)):
        code, _, err = gate(tmp_path, "record", make_run(f"more{i}", ms))
        assert code == 0, err
    # Their mean is 100.51: 102.4 is 1.9 % above it, and 2.4 % above the first five. Their scatter is 0.77 %.
    # Drift has 2 of the 10 shares of 1 %: t(0.998, 7) = 4.207, and 4.207 * 0.77 % * sqrt(1/3 + 1/5) = 2.4 %.
    new = [make_run(f"new{i}", 102.4) for i in range(3)]
    code, out, _ = gate(tmp_path, "check", *new, "--json", "gate.json")
    found = json.loads((tmp_path / "gate.json").read_text())
    states = {c["name"]: c["state"] for c in found["checks"]}
    passed = dict.fromkeys(("step_time", "mean_step", "late_part"), "pass")
    assert (code, states) == (1, passed | {"drift": "fail"}), out
    assert found["summary"].startswith(
        "The mean step is 2.4 % slower than in the first 5 runs of this level (from 2026-11-21T00:00:00Z"
    )
    assert gate(tmp_path, "check", *new, "--drift", "warn")[0] == 0
    assert "drift" not in gate(tmp_path, "check", *new, "--drift", "off")[1]
    before = baseline.read_bytes()
    code, _, err = gate(tmp_path, "record", *new)
    assert (code, err.count("\n")) == (2, 1)
    assert "small losses that passed one by one" in err
    assert baseline.read_bytes() == before
    code, _, err = gate(tmp_path, "promote", *new, "--reason", "needed")
    assert code == 0, err
    assert json.loads(baseline.read_text())["runs"][0]["median_step_ns"] == round(102.4 * MS)
