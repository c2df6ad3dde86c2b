from __future__ import annotations

import pytest

from perfdoc.verdict import verdict_of
from tests.reports.build import ledger, rank


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        ({"compute": 100}, "The GPU computes for all of the window."),
        (
            {"compute": 700, "unknown": 200, "idle_host": 60, "idle_data": 40},
            "The GPU computes for 70.0 % of the window; 20.0 % is communication that no compute hides, "
            "10.0 % is idle, mostly the host launching work too late.",
        ),
        (
            # Thirds: 33.4 + 33.3 + 33.3, so that what is printed adds up.
            {"compute": 1, "memcpy": 1, "idle_gc": 1},
            "The GPU computes for 33.4 % of the window; 33.3 % is copies that nothing hides, "
            "33.3 % is idle, mostly Python's garbage collection.",
        ),
    ],
)
def test_the_sentence(leaves: dict[str, int], expected: str) -> None:
    assert verdict_of([rank(0, ledger(**leaves))]) == expected


def test_several_ranks_and_steps() -> None:
    ranks = [rank(i, ledger(compute=1000), steps=2) for i in range(2)]
    assert verdict_of(ranks) == "The 2 GPUs compute for all of the steps."


def test_an_empty_window() -> None:
    assert verdict_of([rank(0, ledger())]) == "The window is empty: nothing ran in it."
