"""The inputs of one operator call as a capture states them: tensors, lists of tensors, scalars.

Whatever is odd (sizes below 0 or beyond 64 bits, nested where a shape should be, an unknown element type) is
no tensor or has no width: a formula then knows less, and never fails.
"""

from __future__ import annotations

import math
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass

Shape: TypeAlias = tuple[int, ...]

MAX_ELEMENTS = 1 << 48
"""Of one tensor: more than any memory holds."""
MAX_AXES = 16

_TYPES = table(Path(__file__).resolve().with_name("element_types.yaml"))
"""(arithmetic, bytes) by element type, as C++ spells it."""
_NO_TENSOR = frozenset({"", "scalar", "scalarlist", "tensorlist", "genericlist", "device", "none"})
_INTEGER = pattern_of(r"-?\d{1,18}")


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """One tensor."""

    shape: Shape
    dtype: str
    """Of DTYPES."""
    width: int | None
    """Bytes of an element; None unknown."""
    read_elements: int
    """Distinct elements: an input that is expanded holds fewer than its shape has."""

    @property
    def elements(self) -> int:
        """Of its shape."""
        return math.prod(self.shape)

    @property
    def bytes(self) -> int | None:
        """Of its distinct elements."""
        return None if self.width is None else self.read_elements * self.width


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What the capture says of the inputs of one call."""

    name: str
    dims: tuple[Any, ...]
    dtypes: tuple[str, ...] = ()
    """Empty where they were not recorded."""
    values: tuple[str, ...] = ()
    strides: tuple[Any, ...] = ()
    """Empty where no input is expanded."""
    list_width: tuple[str, int] | None = None
    """Element type and bytes of lists of tensors, whose types are not recorded: as the kernel's name says."""

    @cached_property
    def count(self) -> int:
        """Inputs that have an entry."""
        return len(self.dims)

    def tensor(self, position: int) -> Tensor | None:
        """The tensor at a position; None where there is none, or an odd one."""
        if position >= len(self.dims):
            return None
        shape = _shape(self.dims[position])
        spelled = self.dtypes[position] if position < len(self.dtypes) else None
        known, absent = _element_type(spelled)
        if shape is None or absent or (spelled is None and not shape):
            return None
        dtype, width = known
        strides = self.strides[position] if position < len(self.strides) else None
        return Tensor(shape=shape, dtype=dtype, width=width, read_elements=_distinct(shape, strides))

    def tensors(self, *positions: int) -> list[Tensor]:
        """Those of the tensors that are there."""
        return [t for p in positions if (t := self.tensor(p)) is not None]

    def all_tensors(self) -> list[Tensor]:
        """Every tensor among the inputs, lists aside."""
        return self.tensors(*range(len(self.dims)))

    def listed(self, position: int) -> list[Tensor]:
        """The tensors of a list; empty where there is no list of tensors or one of them is odd."""
        entry = self.dims[position] if position < len(self.dims) else None
        if not isinstance(entry, list) or not entry or not all(isinstance(e, list) for e in entry):
            return []
        shapes = [_shape(e) for e in entry]
        dtype, width = self.list_width or ("unknown", None)
        found = [
            Tensor(shape=s, dtype=dtype, width=width, read_elements=math.prod(s))
            for s in shapes
            if s is not None
        ]
        return found if len(found) == len(shapes) else []

    def given(self, position: int) -> bool:
        """Whether something that is no scalar stands at an optional input."""
        return self.tensor(position) is not None

    def value(self, position: int) -> str:
        """A scalar as the capture spells it; empty where it is unknown or not given."""
        return self.values[position] if position < len(self.values) else ""

    def flag(self, position: int) -> bool | None:
        """A truth value; None unknown."""
        return {"true": True, "false": False}.get(self.value(position).lower())

    def integer(self, position: int) -> int | None:
        """A whole number; None unknown."""
        text = self.value(position).strip()
        return int(text) if _INTEGER.fullmatch(text) else None

    def number(self, position: int) -> float | None:
        """A number; None unknown."""
        try:
            found = float(self.value(position)[:40])
        except ValueError:
            return None
        return found if math.isfinite(found) else None

    def integers(self, position: int) -> tuple[int, ...] | None:
        """A list of whole numbers (`[1, 1]`, `(1,1)`), or a lone one (`1`); None unknown."""
        text = self.value(position).strip()
        if _INTEGER.fullmatch(text):
            return (int(text),)
        if text[:1] + text[-1:] not in ("[]", "()") or len(text) > 400:
            return None
        parts = [p.strip() for p in text[1:-1].split(",")] if text[1:-1].strip() else []
        return tuple(int(p) for p in parts) if all(_INTEGER.fullmatch(p) for p in parts) else None


def parse_inputs(
    name: str, dims: str, dtypes: str = "", values: str = "", strides: str = "", list_width: str = ""
) -> Inputs:
    """Inputs from the texts of a trace's operator columns; what cannot be read is not there."""
    known, _ = _element_type(list_width or None)
    return Inputs(
        name=name,
        dims=tuple(_decoded(dims)),
        dtypes=tuple(t if isinstance(t, str) else "" for t in _decoded(dtypes)),
        values=tuple(v if isinstance(v, str) else "" for v in _decoded(values)),
        strides=tuple(_decoded(strides)),
        list_width=(known[0], known[1]) if known[1] is not None else None,
    )


def _decoded(text: str) -> list[Any]:
    try:
        found = msgspec.json.decode(text) if text else []
    except (msgspec.DecodeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _shape(entry: Any) -> Shape | None:
    """The sizes of one tensor; None for anything else."""
    if not isinstance(entry, list) or len(entry) > MAX_AXES:
        return None
    total = 1
    for size in entry:
        if type(size) is not int or not 0 <= size <= MAX_ELEMENTS:
            return None
        total *= max(size, 1)
    return tuple(entry) if total <= MAX_ELEMENTS else None


def is_element_type(spelled: str) -> bool:
    """Whether it is the name of an element type, or says that there is no tensor."""
    (_, width), no_tensor = _element_type(spelled)
    return width is not None or no_tensor


def _element_type(spelled: str | None) -> tuple[tuple[str, int | None], bool]:
    """(arithmetic, bytes) of an element type, and whether it says that there is no tensor."""
    if spelled is None:
        return ("unknown", None), False
    key = spelled.lower().replace("c10::", "").replace("torch.", "").replace("at::", "").strip()
    key = {"float32": "float", "float64": "double", "float16": "half", "int64": "long"}.get(key, key)
    arithmetic, width = _TYPES.get(key, ("unknown", None))
    return (arithmetic, width), key in _NO_TENSOR


def _distinct(shape: Shape, strides: Any) -> int:
    """Elements without those along axes of stride 0."""
    if not isinstance(strides, list) or len(strides) != len(shape):
        return math.prod(shape)
    return math.prod(n for n, s in zip(shape, strides, strict=True) if s != 0 or n == 0)
