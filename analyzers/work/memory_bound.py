"""Operators whose bytes decide: arithmetic on every element, copies, reductions, norms, losses.

Their traffic is bytes in and bytes out: each input once, each output once. Operations are those of the
formula, a transcendental function being one, so SiLU (a negation, an exponential, an addition, a division) is
4. Tensors of no axes are scalars and no traffic. Norms take, for every element and every pair of statistics
(mean and reciprocal deviation of a row, a group or a channel), 5 and 6 (a sum, a square added, one
multiply-add that normalises and scales), RMS norms 4 and 2; row statistics are left out of the bytes. Softmax
takes 5 an element (maximum, difference, exponential, sum, quotient).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from perfdoc.analyzers.work.inputs import Inputs, Shape, Tensor
from perfdoc.analyzers.work.operator_work import Formula, Kind, OperatorWork, bytes_of, vector_dtype
from perfdoc.kept import table
from perfdoc.records import dataclass

OPERATIONS: Mapping[str, int] = MappingProxyType(
    {
        name: count
        for count, names in table(Path(__file__).resolve().with_name("memory_bound.yaml")).items()
        for name in names
    }
)
"""By name without `aten::` and the `_` of an operator in place; `add` with a factor counts as without."""
_COMPARISONS = (
    *("eq", "ne", "lt", "le", "gt", "ge"),
    *("logical_and", "logical_or", "logical_not", "isnan", "isinf"),
)
_RANK = MappingProxyType({"fp64": 5, "fp32": 4, "bf16": 3, "fp16": 3, "fp8": 2, "int8": 1, "unknown": 0})


def moves(
    kind: Kind, flops: int, of: Tensor | None, read: Iterable[Tensor | None], written: Iterable[Tensor | None]
) -> OperatorWork:
    """Bytes in and bytes out. of: whose element type the arithmetic has."""
    dtype = vector_dtype(of.dtype) if of is not None else "unknown"
    return OperatorWork(flops=flops, bytes=bytes_of(*read, *written), dtype=dtype, kind=kind)


def _result(like: Tensor, elements: int, width: int | None) -> Tensor:
    """An output of so many elements."""
    return replace(like, read_elements=elements, width=width)


# Arithmetic on every element


def broadcast(shapes: Sequence[Shape]) -> Shape | None:
    """The shape of all of them together; None where they do not fit."""
    axes = max((len(s) for s in shapes), default=0)
    sizes = []
    for i in range(axes):
        along = {s[i - axes + len(s)] for s in shapes if i - axes + len(s) >= 0} - {1}
        if len(along) > 1:
            return None
        sizes.append(along.pop() if along else 1)
    return tuple(sizes)


def _arithmetic(each: int, in_place: bool = False, out_width: int | None = None) -> Formula:
    """One pass over all tensors. In place, the first is written too."""

    def work(x: Inputs) -> OperatorWork | None:
        tensors = x.all_tensors()
        shape = tensors[0].shape if tensors and in_place else broadcast([t.shape for t in tensors])
        if not tensors or shape is None:
            return None
        # The result's element type: numbers (no axes) do not widen a tensor.
        wide = [t for t in tensors if t.shape] or tensors
        widest = max(wide, key=lambda t: (_RANK.get(t.dtype, 0), t.width or 0))
        width = out_width or (tensors[0] if in_place else widest).width
        elements = math.prod(shape)
        read = [t for t in tensors if t.shape]
        return moves("elementwise", each * elements, widest, read, [_result(widest, elements, width)])

    return work


def _dropout(x: Inputs) -> OperatorWork | None:
    """native_dropout(x, p, train): a result and a mask of one byte."""
    if (given := x.tensor(0)) is None:
        return None
    written = [_result(given, given.elements, given.width), _result(given, given.elements, 1)]
    return moves("elementwise", 2 * given.elements, given, [given], written)


def _to_first(kind: Kind, each: int) -> Formula:
    """(to, from, …), such as copy_; silu_and_mul takes what is twice as wide."""

    def work(x: Inputs) -> OperatorWork | None:
        to, source = x.tensor(0), x.tensor(1)
        if to is None or source is None:
            return None
        return moves(kind, each * to.elements, source if each else None, [source], [to])

    return work


def _fill(x: Inputs) -> OperatorWork | None:
    to = x.tensor(0)
    return None if to is None else moves("copy", 0, None, [], [to])


def _reduced(each: int, axes: int | None) -> Formula:
    """Over the axes at that input, or over all where none are given: an axis that is kept with size 1
    holds no elements more."""

    def work(x: Inputs) -> OperatorWork | None:
        if (given := x.tensor(0)) is None:
            return None
        result = _result(given, _left(x, given, axes), given.width)
        return moves("reduction", each * given.elements, given, [given], [result])

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


# Norms


def _rows(each: int, weight: int) -> Callable[[Inputs, Tensor], int | None]:
    """Operations for the rows that are normalised each for itself; None where the weights do not fit."""

    def count(x: Inputs, given: Tensor) -> int | None:
        weights = x.tensor(weight)
        shape = weights.shape if weights is not None else x.integers(1)
        if not shape or given.shape[-len(shape) :] != tuple(shape):
            return None
        return each * math.prod(given.shape[: -len(shape)])

    return count


def _groups(x: Inputs, given: Tensor) -> int | None:
    groups = x.integer(6)
    if not given.shape or (groups is not None and groups < 0):
        return None
    return 6 * given.shape[0] * groups if groups is not None else 0


@dataclass(frozen=True)
class _Norm:
    """Where the inputs stand: what is read, and like which the outputs are."""

    each: int
    read: tuple[int, ...]
    written: tuple[int, ...]
    statistics: Callable[[Inputs, Tensor], int | None] = lambda x, given: 0

    def forward(self, x: Inputs) -> OperatorWork | None:
        """x is the first input."""
        given = x.tensor(0)
        more = self.statistics(x, given) if given is not None else None
        return None if given is None or more is None else self._work(x, given, more)

    def backward(self, x: Inputs) -> OperatorWork | None:
        """dy and x, of one shape, are the first two in some order; x is like the first output."""
        given, other = x.tensor(self.written[0]), x.tensor(1 - self.written[0])
        return None if given is None or other is None or given.shape != other.shape else self._work(x, given)

    def _work(self, x: Inputs, given: Tensor, more: int = 0) -> OperatorWork:
        read, written = ([x.tensor(i) for i in places] for places in (self.read, self.written))
        return moves("norm", self.each * given.elements + more, given, read, written)


def _rms_norm_backward(x: Inputs) -> OperatorWork | None:
    """_fused_rms_norm_backward(dy, x, normalized_shape, rstd, weight, mask)."""
    return _Norm(10 if x.given(4) else 8, (0, 1, 4), (1, 4)).backward(x)


def _batch_norm(always_trains: bool = False) -> Formula:
    """(x, weight, bias, running mean, running variance, training): training writes the running ones too;
    else one multiply-add is left."""

    def work(x: Inputs) -> OperatorWork | None:
        given, trains = x.tensor(0), True if always_trains else x.flag(5)
        if given is None or len(given.shape) < 2 or trains is None:
            return None
        channels = given.shape[1]
        training = _Norm(5, (0, 1, 2, 3, 4), (0, 3, 4), lambda x, given: 6 * channels)
        return (training if trains else _Norm(2, (0, 1, 2, 3, 4), (0,))).forward(x)

    return work


# Losses and embeddings


def _softmax(x: Inputs) -> OperatorWork | None:
    """_softmax(x, dim, half_to_float): the latter widens 16 bits to 32."""
    if (given := x.tensor(0)) is None:
        return None
    widens = x.flag(2)
    result = _result(given, given.elements, given.width if widens is False else 4 if widens else None)
    return moves("softmax", 5 * given.elements, given, [given], [result])


def _softmax_backward(x: Inputs) -> OperatorWork | None:
    """_softmax_backward_data(dy, y, dim, input_dtype); the gradient is as wide as the result or narrower."""
    dy, y = x.tensor(0), x.tensor(1)
    if dy is None or y is None or dy.shape != y.shape:
        return None
    width = {"5": 2, "15": 2, "6": 4, "7": 8}.get(x.value(3))
    return moves("softmax", 4 * dy.elements, dy, [dy, y], [_result(dy, dy.elements, width)])


def _nll(log_probabilities: int, target: int) -> Formula:
    """Where the inputs stand: [rows, classes] and [rows]. One element a row is read, or written as the
    gradient; the fill of the gradient's others is an operator of its own."""

    def work(x: Inputs) -> OperatorWork | None:
        given, wanted = x.tensor(log_probabilities), x.tensor(target)
        if given is None or wanted is None or len(given.shape) != 2:
            return None
        rows = given.shape[0]
        return moves("loss", rows, given, [_result(given, rows, given.width), wanted], [])

    return work


