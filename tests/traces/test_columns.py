"""Columns of Nsight exports: what several of Arrow's arrays hold, as one."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from perfdoc.traces.nsys import columns
from perfdoc.traces.nsys.columns import Column, joined, nulls, of_arrow, of_values


@pytest.mark.parametrize(
    ("chunks", "kind", "expected"),
    [
        ([pa.array(["x", "a", None]).slice(1), pa.array([None], pa.string()), pa.array(["\u00e9", ""])],
         "string", ["a", None, None, "\u00e9", ""]),
        ([pa.array([b"", b"\xff"]), pa.array([b"b", b"c"]).slice(1)], "binary", [b"", b"\xff", b"c"]),
        ([pa.array([2**64 - 1, None], pa.uint64()), pa.array([None], pa.uint64())], "uint64",
         [2**64 - 1, None, None]),
        ([pa.array([0.5, None]), pa.array([2.0])], "double", [0.5, None, 2.0]),
        ([pa.array([None, True, False]).slice(1), pa.array([None, True])], "bool", [True, False, None, True]),
        ([pa.array([None]), pa.nulls(2)], "na", [None] * 3),
        ([], "na", []),
    ],
)  # fmt: skip
def test_arrays_with_offsets_and_nulls_are_one_column(
    chunks: list[pa.Array], kind: str, expected: list[Any]
) -> None:
    column = of_arrow(chunks)
    assert (column.kind, len(column), column.to_list()) == (kind, len(expected), expected)
    assert column.valid.tolist() == [value is not None for value in expected]


def test_numbers_are_views_of_what_was_read_and_nothing_known_takes_no_memory() -> None:
    array = pa.array(range(1000), pa.int64())
    there = np.frombuffer(array.buffers()[1], np.int64)
    assert np.shares_memory(of_arrow([array]).to_int64(0), there)
    unknown = nulls(1 << 50)
    assert unknown.values.base is not None
    assert unknown.values.base.nbytes == 8


@pytest.mark.parametrize(
    ("cells", "other", "expected"),
    [([1], [0.5], [1.0, 0.5]), ([1], ["a"], None), (["a"], [b"a"], None), ([None], ["a"], [None, "a"])],
)
def test_kinds_of_parts(cells: list[object], other: list[object], expected: list[object] | None) -> None:
    """Whole numbers beside fractions are numbers; nothing else is joined but to what is unknown."""
    for parts in ([cells, other], [other, cells]):
        found = joined([of_values(part) for part in parts])
        turned = expected if parts[0] is cells or expected is None else expected[::-1]
        assert (None if found is None else found.to_list()) == turned


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([b"a", None, b"\xc3\xa9"], ["a", None, "\u00e9"]),
        ([b"a\xff", None, b"\xc3\xa9"], ["a\ufffd", None, "\u00e9"]),
        ([b"\xc3", b"\xa9"], ["\ufffd", "\ufffd"]),  # a letter, together
        ([b"", b"\xc3\xa9", b""], ["", "\u00e9", ""]),
        ([None], [None]),
    ],
)
def test_text_in_another_encoding_is_mended_text_by_text(
    cells: list[bytes | None], expected: list[str | None]
) -> None:
    assert of_values(cells).as_text().to_list() == expected


@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("wide", [True, False])  # bounds of 64 bits, as of joined parts, and of 32
def test_distinct_texts_are_the_same_with_pyarrow_and_without(
    loaded: bool, wide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = of_values(["b", None, "\u00e9", "b"]), of_values(["", "\u00e9"])
    column = joined([first, second]) if wide else of_values(["b", None, "\u00e9", "b", "", "\u00e9"])
    assert column is not None
    if not loaded:
        monkeypatch.setitem(sys.modules, "pyarrow._compute", None)  # whoever imports it fails
        monkeypatch.delitem(sys.modules, "pyarrow", raising=False)
    texts, code = column.distinct_texts()
    assert texts == ["b", "\u00e9", ""]
    assert code.tolist() == [0, -1, 1, 0, 2, 1]


def test_many_texts_are_hashed_by_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "_MANY", 1)
    monkeypatch.delitem(sys.modules, "pyarrow")
    monkeypatch.setitem(sys.modules, "pyarrow._compute", None)
    with pytest.raises(ImportError):
        of_values(["a", "a"]).distinct_texts()
    texts, code = of_values([5, None, 5, 0]).distinct_texts()  # numbers never
    assert (texts, code.tolist()) == (["5", "0"], [0, -1, 0, 1])


@pytest.mark.parametrize("cells", [["5"], [b"5"], [0.5]])
def test_what_is_no_integer_is_refused(cells: list[object]) -> None:
    column: Column = of_values(cells)
    with pytest.raises(ValueError, match=f"holds {column.kind}, not integers"):
        column.to_int64(-1)
