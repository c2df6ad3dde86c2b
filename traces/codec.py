"""Any value as JSON and arrays, by its types, and back. Never a pickle.

Nothing is written by hand: dataclasses say their fields, and what is read must have just those, of those
types. A new field needs nothing here; what was written before it is told by the digest of the types.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import types
import typing
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

_T = TypeVar("_T")
_OF_CLASSES = (TypeError, AssertionError, IndexError, RecursionError, OverflowError)
"""What the classes themselves raise where values do not fit."""


def take_apart(value: Any) -> tuple[bytes, list[Any]]:
    """A value as JSON in which a number stands for each array, and the arrays.

    Raises ValueError for what has no coding.
    """
    arrays: list[Any] = []

    def hook(found: Any) -> Any:
        if isinstance(found, np.ndarray):
            arrays.append(found)
            return len(arrays) - 1
        if isinstance(found, Path):
            return str(found)
        raise ValueError(f"a {type(found).__name__}")

    try:
        return msgspec.json.encode(value, enc_hook=hook), arrays
    except (TypeError, OverflowError, UnicodeEncodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def put_together(content: bytes | memoryview | msgspec.Raw, arrays: Sequence[Any], kind: type[_T]) -> _T:
    """A value of that class, every part of it of its declared type, each array in one place.

    Raises ValueError.
    """
    used: set[int] = set()

    def hook(wanted: Any, found: Any) -> Any:
        if typing.get_origin(wanted) is np.ndarray:
            return _array(arrays, used, wanted, found)
        if wanted is Path:
            return Path(msgspec.convert(found, str))
        raise ValueError(f"a {wanted!r}")

    try:
        value = msgspec.json.decode(content, type=kind, dec_hook=hook)
    except UnicodeDecodeError as error:
        raise ValueError("a text that is none") from error
    except (msgspec.DecodeError, *_OF_CLASSES) as error:
        raise ValueError(str(error)) from error
    if len(used) != len(arrays):
        raise ValueError("an array is of nothing")
    return value


def _array(arrays: Sequence[Any], used: set[int], wanted: Any, found: Any) -> Any:
    if type(found) is not int or not 0 <= found < len(arrays) or found in used:
        raise ValueError("no such array")
    used.add(found)
    dtype = np.dtype(typing.get_args(typing.get_args(wanted)[1])[0])
    if arrays[found].dtype != dtype:
        raise ValueError(f"an array of {arrays[found].dtype}, not of {dtype}")
    return arrays[found]


@cache
def digest(kind: type) -> str:
    """Of a class and all that its fields are made of: names, types and order. The same with every Python and
    numpy, which spell types differently."""
    said: dict[str, str] = {}
    _describe(kind, said)
    return hashlib.sha256("\n".join(f"{k} {v}" for k, v in sorted(said.items())).encode()).hexdigest()


def _describe(kind: Any, said: dict[str, str]) -> None:
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or hasattr(kind, "__struct_fields__")):
        name = f"{kind.__module__}.{kind.__qualname__}"
        if name in said:
            return
        hints = typing.get_type_hints(kind, include_extras=True)
        fields = getattr(kind, "__struct_fields__", None) or [f.name for f in dataclasses.fields(kind)]
        said[name] = ", ".join(f"{f}: {_spelt(hints[f])}" for f in fields)
        for field in fields:
            _describe(hints[field], said)
        return
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        said[f"{kind.__module__}.{kind.__qualname__}"] = ", ".join(f"{m.name}={m.value}" for m in kind)
    for part in typing.get_args(kind):
        _describe(part, said)


def _spelt(kind: Any) -> str:
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is np.ndarray:
        return f"array of {np.dtype(typing.get_args(parts[1])[0]).name}"
    if origin is typing.Annotated:
        return _spelt(parts[0])
    if origin in (typing.Union, types.UnionType):
        return " or ".join(sorted(map(_spelt, parts)))
    if origin is typing.Literal:
        return f"one of {parts!r}"
    if origin is not None:
        return f"{_spelt(origin)}[{', '.join(map(_spelt, parts))}]"
    return f"{kind.__module__}.{kind.__qualname__}" if isinstance(kind, type) else repr(kind)
