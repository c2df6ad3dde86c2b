"""Configurations that are run: in turn, with failures as rows, going on where it stopped."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfdoc.compare.verify.rerun import StoppedError
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.writing import Way, way_and_words
from perfdoc.profiling.errors import UserError
from perfdoc.tune.command import FailedRunError, NoStepTimesError, own_command, settings_words
from perfdoc.tune.ranking import tuning_of
from perfdoc.tune.result import Change, Row, Tuning, to_take
from perfdoc.tune.run import axes_for
from perfdoc.tune.search import search
from perfdoc.tune.verification import STATE, Plan, State, measure, state_of, with_trials
from perfdoc.tune.words import first_screen, render_text, sections_of
from tests.tune.hand_job import job


def tuned() -> Tuning:
    one = job()
    axes = axes_for(one, [], {})
    return tuning_of(one, axes, search(one, axes), top=5, inputs=[])


class Planted:
    """Takes what is planted for a place; what is planted as words fails with them."""

    words = "planted"

    def __init__(self, times: dict[int, float | str], stop_after: int = 10**6) -> None:
        self.times, self.stop_after = times, stop_after
        self.made: list[int] = []

    def run(self, row: Row, path: Path) -> float:
        if len(self.made) == self.stop_after:
            raise StoppedError
        self.made.append(row.place)
        time = self.times[row.place]
        if isinstance(time, str):
            raise FailedRunError(time)
        return time


def plan_of(found: Tuning, folder: Path, **changed: Any) -> Plan:
    return replace(Plan(rows=found.rows[:3], rounds=2, folder=folder, how="planted"), **changed)


def row_with(changes: list[Change]) -> Any:
    return SimpleNamespace(changes=changes)


def quiet(_: str) -> None:
    pass


def test_rounds_are_interleaved_and_turned_around(tmp_path: Path) -> None:
    plan = plan_of(tuned(), tmp_path)
    runner = Planted({0: 10.0, 1: 8.0, 2: 9.0})
    state, complete = measure(plan, state_of(plan), runner, quiet)
    assert complete
    assert runner.made == [0, 1, 2, 2, 1, 0]
    assert len(state.runs) == 6


def test_rows_are_ranked_by_what_was_measured(tmp_path: Path) -> None:
    found = tuned()
    plan = plan_of(found, tmp_path)
    state, _ = measure(plan, state_of(plan), Planted({0: 10.0, 1: 9.0, 2: 8.0}), quiet)
    after = with_trials(found, plan, state, complete=True, words="planted")
    assert [r.changes for r in after.rows[:3]] == [found.rows[i].changes for i in (0, 2, 1)]
    assert [r.place for r in after.rows] == list(range(len(found.rows)))
    first, was = after.rows[1].measured, found.rows[2]
    assert first is not None
    # Predicted for this machine: its own unchanged step, shorter by the predicted share.
    assert first.predicted_ms == pytest.approx(10 * (1 - was.gain_frac))
    assert first.error_frac == pytest.approx(10 * (1 - was.gain_frac) / 8 - 1)
    assert after.verdict.startswith("8 ms a step instead of 10")
    made = after.measuring
    assert made is not None
    errors = [abs(10 * (1 - found.rows[i].gain_frac) / ms - 1) for i, ms in ((1, 9.0), (2, 8.0))]
    assert made.mean_error_frac == pytest.approx(sum(errors) / 2)
    assert "measured" in [s.key for s in sections_of(after)]


@pytest.mark.parametrize(
    ("times", "taken"),
    [
        ({0: 10.0, 1: 11.0, 2: 12.0}, None),  # both are slower
        ({0: 10.0, 1: 10.0, 2: 12.0}, None),  # as quick is no gain
        ({0: 10.0, 1: "out of memory", 2: 12.0}, None),
        ({0: 10.0, 1: "out of memory", 2: "crashed"}, None),
        ({0: 10.0, 1: "out of memory", 2: 9.0}, 2),
        ({0: 10.0, 1: 11.0, 2: 9.0}, 2),
        ({0: 10.0, 1: 8.0, 2: 9.0}, 1),
    ],
)
def test_what_was_run_is_advised_by_what_was_measured(
    tmp_path: Path, times: dict[int, float | str], taken: int | None
) -> None:
    """Every planted row is predicted to gain; rows beyond the second were not run."""
    found = tuned()
    assert all(r.gain_ms.mid > 0 for r in found.rows[1:3])
    plan = plan_of(found, tmp_path)
    state, _ = measure(plan, state_of(plan), Planted(times), quiet)
    after = with_trials(found, plan, state, complete=True, words="planted")
    best, screen, full = to_take(after.rows), first_screen(after, width=80), render_text(after, width=80)
    if taken is None:
        assert best is None
        assert (
            after.verdict == "Nothing that was run beats the current configuration: 10 ms a step, measured."
        )
        assert "Next: keep it" in screen
        assert "To set" not in full
    else:
        assert best is not None
        assert best.changes == found.rows[taken].changes
        assert after.verdict.startswith(f"{times[taken]:g} ms a step instead of 10")
        assert "Next: set for #1 " in screen
        assert "To set for #1" in full


class InTurn(Planted):
    """Takes what is planted for a place, run after run."""

    def __init__(self, times: dict[int, list[float]]) -> None:
        super().__init__({})
        self.runs = {place: iter(each) for place, each in times.items()}

    def run(self, row: Row, path: Path) -> float:
        return next(self.runs[row.place])


@pytest.mark.parametrize(
    ("times", "taken", "said"),
    [
        # Of medians 9.5 and 10 ms: some runs of it are slower than some unchanged ones.
        ({0: [10.2, 9.8], 1: [9.9, 9.1], 2: [12.0, 12.0]}, None, "surely"),
        ({0: [10.2, 9.8], 1: [9.7, 9.3], 2: [12.0, 12.0]}, 1, "9.5 ms a step instead of 10"),
        ({0: [10.2, 9.8], 1: [9.7, 9.3], 2: [9.6, 9.5]}, 1, "overlap those of #2"),
        # The lower median scatters into the unchanged runs; the other one does not.
        ({0: [10.2, 9.8], 1: [9.9, 8.1], 2: [9.6, 9.5]}, 2, "9.55 ms a step instead of 10"),
    ],
)
def test_runs_that_overlap_are_not_faster(
    tmp_path: Path, times: dict[int, list[float]], taken: int | None, said: str
) -> None:
    found = tuned()
    plan = plan_of(found, tmp_path)
    state, _ = measure(plan, state_of(plan), InTurn(times), quiet)
    after = with_trials(found, plan, state, complete=True, words="planted")
    best, screen = to_take(after.rows), first_screen(after, width=80)
    assert (best and best.changes) == (taken and found.rows[taken].changes)
    assert said in after.verdict
    assert max(map(len, screen.splitlines())) <= 80
    assert "9.8 to 10.2 ms" in screen


@pytest.mark.parametrize(("rounds", "said"), [(1, "67 %"), (2, "27 %"), (6, "")])
def test_what_chance_alone_shows_as_often_is_said(tmp_path: Path, rounds: int, said: str) -> None:
    """Of two equal configurations one is quicker than the unchanged one by its only run in 2 of 3 orders; by
    both of its two in 1/6 + 1/6 of them, less the 1/15 where both are."""
    found = tuned()
    plan = plan_of(found, tmp_path, rounds=rounds)
    state, _ = measure(plan, state_of(plan), Planted({0: 10.0, 1: 8.0, 2: 9.0}), quiet)
    verdict = with_trials(found, plan, state, complete=True, words="planted").verdict
    assert said in verdict
    assert ("of cases" in verdict) == bool(said)


def test_the_first_screen_shows_what_was_measured(tmp_path: Path) -> None:
    """Twice as slow as unchanged where a gain was predicted: no band holds it."""
    found = tuned()
    plan = plan_of(found, tmp_path)
    state, _ = measure(plan, state_of(plan), Planted({0: 10.0, 1: 20.0, 2: 21.0}), quiet)
    after = with_trials(found, plan, state, complete=False, words="planted")
    assert after.measuring is not None
    off = after.measuring.mean_error_frac
    assert off is not None
    lines = first_screen(after, width=80).splitlines()
    said = " ".join(" ".join(lines).split())
    assert f"off by {100 * off:.1f} % in the mean; 0 of 2 inside their band; stopped before" in said
    assert "Why: " not in said  # the model's error on what it was made from
    steps = [line.split(" ms")[1].strip() for line in lines if line.split()[:1] in (["now"], ["1"], ["2"])]
    assert steps == ["10", "20", "21"]  # the measured ones beside the predicted
    assert "more row" not in said
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80


def test_what_is_to_be_measured_is_said_until_it_was(tmp_path: Path) -> None:
    found = tuned()
    plan = plan_of(found, tmp_path)
    times: dict[int, float | str] = {0: 10.0, 1: 8.0, 2: 9.0}
    state, _ = measure(plan, state_of(plan), Planted(times, stop_after=1), quiet)
    alone = with_trials(found, plan, state, complete=False, words="planted")
    assert alone == found  # the unchanged one alone: nothing to compare with
    assert "perfdoc diff" in first_screen(alone)
    state, _ = measure(plan, state, Planted(times, stop_after=1), quiet)
    after = with_trials(found, plan, state, complete=False, words="planted")
    assert "perfdoc diff" not in first_screen(after)
    assert f"{len(found.rows) - 2} more row" in first_screen(after)


def test_a_configuration_that_fails_is_a_row_and_the_rest_goes_on(tmp_path: Path) -> None:
    found = tuned()
    plan = plan_of(found, tmp_path)
    runner = Planted({0: 10.0, 1: "out of memory", 2: 9.0})
    state, complete = measure(plan, state_of(plan), runner, quiet)
    assert complete
    assert runner.made == [0, 1, 2, 2, 0]  # it is not run again
    after = with_trials(found, plan, state, complete=True, words="planted")
    failed = next(r for r in after.rows if r.changes == found.rows[1].changes)
    assert failed.measured is not None
    assert (failed.measured.failure, failed.measured.step_ms) == ("out of memory", None)
    assert after.rows[1].changes == found.rows[2].changes


@pytest.mark.parametrize("stop_after", [0, 2])
def test_it_goes_on_where_it_stopped(tmp_path: Path, stop_after: int) -> None:
    plan = plan_of(tuned(), tmp_path)
    first = Planted({0: 10.0, 1: 8.0, 2: 9.0}, stop_after=stop_after)
    _, complete = measure(plan, state_of(plan), first, quiet)
    assert not complete
    assert (tmp_path / STATE).is_file()  # by which the command knows that it may go on
    second = Planted({0: 10.0, 1: 8.0, 2: 9.0})
    state, complete = measure(plan, state_of(plan), second, quiet)
    assert complete
    order = [0, 1, 2, 2, 1, 0]
    assert (first.made, second.made) == (order[:stop_after], order[stop_after:])
    assert len(state.runs) == 6
    assert state_of(replace(plan, rounds=5)).runs == state.runs  # more rounds go on too


def test_runs_of_another_plan_are_not_taken(tmp_path: Path) -> None:
    plan = plan_of(tuned(), tmp_path)
    measure(plan, state_of(plan), Planted({0: 1.0, 1: 1.0, 2: 1.0}), quiet)
    other = replace(plan, how="another command")
    with pytest.raises(UserError, match="other configurations"):
        state_of(other)
    assert state_of(other, force=True) == State(plan=other.digest)
    (tmp_path / STATE).write_text("{}")
    with pytest.raises(ValueError, match="trials"):
        state_of(plan)


def test_an_unchanged_configuration_that_fails_ends_it(tmp_path: Path) -> None:
    plan = plan_of(tuned(), tmp_path)
    with pytest.raises(UserError, match="no such file"):
        measure(plan, state_of(plan), Planted({0: "no such file"}), quiet)


def script(tmp_path: Path, body: str) -> str:
    path = tmp_path / "train.py"
    path.write_text(body, encoding="utf-8")
    return f"{sys.executable} {path} {{settings}}"


def change(written: str, way: Way = "option") -> Change:
    return Change(knob="micro_batch_size", before=1, after=2, written=written, way=way)


def test_a_command_is_given_the_settings_and_its_times_are_read(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        "import sys\n"
        "for ms in (900, 20, 20, 30, 30, 40):\n"
        "    print('took', ms if '--micro-batch-size' in sys.argv else 2 * ms, 'ms')\n",
    )
    own = own_command(command, r"took ([0-9.]+) ms")
    # The first third is warm-up: the median of 20, 30, 30 and 40.
    assert own.run(row_with([change("--micro-batch-size 2")]), tmp_path / "a") == 30
    assert own.run(row_with([]), tmp_path / "b") == 60
    assert own_command(command, r"took (?P<s>[0-9.]+) ms").run(row_with([]), tmp_path / "c") == 60_000


def test_known_logs_need_no_pattern(tmp_path: Path) -> None:
    line = " iteration {0}/ 6 | consumed samples: {0} | elapsed time per iteration (ms): {1} | "
    body = "\n".join(f"print({line.format(i, 100.0 + i)!r})" for i in range(1, 7))
    assert own_command(script(tmp_path, body), None).run(row_with([]), tmp_path / "a") == pytest.approx(104.5)


def test_a_command_without_step_times_is_told(tmp_path: Path) -> None:
    own = own_command(script(tmp_path, "print('done')"), r"took ([0-9.]+) ms")
    with pytest.raises(NoStepTimesError, match=r"Looked for took \(\[0-9\.\]\+\) ms"):
        own.run(row_with([]), tmp_path / "a")


def test_a_command_that_does_not_end_is_ended(tmp_path: Path) -> None:
    own = own_command(script(tmp_path, "import time; time.sleep(60)"), "(1)")
    own.longest_s = 0.2
    with pytest.raises(FailedRunError, match="did not end"):
        own.run(row_with([]), tmp_path / "a")


def test_settings_that_no_option_says() -> None:
    said = [change("--a 1"), change("", ""), change("x.y=[1,2]"), change("--layout 'Et|tL'")]
    assert settings_words(said) == "--a 1 'x.y=[1,2]' --layout 'Et|tL'"
    ways: dict[tuple[str, Value, Dialect], Way] = {
        ("apply_rope_fusion", True, "megatron_lm"): "left out",
        ("cuda_graph_impl", "local", "megatron_core"): "code",
        ("cuda_device_max_connections", 1, "megatron_lm"): "variable",
    }
    for (knob, value, dialect), way in ways.items():
        found, written = way_and_words(knob, value, dialect)
        assert found == way
        with pytest.raises(FailedRunError, match="no"):
            settings_words([change(written, found)])


@pytest.mark.parametrize(
    ("command", "pattern", "said"),
    [("train", None, "{settings}"), ("a {settings}", "(", "regular"), ("a {settings}", "x", "group")],
)
def test_a_command_that_cannot_be_used_is_told(command: str, pattern: str | None, said: str) -> None:
    with pytest.raises(UserError, match=said):
        own_command(command, pattern)
