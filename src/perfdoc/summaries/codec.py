"""Any measurement as bytes: JSON for the values (traces/codec.py), packed columns for the arrays."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from perfdoc.summaries.checks import check
from perfdoc.traces.codec import put_together, take_apart
from perfdoc.traces.columns import Column, pack_columns, unpack_columns

_T = TypeVar("_T")
_LENGTH = 8
_OF_CHECKS = (TypeError, AssertionError, IndexError, RecursionError, OverflowError)
"""What arithmetic with values that do not fit raises."""
ARRAYS_RATIO = 8
"""Bytes of an array to one that is stored: a value of 8 bytes may be stored in 1."""


class _Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    columns: tuple[Column, ...]
    content: msgspec.Raw


def encode(value: Any) -> bytes:
    """The bytes of a value whose class decode is asked for. Raises ValueError for what has no coding."""
    content, arrays = take_apart(value)
    columns, data = pack_columns(arrays)
    frame = msgspec.json.encode(_Frame(tuple(columns), msgspec.Raw(content)))
    return len(frame).to_bytes(_LENGTH, "little") + frame + data


def decode(content: bytes, kind: type[_T]) -> _T:
    """A value of that class, every part of it of its declared type. Raises ValueError."""
    length = int.from_bytes(content[:_LENGTH], "little")
    frame_end = _LENGTH + length
    if len(content) < frame_end:
        raise ValueError("it is not whole")
    try:
        frame = msgspec.json.decode(content[_LENGTH:frame_end], type=_Frame)
        data = content[frame_end:]
        arrays = unpack_columns(frame.columns, data, ARRAYS_RATIO * len(data))
        value = put_together(frame.content, arrays, kind)
        check(value)
    except UnicodeDecodeError as error:
        raise ValueError("a text that is none") from error
    except (msgspec.DecodeError, *_OF_CHECKS) as error:
        raise ValueError(str(error)) from error
    return value