def _embedding(x: Inputs) -> OperatorWork | None:
    """embedding(table [entries, width], indices): rows that may be equal are read once at least."""
    table, indices = x.tensor(0), x.tensor(1)
    if table is None or indices is None or len(table.shape) != 2:
        return None
    entries, width = table.shape
    read, written = (
        _result(table, rows * width, table.width)
        for rows in (min(indices.elements, entries), indices.elements)
    )
    return moves("embedding", 0, None, [read, indices], [written])


def _embedding_backward(x: Inputs) -> OperatorWork | None:
    """embedding_dense_backward(dy, indices, entries, …): the whole table's gradient is written."""
    dy, indices, entries = x.tensor(0), x.tensor(1), x.integer(2)
    if dy is None or indices is None or entries is None or not dy.shape or entries < 0:
        return None
    table = _result(dy, entries * dy.shape[-1], dy.width)
    return moves("embedding", dy.elements, dy, [dy, indices], [table])


FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {
        **{f"aten::{n}": _arithmetic(each) for n, each in OPERATIONS.items()},
        **{f"aten::{n}_": _arithmetic(each, in_place=True) for n, each in OPERATIONS.items()},
        **{f"aten::{n}": _arithmetic(1, out_width=1) for n in _COMPARISONS},
        **{f"aten::{n}_": _arithmetic(1, in_place=True) for n in _COMPARISONS},
        "aten::cumsum": _arithmetic(1),
        "aten::native_dropout": _dropout,
        "aten::native_dropout_backward": _arithmetic(2),
        "aten::copy_": _to_first("copy", 0),
        "aten::fill_": _fill,
        "aten::zero_": _fill,
        **{f"aten::{n}": _reduced(1, 1) for n in ("sum", "mean", "amax", "amin", "argmax", "argmin")},
        **{f"aten::{n}": _reduced(1, None) for n in ("any", "all")},
        **{f"aten::{n}": _reduced(2, 2) for n in ("linalg_vector_norm", "norm")},
        "aten::logsumexp": _reduced(4, 1),
        # (x, normalized_shape, weight, bias, eps); (dy, x, normalized_shape, mean, rstd, weight, bias, mask)
        "aten::native_layer_norm": _Norm(5, (0, 2, 3), (0,), _rows(6, 2)).forward,
        "aten::native_layer_norm_backward": _Norm(9, (0, 1, 5), (1, 5, 6)).backward,
        "aten::_fused_rms_norm": _Norm(4, (0, 2), (0,), _rows(2, 2)).forward,
        "aten::_fused_rms_norm_backward": _rms_norm_backward,
        # Of vLLM, SGLang and aiter: (out, x, weight, eps); (out, x, residual, sum, weight, eps); in place
        **{f"{n}norm": _Norm(4, (1, 2), (0,)).forward for n in ("_C::rms_", "sgl_kernel::rms", "aiter::rms")},
        "aiter::add_rmsnorm": _Norm(5, (1, 2, 4), (0, 3)).forward,
        "aiter::rmsnorm2d_fwd_with_add_ck": _Norm(5, (1, 2, 4), (0, 3)).forward,
        "_C::fused_add_rms_norm": _Norm(5, (0, 1, 2), (0, 1)).forward,
        "sgl_kernel::fused_add_rmsnorm": _Norm(5, (0, 1, 2), (0, 1)).forward,
        **dict.fromkeys(("_C::silu_and_mul", "sgl_kernel::silu_and_mul"), _to_first("elementwise", 5)),
        # (x, weight, bias, N, C, HxW, group, eps); (dy, x, mean, rstd, weight, …)
        "aten::native_group_norm": _Norm(5, (0, 1, 2), (0,), _groups).forward,
        "aten::native_group_norm_backward": _Norm(9, (0, 1, 4), (1, 4, 4)).backward,
        **{f"aten::{n}_batch_norm": _batch_norm() for n in ("native", "cudnn", "miopen")},
        "aten::_batch_norm_with_update": _batch_norm(always_trains=True),
        # (dy, x, weight, …), of MIOpen (x, dy, weight, …)
        **{
            f"aten::{n}_batch_norm_backward": _Norm(9, (0, 1, 2), (1, 2, 2)).backward
            for n in ("native", "cudnn")
        },
        "aten::miopen_batch_norm_backward": _Norm(9, (0, 1, 2), (0, 2, 2)).backward,
        **dict.fromkeys(("aten::_softmax", "aten::_log_softmax"), _softmax),
        **{f"aten::_{log}softmax_backward_data": _softmax_backward for log in ("", "log_")},
        "aten::nll_loss_forward": _nll(0, 1),
        "aten::nll_loss_backward": _nll(1, 2),
        "aten::embedding": _embedding,
        "aten::embedding_dense_backward": _embedding_backward,
    }
)
"""By name of the operator."""
