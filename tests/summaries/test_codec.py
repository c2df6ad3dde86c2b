"""Measurements as bytes, and back: nothing is lost, and nothing else is taken for one."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from perfdoc.summaries.codec import ARRAYS_RATIO, decode, encode
from perfdoc.traces.codec import digest, same
from perfdoc.traces.columns import Column, pack_columns, unpack_columns
from perfdoc.traces.table import F64, I64, Bool

_TYPES = (np.bool_, np.int8, np.int32, np.int64, np.uint64, np.float32, np.float64)
_SHAPES = arrays.array_shapes(max_dims=2, min_side=0, max_side=80)
_ARRAYS = st.sampled_from(_TYPES).flatmap(lambda dtype: arrays.arrays(dtype, _SHAPES))
_MOST = 1 << 24


@given(st.lists(_ARRAYS, max_size=5))
def test_any_arrays_come_back_bit_by_bit(given: list[Any]) -> None:
    """Of any values: the ends of their types, NaN with its bits, none at all, two axes."""
    columns, content = pack_columns(given)
    found = unpack_columns(columns, content, _MOST)
    assert same(given, found)
    assert all(f.flags.writeable for f in found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"shape": (4,)}, "longer"),
        ({"shape": (2,)}, "shorter"),
        ({"shape": (1, 1, 3)}, "shape"),
        ({"shape": (-1, -3)}, "shape"),
        ({"shape": (1 << 62, 1 << 62)}, "longer"),
        ({"dtype": "i1", "width": 4, "shape": (0,)}, "coding"),
        ({"dtype": "i4", "width": 8, "shape": (0,)}, "wider"),
        ({"dtype": "b1"}, "truth"),
    ],
)
def test_columns_that_do_not_fit(change: dict[str, Any], said: str) -> None:
    column = {"dtype": "i8", "shape": (3,), "coding": "plain", "width": 1} | change
    with pytest.raises(ValueError, match=said):
        unpack_columns([Column(**column)], b"\x00\x01\x02", _MOST)


class _Kind(IntEnum):
    A = 1


@dataclass(frozen=True, kw_only=True)
class _Inner:
    start_ns: I64
    share: F64
    known: Bool


@dataclass(frozen=True, kw_only=True)
class _Outer:
    name: str
    kind: _Kind
    state: Literal["measured", "not"]
    count: int | None
    frac: float
    inner: Sequence[_Inner]
    by_name: dict[str, int]
    pair: tuple[int, int]


def _outer(**change: Any) -> _Outer:
    inner = _Inner(start_ns=np.arange(3), share=np.array([np.nan, 1.5, -1e18]), known=np.ones(3, bool))
    known: dict[str, Any] = {
        "name": "a/é\n",
        "kind": _Kind.A,
        "state": "measured",
        "count": None,
        "frac": 0.1,
        "inner": [inner, inner],
        "by_name": {"b": 1 << 62, "a": -1},
        "pair": (1, 2),
    }
    return _Outer(**known | change)


def test_dataclasses_by_their_types() -> None:
    """Numbers past 53 bits, order of keys, floats to the last bit."""
    value = _outer(frac=0.1 + 0.2)
    found = decode(encode(value), _Outer)
    assert same(value, found)
    assert type(found.kind) is _Kind
    assert found.frac == 0.30000000000000004


@pytest.mark.parametrize(
    "change",
    [
        {"name": 1},
        {"kind": 2},
        {"state": "other"},
        {"count": "1"},
        {"count": True},
        {"frac": float("nan")},
        {"inner": None},
        {"by_name": {"a": 1.5}},
        {"pair": (1, 2, 3)},
        {"inner": [_Inner(start_ns=np.arange(3.0), share=np.ones(3), known=np.ones(3, bool))]},  # type: ignore[arg-type]
        {"inner": [_Inner(start_ns=np.arange(2), share=np.ones(3), known=np.ones(3, bool))]},
        {"inner": [_Inner(start_ns=np.ones((3, 1), np.int64), share=np.ones(3), known=np.ones(3, bool))]},
    ],
    ids=str,
)
def test_what_is_not_of_its_type_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        decode(encode(_outer(**change)), _Outer)


def test_the_digest_knows_every_field() -> None:
    """One more field, or another type of one, is another digest; another spelling of a type is none."""

    def of(**fields: Any) -> str:
        return digest(dataclasses.make_dataclass("Made", list(fields.items())))

    digests = [of(a=I64), of(a=F64), of(b=I64), of(a=I64, b=int), of(a=int | None), of(a=Literal["x", "y"])]
    digests += [of(a=tuple[int, ...]), of(a=list[int]), of(a=_Inner), of(a=Sequence[_Inner])]
    assert len(set(digests)) == len(digests)
    assert of(a=int | None) == of(a=Optional[int]) == of(a=None | int)  # noqa: UP045
    assert of(a=I64) == of(a=np.ndarray[Any, np.dtype[np.int64]])


@given(st.binary(max_size=200), st.data())
def test_other_bytes_are_no_value(noise: bytes, data: st.DataObject) -> None:
    """Never anything but ValueError, whatever is written over a value's bytes."""
    content = bytearray(encode(_outer()))
    at = data.draw(st.integers(0, len(content)))
    content[at : at + len(noise)] = noise
    try:
        found = decode(bytes(content), _Outer)
    except ValueError:
        return
    total = sum(a.nbytes for i in found.inner for a in (i.start_ns, i.share, i.known))
    assert total <= ARRAYS_RATIO * len(content)
