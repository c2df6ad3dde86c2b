"""Median and mean of steps: where they are apart both are shown, and what a gain is a share of is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfdoc.analyzers.steps.figures import distribution
from perfdoc.reports.headline import headline
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.outline import sections_of
from perfdoc.reports.outlook import gain_together
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis, Step
from tests.reports import build
from tests.reports.build_choices import gain, with_choices

MS = 1_000_000


def stepping(*steps_ms: float) -> Diagnosis:
    """One rank with steps of these lengths, and a combined gain of 2 ms per step of the mean length."""
    made = with_choices(build.one_rank())
    steps = [
        Step(name=f"step {i}", start_ns=i * 10**9, duration_ns=round(ms * MS))
        for i, ms in enumerate(steps_ms)
    ]
    (rank,) = made.ranks
    mean_ns = round(sum(steps_ms) / len(steps_ms) * MS)
    predictions = [replace(p, step_ns=mean_ns) for p in made.analyses.gains.predictions]
    assert made.combined is not None
    return replace(
        made,
        ranks=[replace(rank, window=replace(rank.window, step_list=steps))],
        analyses=replace(made.analyses, gains=replace(made.analyses.gains, predictions=predictions)),
        combined=replace(made.combined, gain=gain(2.0)),
    )


def step_time(made: Diagnosis) -> tuple[str, list[str]]:
    (figure,) = [f for f in headline(made) if f.label == "Step time"]
    return figure.value, figure.notes


def test_a_median_far_from_the_mean_stands_beside_it_everywhere() -> None:
    """Nine steps of 10 ms and one of 110: the median is 10, the mean 20, of which 2 ms are a tenth."""
    made = stepping(*[10.0] * 9, 110.0)
    value, notes = step_time(made)
    assert (value, notes[1]) == ("20.000 ms", "median 10 ms")
    assert "10.0 % of the step, predicted" in gain_together(made)
    for page in (render_text(made), render_markdown(made)):
        assert "median 10 ms" in " ".join(page.split())


def test_within_a_few_per_cent_one_figure_stands_for_both() -> None:
    value, notes = step_time(stepping(10.0, 10.0, 10.3))
    assert (value, [n for n in notes if "median" in n]) == ("10.100 ms", [])
    assert "of the step, predicted" in gain_together(stepping(10.0, 10.0, 10.3))


def test_gains_of_another_step_than_those_shown_say_of_which() -> None:
    """The log knows that steps without the profiler take 8 ms; those of the window 10."""
    made = stepping(10.0, 10.0)
    gains = made.analyses.gains
    free = [replace(p, step_ns=8 * MS) for p in gains.predictions]
    made = replace(made, analyses=replace(made.analyses, gains=replace(gains, predictions=free)))
    assert "25.0 % of the replayed step (8 ms)" in gain_together(made)
    times = replace(made.analyses.step_times, unprofiled=distribution(np.array([8 * MS] * 3, np.int64)))
    logged = replace(made, analyses=replace(made.analyses, step_times=times))
    assert "25.0 % of the unprofiled step (8 ms)" in gain_together(logged)
    times = replace(times, unprofiled=distribution(np.array([7 * MS] * 3, np.int64)))
    other = replace(made, analyses=replace(made.analyses, step_times=times))
    assert "25.0 % of the replayed step (8 ms)" in gain_together(other)


def test_step_times_say_the_mean_of_steps() -> None:
    spread = distribution(np.array([10, 10, 10, 50], np.int64) * MS)
    assert spread is not None
    assert (spread.median_ns, spread.mean_ns) == (10 * MS, 20 * MS)
    made = build.one_rank()
    times = replace(made.analyses.step_times, state="measured", analysed=spread)
    found = sections_of(replace(made, analyses=replace(made.analyses, step_times=times)))
    (section,) = [s for s in found if s.key == "step-times"]
    assert section.sentences[0].startswith("Step time 10.000 ms (mean 20.000 ms): median of 4")


@pytest.mark.parametrize(
    ("long_ms", "value", "note"),
    [
        (10.1, "10.100 ms", "mean of the longest rank; of all ranks 10.050 ms"),  # 0.5 % above the mean
        (10.3, "10.150 ms", "mean of 2 steps on each of 2 ranks"),  # 1.5 %
        (10.0, "10.000 ms", "mean of 2 steps on each of 2 ranks"),
    ],
)
def test_whose_mean_stands_at_the_head(long_ms: float, value: str, note: str) -> None:
    short, long = ((made, made.ranks[0]) for made in (stepping(10.0, 10.0), stepping(long_ms, long_ms)))
    ranks = [
        replace(
            r, window=replace(r.window, steps=2, duration_ns=sum(s.duration_ns for s in r.window.step_list))
        )
        for r in (short[1], long[1])
    ]
    shown, notes = step_time(replace(short[0], ranks=ranks))
    assert (shown, notes[0]) == (value, note)


def test_the_step_that_shares_are_of_is_said_beside_a_median_too() -> None:
    """Ranks of 10, 10, 40 ms and of 10, 10, 43: 20.5 in the mean, 10 in the median, 21 of the longest."""
    both = [stepping(10.0, 10.0, last) for last in (40.0, 43.0)]
    ranks = [
        replace(made.ranks[0], window=replace(made.ranks[0].window, steps=3, duration_ns=round(last * MS)))
        for made, last in zip(both, (60.0, 63.0), strict=True)
    ]
    shown, notes = step_time(replace(both[0], ranks=ranks))
    assert shown == "20.500 ms"
    assert notes[1] == "median 10 ms; longest rank 21 ms"


@pytest.mark.parametrize(
    ("counts", "note"),
    [
        ([1], "the only step"),
        ([3], "mean of 3 steps"),
        ([1, 1], "mean of 1 step on each of 2 ranks"),
        ([3, 2], "mean of 2 to 3 steps on each of 2 ranks"),
    ],
)
def test_the_head_says_of_how_many_steps_of_each_rank_its_mean_is(counts: list[int], note: str) -> None:
    each = [stepping(*[10.0] * count) for count in counts]
    assert step_time(replace(each[0], ranks=[made.ranks[0] for made in each]))[1][0] == note
