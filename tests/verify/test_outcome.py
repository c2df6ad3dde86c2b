"""Verdicts from planted intervals, each edge worked out by hand, and what runs leave."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from perfdoc.compare.verify import rerun
from perfdoc.compare.verify.gain import follows, judge, of_pairs, of_two_runs
from perfdoc.compare.verify.record import ChangedSetting, Measured, Predicted, RunTimes
from perfdoc.compare.verify.rerun import clear_runs, run_once, steady_times
from perfdoc.compare.verify.words import record_text
from perfdoc.profiling.cpu_times import CpuTimes, cpu_times, others_frac
from perfdoc.profiling.errors import UserError
from tests.verify.planted import record, run_directory

REPLAY = Predicted(method="replay", low_ms=8.0, mid_ms=10.0, high_ms=12.0)
CEILING = Predicted(method="ceiling", low_ms=0.0, mid_ms=None, high_ms=12.0)
NOTHING = Predicted(method="none", low_ms=None, mid_ms=None, high_ms=None)


def measured(low: float, high: float) -> Measured:
    return Measured(
        method="pairs of runs",
        statistic="median",
        before_ms=100.0,
        gain_ms=(low + high) / 2,
        low_ms=low,
        high_ms=high,
        confidence=0.95,
        samples=3,
    )


@pytest.mark.parametrize(
    ("predicted", "low", "high", "verdict"),
    [
        (REPLAY, 9, 11, "confirmed"),
        (REPLAY, 7, 8, "confirmed"),  # the interval's end meets the band's
        (REPLAY, 7, 7.9, "smaller"),
        (REPLAY, 12, 14, "confirmed"),
        (REPLAY, 12.1, 14, "larger"),
        (REPLAY, -3, -1, "opposite"),
        (REPLAY, -1, 2, "no effect"),  # 8 ms are ruled out
        (REPLAY, -1, 8, "inconclusive"),  # 8 ms are not
        (REPLAY, -8, 2, "inconclusive"),  # nor is as much the other way
        (CEILING, 1, 2, "confirmed"),
        (CEILING, 11, 20, "confirmed"),
        (CEILING, 13, 20, "larger"),
        (CEILING, -1, 1.9, "no effect"),  # less than 2 % of 100 ms
        (CEILING, -1, 2, "inconclusive"),
        (NOTHING, 1, 50, "confirmed"),
        (NOTHING, -5, -1, "opposite"),
        (NOTHING, -5, 5, "inconclusive"),
    ],
)
def test_verdicts(predicted: Predicted, low: float, high: float, verdict: str) -> None:
    found = judge(predicted, measured(low, high))
    assert found.verdict == verdict
    assert found.reason


def test_a_verdict_has_to_follow_from_its_figures() -> None:
    """8.5 to 9.5 ms of 8 to 12 predicted. Runs of 100 and 90 ms do not give 9 ms."""
    found = record()
    assert follows(found)
    assert follows(replace(found, verdict="inconclusive"))  # another cause, or stopped
    assert not follows(replace(found, verdict="larger"))
    assert found.measured is not None
    nothing = replace(found.measured, low_ms=-1.0, gain_ms=0.0, high_ms=1.0)
    assert not follows(replace(found, measured=nothing))
    assert not follows(replace(found, measured=replace(found.measured, low_ms=9.2)))
    assert not follows(replace(found, measured=None))
    runs = [run(i, arm, ms) for i in range(3) for arm, ms in (("before", 100.0), ("after", 90.0 + i / 10))]
    again = of_pairs(runs, "median")
    assert follows(replace(found, measured=again, runs=runs))
    assert not follows(replace(found, runs=runs))
    assert not follows(replace(found, measured=again, runs=runs[:2]))


def run(pair: int, arm: str, ms: float) -> RunTimes:
    return RunTimes(
        arm=arm,  # type: ignore[arg-type]
        pair=pair,
        directory="x",
        utc="",
        steps=20,
        warmup_steps=1,
        median_ms=ms,
        mean_ms=2 * ms,
        quickest_ms=ms / 2,
        others_cpu_frac=None,
    )


def test_the_interval_of_pairs() -> None:
    # Ratios of 0.9, 0.9 e^0.01 and 0.9 e^-0.01: t(0.975, 2) / sqrt(3) = 4.3027 / 1.732 = 2.484 %.
    after = (90, 90 * math.exp(0.01), 90 * math.exp(-0.01))
    runs = [run(i, arm, ms) for i, new in enumerate(after) for arm, ms in (("after", new), ("before", 100))]
    runs.append(run(3, "before", 500))  # whose pair is missing
    found = of_pairs(runs, "median")
    assert found is not None
    assert (found.samples, found.before_ms, found.gain_ms) == (3, 100.0, pytest.approx(10))
    assert found.low_ms == pytest.approx(100 - 90 * math.exp(0.02484), abs=1e-3)
    assert found.high_ms == pytest.approx(100 - 90 * math.exp(-0.02484), abs=1e-3)
    by_mean = of_pairs(runs, "mean")
    assert by_mean is not None
    assert by_mean.gain_ms == pytest.approx(20)


def test_pairs_that_agree_by_chance_are_not_believed_further_than_the_gate_would() -> None:
    # No scatter at all: sqrt(2) * 0.2 % stands in, so half the width is 12.706 * 0.2 % = 2.541 % of 95 ms.
    runs = [run(i, arm, ms) for i in range(2) for arm, ms in (("before", 100.0), ("after", 95.0))]
    found = of_pairs(runs, "median")
    assert found is not None
    assert found.high_ms - found.gain_ms == pytest.approx(95 * (1 - math.exp(-0.02541)), abs=1e-3)
    assert of_pairs(runs[:3], "median") is None


def test_one_run_on_either_side_is_never_surer_than_five_percent() -> None:
    narrow = of_two_runs(100.0, 90.0, deviation_ms=(0.1, 0.1), steps=(100, 100))
    assert (narrow.low_ms, narrow.high_ms) == (5.0, 15.0)
    # s = 30 over 25 steps and nothing on the other side: t(0.975, 423) = 1.9656 times 30 / 5.
    wide = of_two_runs(100.0, 90.0, deviation_ms=(30.0, 0.0), steps=(25, 400))
    assert wide.high_ms - 10 == pytest.approx(1.9656 * 6, abs=1e-3)
    single = of_two_runs(100.0, 90.0, deviation_ms=(0.0, 0.0), steps=(1, 400))
    assert math.isfinite(single.low_ms)
    assert single.low_ms < 0 < single.high_ms


def test_what_others_took_of_the_machine() -> None:
    # 2 CPUs for 10 s; 14 s busy, 10 of them ours.
    began = CpuTimes(total_s=100.0, busy_s=50.0, own_s=1.0)
    ended = CpuTimes(total_s=120.0, busy_s=64.0, own_s=11.0)
    assert others_frac(began, ended) == pytest.approx(0.2)
    assert others_frac(began, None) is None
    assert others_frac(began, began) is None
    now = cpu_times()
    assert now is None or now.total_s >= now.busy_s > 0


def test_only_own_runs_are_removed(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    runs = tmp_path / "runs"
    for folder in (elsewhere, runs / "01-before", runs / "12-after", runs / "1-before", runs / "01-mine"):
        folder.mkdir(parents=True)
        (folder / "kept").write_text("x")
    (runs / "02-after").symlink_to(elsewhere)
    (runs / "03-after").write_text("a file")
    clear_runs(runs)
    assert sorted(p.name for p in runs.iterdir()) == ["01-mine", "02-after", "03-after", "1-before"]
    assert (elsewhere / "kept").exists()


def test_the_figures_of_a_run(tmp_path: Path) -> None:
    # 30 steps of 99, 100 and 101 ms in turn: the median and the mean are 100, the quickest seven 99.
    found = steady_times(run_directory(tmp_path / "run", 100))
    assert found.median_ms == found.mean_ms == pytest.approx(100)
    assert found.quickest_ms == pytest.approx(99)
    assert found.count + found.warmup_steps == 30


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        ("confirmed", "keep "),
        ("smaller", "keep "),
        ("opposite", "take it back: "),
        ("no effect", "leave the setting"),
        ("inconclusive", "`perfdoc verify RUN --apply PD203 --repeats 6`"),
    ],
)
def test_the_last_line_is_what_to_do_next(verdict: str, said: str) -> None:
    last = record_text(record(verdict)).splitlines()[-1]
    assert last.startswith("Next: ")
    assert said in last


def test_inconclusive_runs_are_measured_with_twice_as_many_pairs() -> None:
    """10 pairs ask for 20, 30 for no more than the 50 that are taken, and 50 for none."""
    found = record("inconclusive")
    assert found.measured is not None
    for pairs, said in ((10, "--repeats 20`"), (30, "--repeats 50`"), (50, "50 pairs of runs do not tell")):
        of_pairs_ = replace(found, measured=replace(found.measured, samples=pairs))
        assert said in record_text(of_pairs_, "'my runs/1'").splitlines()[-1]
    assert "`perfdoc verify 'my runs/1' --apply" in record_text(found, "'my runs/1'").splitlines()[-1]


def test_a_job_of_somebody_else_is_not_run_again_from_here() -> None:
    """Two captures, nothing known of their machine; with a run directory, whose machine is, five pairs."""
    found = record("inconclusive")
    assert found.measured is not None
    by_hand = replace(found, kind="two runs", measured=replace(found.measured, method="two runs", samples=9))
    assert "`perfdoc verify RUN --apply PD203 --repeats 5`" in record_text(by_hand)
    last = record_text(replace(by_hand, facts={})).splitlines()[-1]
    assert "`perfdoc verify BEFORE AFTER --rule PD203`" in last
    assert "--apply" not in last


def test_a_value_that_is_not_known_is_not_said_to_be_unset() -> None:
    changed = [
        ChangedSetting(knob="a", before=None, after="2"),
        ChangedSetting(knob="b", before="1", after=None),
    ]
    back = record_text(replace(record("opposite"), settings=changed)).splitlines()[-1]
    kept = record_text(replace(record(), settings=changed)).splitlines()[-1]
    assert back == "Next: take it back: a as before; b=1"
    assert kept == "Next: keep a=2; b as after"


@pytest.mark.parametrize(
    ("verdict", "said"), [("confirmed", "keep the change"), ("opposite", "take the change back")]
)
def test_a_change_without_named_settings_is_called_the_change(verdict: str, said: str) -> None:
    last = record_text(replace(record(verdict), settings=[])).splitlines()[-1]
    assert last == f"Next: {said}"


def test_what_a_plan_lacks_is_the_users_and_a_mistake_in_starting_it_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`perfdoc tune` counts a UserError as a trial that fails: no mistake of perfdoc's is one."""

    def wrong(*_: object, **__: object) -> None:
        raise ValueError("parallel.tensor_model_parallel_size: is 3")

    monkeypatch.setattr(rerun, "_planned", wrong)
    with pytest.raises(UserError, match=r"the run 01-before: parallel\.tensor_model_parallel_size: is 3"):
        run_once(tmp_path / "a.yaml", tmp_path / "01-before", 2)
    monkeypatch.setattr(rerun, "_planned", lambda *_: SimpleNamespace(command=[]))
    monkeypatch.setattr(rerun, "train", wrong)
    with pytest.raises(ValueError, match="is 3") as raised:
        run_once(tmp_path / "a.yaml", tmp_path / "01-before", 2)
    assert not isinstance(raised.value, UserError)
