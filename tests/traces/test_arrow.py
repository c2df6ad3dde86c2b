from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from perfdoc.traces.arrow import distinct, distinct_texts, to_int64, valid

TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_integers_of_every_width_with_nulls_chunks_and_offsets(kind: pa.DataType) -> None:
    column = pa.chunked_array(
        [pa.array([9, 1, None, 3], kind).slice(1), pa.array([], kind), pa.array([None, 5], kind)]
    )
    assert to_int64(column, -7).tolist() == [1, -7, 3, -7, 5]
    assert valid(column).tolist() == [True, False, True, False, True]


def test_large_integers_keep_every_bit_beside_nulls() -> None:
    # Through float64 2^63 - 1 would come back as 2^63.
    assert to_int64(pa.chunked_array([[2**63 - 1, None]], pa.int64()), 0).tolist() == [2**63 - 1, 0]
    unsigned = to_int64(pa.chunked_array([[2**64 - 1, None]], pa.uint64()), 0)
    assert unsigned.view(np.uint64).tolist() == [2**64 - 1, 0]


@pytest.mark.parametrize("values", [[], [5], [5, 5, 5], [3, -1, 3, 2**62, -1]])
def test_distinct_gives_every_row_back(values: list[int]) -> None:
    keys, code = distinct(np.array(values, np.int64))
    assert keys[code].tolist() == values
    assert len(set(keys.tolist())) == len(keys)


def test_distinct_texts() -> None:
    texts, code = distinct_texts(pa.chunked_array([["b", None], ["a", "b"]]))
    assert (texts, code.tolist()) == (["b", "a"], [0, -1, 1, 0])
    assert distinct_texts(pa.chunked_array([pa.nulls(2)]))[1].tolist() == [-1, -1]
