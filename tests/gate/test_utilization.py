"""MFU of a run: possible, or unknown with a note."""

from __future__ import annotations

import math

import pytest

from perfdoc.compare.runs import mfu


@pytest.mark.parametrize(
    ("flops", "peak", "found", "noted"),
    [
        (4e14, 1e15, 0.4, False),
        (1e15, 1e15, 1.0, False),
        (None, 1e15, None, False),
        (4e14, None, None, False),
        (1.01e15, 1e15, None, True),
        (4e14, math.inf, None, True),
        (4e14, math.nan, None, True),
        (math.inf, 1e15, None, True),
        (-1.0, 1e15, None, True),
        (4e14, -1e15, None, True),
    ],
)
def test_only_what_is_possible(
    flops: float | None, peak: float | None, found: float | None, noted: bool
) -> None:
    value, notes = mfu(flops, peak)
    assert (value, bool(notes)) == (found, noted)
