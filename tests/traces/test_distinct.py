"""Distinct values, membership, percentiles and medians against numpy's own."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.traces import table
from perfdoc.traces.table import among, at_percent, median, unique

NUMBERS = st.lists(st.integers(-(2**62), 2**62) | st.integers(-3, 3), max_size=12)


@given(NUMBERS, NUMBERS)
def test_they_are_numpys(values: list[int], wanted: list[int]) -> None:
    rows = np.array(values, np.int64)
    assert unique(rows).tolist() == np.unique(rows).tolist()
    assert among(rows, wanted).tolist() == [v in wanted for v in values]
    if values:
        small = rows // 2**20
        for of in (small, small.astype(float), np.stack([small, small[::-1]])):
            assert np.array_equal(at_percent(of, (10, 50, 80)), np.percentile(of, (10, 50, 80), axis=-1).T)
            assert np.array_equal(median(of), np.median(of, axis=-1))


def test_worked_out_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four values the tenth percentile lies 0.3 of the way from the first to the second."""
    rows = np.array([7, 3, 7, 5])
    for many in (100, 2):  # numpy itself from there on
        monkeypatch.setattr(table, "_MANY", many)
        assert unique(rows).tolist() == [3, 5, 7]
        assert among(rows, [5, 9]).tolist() == [False, False, False, True]
    assert among(rows, []).tolist() == [False] * 4
    assert float(at_percent(rows, 10)) == pytest.approx(3.6)
    assert float(median(rows)) == 6
    assert unique(np.array(["b", "a", "b"])).tolist() == ["a", "b"]
