"""Why a row stands before one that saves more, and what comes before a row."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.outlook import capture_first
from perfdoc.reports.ranking import Ranked
from perfdoc.reports.savings import why_this_order
from perfdoc.results import Opportunity
from perfdoc.results.ranking import AS_SLOW
from tests.reports import build
from tests.reports.test_ranking import row


def stands(one: Opportunity) -> Ranked:
    return Ranked(row=one, rules=[], prediction=None)


SMALL = row("predicted", ["PD203"], "without_data", ms=10.0)
LARGE = row("predicted", ["PD202"], "without_gc", ms=20.0)


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (LARGE, SMALL, ""),
        (SMALL, row("bound", ["PD501"], ms=20.0), "predictions first"),
        (SMALL, replace(LARGE, exact=False), "what changes numerics last"),
        (replace(SMALL, blamed="cause"), LARGE, "cause first"),
        (SMALL, LARGE, "the surer first"),
        (SMALL, row("unmeasured", ["PD301"]), ""),
    ],
)
def test_why_a_row_stands_before_one_that_saves_more(
    first: Opportunity, second: Opportunity, words: str
) -> None:
    assert why_this_order([stands(first), stands(second)]) == words


def test_each_reason_is_said_once() -> None:
    bound = stands(row("bound", ["PD501"], ms=20.0))
    assert why_this_order([stands(SMALL), bound, bound]) == "predictions first"


def test_a_capture_that_slows_the_host_is_made_again_first() -> None:
    made = build.one_rank()
    slowed = replace(SMALL, conditions=["something else", f"{AS_SLOW}Python frames"])
    first, then = capture_first(stands(slowed), made)
    assert (first.partition(":")[0], bool(then)) == ("capture again without Python frames", True)
    assert capture_first(stands(replace(SMALL, conditions=["something else"])), made) == ("", "")
