"""Shares are written, and taken, as the report writes and takes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.results.figures import per_cent, share
from tests.rules.cases import case_of
from tests.rules.test_rules import with_gap


@pytest.mark.parametrize(
    "frac", [0.0, 1e-6, -1e-6, 0.0004, 0.0006, 0.057, 0.511, 0.99, 0.9994, 0.9996, 1.0, 1.2, -0.07]
)
def test_a_share_is_written_as_in_the_report(frac: float) -> None:
    assert per_cent(frac) == share(frac)


def test_digits_are_asked_for() -> None:
    assert (per_cent(0.33333, 0), per_cent(0.33333, 2), per_cent(0.001, 0)) == ("33 %", "33.33 %", "<1 %")


def test_a_share_of_several_windows_is_of_all_their_time(tmp_path: Path) -> None:
    """Of 120 us on one rank 20 us are idle, of 200 us on the other 100: 120 of 320, not the mean of both."""
    case = case_of(tmp_path, with_gap(20_000), with_gap(100_000))
    assert case.share(lambda rank: rank.ledger.total - rank.ledger.compute) == pytest.approx(120 / 320)
