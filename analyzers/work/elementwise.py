"""Arithmetic on every element, copies and fills, and reductions over axes. All of them are memory-bound.

Operations for every element are those of the formula: a transcendental function is one, so SiLU (a negation,
an exponential, an addition, a division) is 4. Tensors of no axes are scalars and no traffic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from perfdoc.analyzers.work.inputs import Inputs, Shape, Tensor
from perfdoc.analyzers.work.operator_work import (
    Formula,
    Kind,
    OperatorWork,
    bytes_of,
    sized,
    total_bytes,
    vector_dtype,
)

OPERATIONS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("add", "sub", "rsub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "rsqrt"), 1),
        **dict.fromkeys(("reciprocal", "sin", "cos", "tanh", "erf", "pow", "relu", "square", "sign"), 1),
        **dict.fromkeys(("maximum", "minimum", "clamp", "clamp_min", "clamp_max", "floor", "ceil"), 1),
        **dict.fromkeys(
            ("remainder", "floor_divide", "true_divide", "threshold_backward", "exp2", "log2"), 1
        ),
        **dict.fromkeys(("addcmul", "addcdiv", "lerp"), 3),
        "sigmoid": 3,
        "silu": 4,
        "gelu": 5,
        "sigmoid_backward": 3,
        "tanh_backward": 3,
        "silu_backward": 8,
        "gelu_backward": 10,
    }
)
"""By name without `aten::` and the `_` of an operator in place; `add` with a factor counts as without."""
_COMPARISONS = (
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_not",
    "isnan",
    "isinf",
)
_SELECTIONS = ("where", "masked_fill")
_RANK = MappingProxyType({"fp64": 5, "fp32": 4, "bf16": 3, "fp16": 3, "fp8": 2, "int8": 1, "unknown": 0})


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape of all of them together; None where they do not fit."""
    axes = max((len(s) for s in shapes), default=0)
    found = []
    for i in range(axes):
        sizes = {s[i - axes + len(s)] for s in shapes if i - axes + len(s) >= 0} - {1}
        if len(sizes) > 1:
            return None
        found.append(sizes.pop() if sizes else 1)
    return tuple(found)


def pointwise(x: Inputs, each: int, *, in_place: bool, out_width: int | None = None) -> OperatorWork | None:
    """One pass over all tensors. In place, the first is written too."""
    tensors = x.all_tensors()
    shape = tensors[0].shape if tensors and in_place else broadcast([t.shape for t in tensors])
    if not tensors or shape is None:
        return None
    elements = math.prod(shape)
    like = tensors[0] if in_place else _promoted(tensors)
    width = out_width if out_width is not None else like.width
    return OperatorWork(
        flops=each * elements,
        bytes=total_bytes((bytes_of(*(t for t in tensors if t.shape)), sized(elements, width))),
        dtype=vector_dtype(_promoted(tensors).dtype),
        kind="elementwise",
    )


def _promoted(tensors: Sequence[Tensor]) -> Tensor:
    """The one whose element type the result has: numbers (no axes) do not widen a tensor."""
    wide = [t for t in tensors if t.shape] or list(tensors)
    return max(wide, key=lambda t: (_RANK.get(t.dtype, 0), t.width or 0))


def _arithmetic(each: int, in_place: bool) -> Formula:
    def work(x: Inputs) -> OperatorWork | None:
        return pointwise(x, each, in_place=in_place)

    return work


def _comparison(in_place: bool) -> Formula:
    def work(x: Inputs) -> OperatorWork | None:
        return pointwise(x, 1, in_place=in_place, out_width=None if in_place else 1)

    return work


def moved(
    read: Sequence[Tensor | None], written: Sequence[Tensor | None], kind: Kind = "copy"
) -> OperatorWork:
    """No arithmetic."""
    return OperatorWork(
        flops=0, bytes=total_bytes((bytes_of(*read), bytes_of(*written))), dtype="unknown", kind=kind
    )


def _copy(x: Inputs) -> OperatorWork | None:
    """copy_(to, from)."""
    to, source = x.tensor(0), x.tensor(1)
    return None if to is None or source is None else moved((source,), (to,))


def _fill(x: Inputs) -> OperatorWork | None:
    to = x.tensor(0)
    return None if to is None else moved((), (to,))


def _concatenated(x: Inputs) -> OperatorWork | None:
    parts = x.listed(0)
    return moved(parts, parts) if parts else None


def _dropout(x: Inputs) -> OperatorWork | None:
    """native_dropout(x, p, train): a result and a mask of one byte."""
    given = x.tensor(0)
    if given is None:
        return None
    return OperatorWork(
        flops=2 * given.elements,
        bytes=total_bytes((given.bytes, sized(given.elements, given.width), given.elements)),
        dtype=vector_dtype(given.dtype),
        kind="elementwise",
    )


def _reduced(each: int, axes: int | None) -> Formula:
    """Over the axes at that input, or over all where none are given: an axis that is kept with size 1
    holds no elements more."""

    def work(x: Inputs) -> OperatorWork | None:
        given = x.tensor(0)
        if given is None:
            return None
        return OperatorWork(
            flops=each * given.elements,
            bytes=total_bytes((given.bytes, sized(_left(x, given, axes), given.width))),
            dtype=vector_dtype(given.dtype),
            kind="reduction",
        )

    return work


def _left(x: Inputs, given: Tensor, position: int | None) -> int:
    """Elements that a reduction leaves; 0, the least, where the axes are not known."""
    if position is None or (x.values and x.value(position) in ("", "[]")):
        return 1
    axes = x.integers(position)
    if axes is None:
        one = x.integer(position)
        axes = None if one is None else (one,)
    count = len(given.shape)
    if axes is None or any(not -count <= a < count for a in axes):
        return 0
    gone = {a % count for a in axes}
    return math.prod(n for i, n in enumerate(given.shape) if i not in gone)


def _in_place(names: Mapping[str, tuple[Formula, Formula]]) -> dict[str, Formula]:
    found: dict[str, Formula] = {}
    for name, (apart, inside) in names.items():
        found[f"aten::{name}"] = apart
        found[f"aten::{name}_"] = inside
    return found


FORMULAS: dict[str, Formula] = {
    **_in_place({n: (_arithmetic(each, False), _arithmetic(each, True)) for n, each in OPERATIONS.items()}),
    **_in_place({n: (_comparison(False), _comparison(True)) for n in _COMPARISONS}),
    **_in_place({n: (_arithmetic(0, False), _arithmetic(0, True)) for n in _SELECTIONS}),
    "aten::copy_": _copy,
    "aten::fill_": _fill,
    "aten::zero_": _fill,
    "aten::cat": _concatenated,
    "aten::native_dropout": _dropout,
    "aten::native_dropout_backward": _arithmetic(2, False),
    **{f"aten::{n}": _reduced(1, 1) for n in ("sum", "mean", "amax", "amin")},
    "aten::logsumexp": _reduced(4, 1),
    **{f"aten::{n}": _reduced(1, None) for n in ("any", "all")},
    "aten::argmax": _reduced(1, 1),
    "aten::argmin": _reduced(1, 1),
    "aten::linalg_vector_norm": _reduced(2, 2),
    "aten::norm": _reduced(2, 2),
    "aten::cumsum": _arithmetic(1, False),
}
