"""The sentences of a result: figures with fit units, grammar, and one sentence a check."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest

from perfdoc.compare.figures import RunFigures
from perfdoc.compare.floors import check_floors, parse_floor
from perfdoc.compare.gate.judge import judge
from perfdoc.compare.gate.render import as_github
from perfdoc.compare.gate.result import Result, change, compared, floor_check, incomparable
from tests.gate.test_changed_baselines import run


def result(before_ms: Sequence[float], after_ms: float, *floors: str) -> Result:
    def runs(times: Sequence[float]) -> list[RunFigures]:
        return [msgspec.structs.replace(run(i), median_step_ns=round(t * 1e6)) for i, t in enumerate(times)]

    old, new = runs(before_ms), runs([after_ms])
    judged = judge(old, new)
    step, mean = judged.checks
    assert (mean.name, mean.state) == ("mean_step", "inconclusive")  # these runs do not say it
    return compared(
        [step, *map(floor_check, check_floors([parse_floor(f) for f in floors], new))],
        [],
        improved=judged.improved,
        baseline="b.json",
        baseline_runs=old,
        runs=new,
        notes=[],
    )


@pytest.mark.parametrize(
    ("slower", "words"),
    [
        (0.05, "5.0 % slower than"),
        (-0.031, "3.1 % faster than"),
        (0.0, "no slower than"),
        (0.0004, "no slower than"),
        (-0.0004, "no slower than"),
    ],
)
def test_a_change_in_words(slower: float, words: str) -> None:
    assert change(slower) == words


def test_long_steps_have_no_exponent() -> None:
    summary = result([12_936.1] * 3, 12_936.1).summary
    assert summary.startswith("A step takes 12.936 s, no slower than the baseline's 12.936 s;"), summary


def test_limits_have_no_exponent() -> None:
    found = result([12_936.1] * 3, 12_936.1, "step_time_max_ms=1234567.5", "step_time_max_ms=0.0000001")
    assert found.checks[1].message == "step_time_max_ms: 12,936.1 ms, at most 1,234,567.5 ms required."
    assert found.checks[2].message == "step_time_max_ms: 12,936.1 ms, at most 0.0000001 ms required."


def test_one_run_shows_and_two_show() -> None:
    assert "1 baseline run shows no spread" in result([100], 100).summary
    assert "2 baseline runs show no spread" in result([100, 101], 100).summary


@pytest.mark.parametrize("before", [(100, 104, 96, 100, 101), (100, 130, 70, 100, 101)])
def test_sentences_end_once(before: Sequence[float]) -> None:
    found = result(before, 102)
    assert found.verdict == "inconclusive"
    assert found.summary.endswith("quieter machine.")


def test_an_annotation_is_of_its_own_check() -> None:
    floors = list(map(floor_check, check_floors([parse_floor("step_time_max_ms=1")], [run(0)])))
    found = incomparable("No baseline.", floors, baseline=None, differences=[], runs=[run(0)], notes=[])
    assert as_github(found).splitlines() == [
        "::warning title=perfdoc gate%3A step_time::No baseline.",
        "::error title=perfdoc gate%3A step_time_max_ms::step_time_max_ms: 100 ms, at most 1 ms required.",
    ]


def test_what_is_unknown_is_the_summary_where_it_decides() -> None:
    found = result([100] * 3, 100, "mfu_min=0.4")
    assert (found.verdict, found.summary) == (
        "inconclusive",
        "mfu_min is at least 0.4, but not every run reports it.",
    )


def test_a_loss_says_where_in_its_annotation() -> None:
    (line,) = as_github(result([100] * 3, 120)).splitlines()
    assert line.endswith("Which part of the step grew is unknown.")
