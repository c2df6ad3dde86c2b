"""Absolute limits."""

from __future__ import annotations

import pytest

from perfdoc.compare.figures import RunFigures
from perfdoc.compare.floors import check_floors, parse_floor
from tests.gate.test_changed_baselines import run as make_run
from tests.gate.test_changed_baselines import steady_of


def run(**known: float) -> RunFigures:
    return make_run(0, **steady_of(2_000_000), **known)


def test_edges_and_the_worst_run_counts() -> None:
    runs = [run(mfu_frac=0.42), run(mfu_frac=0.5)]
    assert check_floors([parse_floor("mfu_min=0.42")], runs)[0].state == "pass"
    found = check_floors([parse_floor("mfu_min=0.43:warn")], runs)[0]
    assert (found.state, found.value, found.floor.level) == ("broken", 0.42, "warn")
    assert check_floors([parse_floor("step_time_max_ms=2")], runs)[0].state == "pass"
    assert check_floors([parse_floor("step_time_max_ms=1.99")], runs)[0].state == "broken"
    assert check_floors([parse_floor("mfu_min=0.9:off")], runs) == []


def test_unknown_is_not_a_pass() -> None:
    found = check_floors([parse_floor("mfu_min=0.4")], [run(mfu_frac=0.5), run()])[0]
    assert (found.state, found.value) == ("unknown", None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "mfu=1", "mfu_min", "mfu_min=x", "mfu_min=1:loud", "mfu_min=-1", "mfu_min=40"),
        "exposed_comm_frac_max=1.01",
    ],
)
def test_mistakes_are_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="--floor") as caught:
        parse_floor(text)
    assert "\n" not in str(caught.value)
