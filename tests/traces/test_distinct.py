"""Distinct values, membership, percentiles and medians against numpy's own."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from perfdoc.traces import table
from perfdoc.traces.table import Strings, among, at_percent, distinct, median, unique

NUMBERS = st.lists(st.integers(-(2**62), 2**62) | st.integers(-3, 3), max_size=12)


@given(NUMBERS, NUMBERS)
def test_they_are_numpys(values: list[int], wanted: list[int]) -> None:
    rows = np.array(values, np.int64)
    assert unique(rows).tolist() == np.unique(rows).tolist()
    assert among(rows, wanted).tolist() == [v in wanted for v in values]
    for of in (rows, rows % 1_000):  # far apart, and marked
        order = list(dict.fromkeys(of.tolist()))
        assert [c.tolist() for c in distinct(of)] == [order, [order.index(n) for n in of.tolist()]]
    if values:
        small = rows // 2**20
        for of in (small, small.astype(float), np.stack([small, small[::-1]])):
            assert np.array_equal(at_percent(of, (10, 50, 80)), np.percentile(of, (10, 50, 80), axis=-1).T)
            assert np.array_equal(median(of), np.median(of, axis=-1))


DTYPES = (np.bool_, np.int8, np.int32, np.int64, np.uint64, np.float32, np.float64)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("many", [100_000, 2])
@given(chance=st.data())
def test_they_are_numpys_of_every_type(dtype: type[np.generic], many: int, chance: st.DataObject) -> None:
    """Numbers as large as fit, NaN and infinite ones; wanted are also those that the type has none of."""
    kind = np.dtype(dtype)
    drawn = chance.draw(
        arrays(kind, st.integers(1, 9)) | arrays(kind, st.tuples(st.just(3), st.integers(1, 5)))
    )
    wanted = chance.draw(st.lists(st.sampled_from([-1, 0, 1, 1.5, 300, 2**32 + 1]), max_size=3))
    wide = drawn.astype(np.float64)
    with np.errstate(all="ignore"):
        assert np.array_equal(median(drawn), np.median(wide, axis=-1), equal_nan=True)
        for percent in (37, (10, 50, 80), 100):
            theirs = np.percentile(wide, percent, axis=-1).T
            assert np.array_equal(at_percent(drawn, percent), theirs, equal_nan=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table, "_MANY", many)
        for of in (wanted, drawn.ravel()[:2]):
            assert np.array_equal(among(drawn, of), np.isin(drawn, of))


WIDE, NARROW = 2**40, 9


@pytest.mark.parametrize(("loaded", "far"), [(True, WIDE), (False, WIDE), (True, NARROW), (False, NARROW)])
def test_few_need_no_pyarrow(loaded: bool, far: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is there, and numbers are too far apart to be marked. In order of first appearance: 7, -3,
    and the far one."""
    if loaded:
        pytest.importorskip("pyarrow")
    if not loaded or far == NARROW:
        monkeypatch.setitem(sys.modules, "pyarrow._compute", None)  # whoever imports it fails
    if not loaded:
        monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    values, rows = distinct(np.array([7, -3, 7, far, -3]))
    assert values.tolist() == [7, -3, far]
    assert rows.tolist() == [0, 1, 0, 2, 1]
    assert values.dtype == rows.dtype == np.int64


@given(st.lists(st.integers(-4, 2_000), max_size=12) | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=9))
def test_they_come_in_the_order_of_first_appearance(numbers: list[int]) -> None:
    values, rows = distinct(np.array(numbers, np.int64))
    order = list(dict.fromkeys(numbers))
    assert (values.tolist(), rows.tolist()) == (order, [order.index(n) for n in numbers])


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
    assert float(median(np.array([2**63 - 1] * 2))) == float(median(np.array([2**63], np.uint64))) == 2.0**63
    assert unique(np.array(["b", "a", "b"])).tolist() == ["a", "b"]


@pytest.mark.parametrize("new", [["b", "c"], ["b", "a"], ["\udc80", "é"], []])
def test_texts_at_once_have_the_indices_that_they_have_one_by_one(new: list[str]) -> None:
    """Plain ones; one that is there already; ones that are no ASCII, of which one becomes `?`."""
    at_once, singly = Strings(), Strings()
    for strings in (at_once, singly):
        assert strings.intern("a") == 1
    assert list(at_once.intern_each(new)) == [singly.intern(text) for text in new]
    assert at_once.values == singly.values
    assert [at_once.intern(text) for text in new] == [singly.intern(text) for text in new]
