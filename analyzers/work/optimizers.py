"""Updates of many tensors in one kernel: fused optimizers and PyTorch's foreach operators.

Adam takes 14 operations for every parameter (weight decay 1, first moment 3, second moment 4, denominator 3,
update 3); it reads the parameter, its gradient and two moments and writes all but the gradient. A capture
does not say the element types of lists; the kernel's name does, where one type serves all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from perfdoc.analyzers.work.elementwise import OPERATIONS
from perfdoc.analyzers.work.inputs import Inputs, Tensor
from perfdoc.analyzers.work.operator_work import (
    Formula,
    Kind,
    OperatorWork,
    bytes_of,
    total_bytes,
    vector_dtype,
)


def _over(
    lists: Sequence[Sequence[Tensor]], each: int, written: Sequence[Sequence[Tensor]], kind: Kind
) -> OperatorWork | None:
    """Every list is read, some are written."""
    if not lists or not lists[0]:
        return None
    return OperatorWork(
        flops=each * sum(t.elements for t in lists[0]),
        bytes=total_bytes(bytes_of(*tensors) for tensors in (*lists, *written)),
        dtype=vector_dtype(lists[0][0].dtype),
        kind=kind,
    )


def _adam(x: Inputs) -> OperatorWork | None:
    """_fused_adam_(parameters, gradients, moments, second moments, largest second moments, steps, …)."""
    lists = [x.listed(i) for i in range(4)]
    if any(len(each) != len(lists[0]) for each in lists):
        return None
    largest = [each] if len(each := x.listed(4)) == len(lists[0]) and each else []
    return _over((*lists, *largest), 14 + len(largest), (lists[0], lists[2], lists[3], *largest), "optimizer")


def _sgd(x: Inputs) -> OperatorWork | None:
    """_fused_sgd_(parameters, gradients, momenta, …): 2 operations, with momentum 4."""
    parameters, gradients, momenta = (x.listed(i) for i in range(3))
    if len(parameters) != len(gradients):
        return None
    kept = [momenta] if len(momenta) == len(parameters) else []
    return _over((parameters, gradients, *kept), 4 if kept else 2, (parameters, *kept), "optimizer")


def _foreach(each: int, in_place: bool) -> Formula:
    """Element-wise on lists: the first is the result's size, and in place the result."""

    def work(x: Inputs) -> OperatorWork | None:
        lists = [found for i in range(x.count) if (found := x.listed(i))]
        if not lists or any(len(found) != len(lists[0]) for found in lists):
            return None
        return _over(lists, each, (lists[0],), "optimizer")

    return work


def _foreach_norm(x: Inputs) -> OperatorWork | None:
    return _over([x.listed(0)], 2, (), "optimizer")


def _foreach_copy(x: Inputs) -> OperatorWork | None:
    """_foreach_copy_(to, from)."""
    to, source = x.listed(0), x.listed(1)
    return _over([source], 0, (to,), "copy") if len(to) == len(source) else None


def _foreach_zero(x: Inputs) -> OperatorWork | None:
    tensors = x.listed(0)
    if not tensors:
        return None
    return OperatorWork(flops=0, bytes=bytes_of(*tensors), dtype="unknown", kind="copy")


_FOREACH: Mapping[str, int] = MappingProxyType(
    {n: OPERATIONS[n] for n in ("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "reciprocal")}
    | {
        n: OPERATIONS[n]
        for n in ("addcmul", "addcdiv", "lerp", "pow", "maximum", "minimum", "sigmoid", "rsqrt")
    }
)

FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(("aten::_fused_adam_", "aten::_fused_adamw_"), _adam),
    "aten::_fused_sgd_": _sgd,
    **{f"aten::_foreach_{n}": _foreach(each, False) for n, each in _FOREACH.items()},
    **{f"aten::_foreach_{n}_": _foreach(each, True) for n, each in _FOREACH.items()},
    "aten::_foreach_norm": _foreach_norm,
    "aten::_foreach_copy_": _foreach_copy,
    "aten::_foreach_zero_": _foreach_zero,
}
