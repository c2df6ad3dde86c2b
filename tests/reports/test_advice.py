"""What a gain is said to be."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.advice import gain_words, lines_of, rough
from perfdoc.results import Gain
from tests.reports.build import rule
from tests.reports.build_choices import advice, rules

REPLAYED = Gain(
    low_ms=240.0, mid_ms=261.4, high_ms=280.0, method="replay", assumptions=["a graph", "a stream"]
)


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (261.0, "261 ms"),
        (261.449, "261 ms"),
        (12.345678, "12.3 ms"),
        (0.9999, "1 ms"),
        (999.9, "1 s"),
        (0.0005, "500 ns"),
        (1234.5, "1.23 s"),
        (0.0, "0 ns"),
    ],
)
def test_three_digits(ms: float, said: str) -> None:
    assert rough(ms) == said


def test_windows_without_steps_have_no_step() -> None:
    assert gain_words(REPLAYED) == "Saves 261 ms per step (240 ms to 280 ms), predicted."
    assert gain_words(REPLAYED, "window") == "Saves 261 ms in this window (240 ms to 280 ms), predicted."
    ceiling = replace(REPLAYED, mid_ms=None, low_ms=0.0, method="ceiling")
    assert gain_words(ceiling, "window") == "Saves at most 280 ms in this window: upper bound; not predicted."


def test_what_makes_things_slower_costs() -> None:
    slower = replace(REPLAYED, low_ms=-30.0, mid_ms=-20.0, high_ms=-10.0)
    assert gain_words(slower) == "Costs 20 ms per step (10 ms to 30 ms), predicted."


def test_assumptions_are_said() -> None:
    found = dict(lines_of(replace(rule("fires"), gain=REPLAYED, gain_per="window")))
    assert found["assuming"] == "a graph; a stream"
    assert "in this window" in found["gain"]
    assert "assuming" not in dict(lines_of(rule("fires")))


def test_two_ways_do_not_read_as_one_setting() -> None:
    """Virtual stages with what they need are one change; a larger batch is another, without their gain."""
    main = replace(advice("chunks", "2"), together=["messages"])
    rule = replace(rules()[0], advice=[advice("messages", "on"), main, advice("batch", "32")])
    said = [(label, words.split(":")[0]) for label, words in lines_of(rule) if "set" in label]
    assert said == [("set", "messages"), ("set", "chunks"), ("or set", "batch")]
