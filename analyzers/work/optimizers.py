"""Updates of many tensors in one kernel: fused optimizers and PyTorch's foreach operators.

Adam takes 14 operations for every parameter (weight decay 1, first moment 3, second moment 4, denominator 3,
update 3); it reads the parameter, its gradient and two moments and writes all but the gradient. A capture
does not say the element types of lists; the kernel's name does, where one type serves all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from perfdoc.analyzers.work.inputs import Inputs, Tensor
from perfdoc.analyzers.work.memory_bound import OPERATIONS, moves
from perfdoc.analyzers.work.operator_work import Formula, Kind, OperatorWork

_ON_LISTS = (
    *("add", "sub", "mul", "div", "neg", "abs", "exp", "log", "sqrt", "reciprocal"),
    *("addcmul", "addcdiv", "lerp", "pow", "maximum", "minimum", "sigmoid", "rsqrt"),
)


def _on_lists(
    kind: Kind, each: int, read: Sequence[Sequence[Tensor]], written: Sequence[Sequence[Tensor]]
) -> OperatorWork | None:
    """None where the lists that are read are not equally long."""
    if not read or not read[0] or any(len(tensors) != len(read[0]) for tensors in read):
        return None
    flops = each * sum(t.elements for t in read[0])
    inputs, outputs = ([t for tensors in lists for t in tensors] for lists in (read, written))
    return moves(kind, flops, read[0][0], inputs, outputs)


def _adam(x: Inputs) -> OperatorWork | None:
    """_fused_adam_(parameters, gradients, moments, second moments, largest second moments, steps, …)."""
    lists = [x.listed(i) for i in range(4)]
    largest = [each] if len(each := x.listed(4)) == len(lists[0]) else []
    written = (lists[0], lists[2], lists[3], *largest)
    return _on_lists("optimizer", 14 + len(largest), (*lists, *largest), written)


def _sgd(x: Inputs) -> OperatorWork | None:
    """_fused_sgd_(parameters, gradients, momenta, …): 2 operations, with momentum 4."""
    parameters, gradients, momenta = (x.listed(i) for i in range(3))
    moments = [momenta] if len(momenta) == len(parameters) else []
    read, written = (parameters, gradients, *moments), (parameters, *moments)
    return _on_lists("optimizer", 4 if moments else 2, read, written)


def _foreach(each: int) -> Formula:
    """Element-wise on lists: the result is as large as the first."""

    def work(x: Inputs) -> OperatorWork | None:
        lists = [tensors for i in range(x.count) if (tensors := x.listed(i))]
        return _on_lists("optimizer", each, lists, lists[:1])

    return work


def _foreach_norm(x: Inputs) -> OperatorWork | None:
    return _on_lists("optimizer", 2, [x.listed(0)], [])


def _foreach_copy(x: Inputs) -> OperatorWork | None:
    """_foreach_copy_(to, from)."""
    to, source = x.listed(0), x.listed(1)
    return _on_lists("copy", 0, [source], [to]) if len(to) == len(source) else None


def _foreach_zero(x: Inputs) -> OperatorWork | None:
    tensors = x.listed(0)
    return moves("copy", 0, None, [], tensors) if tensors else None


def _concatenated(x: Inputs) -> OperatorWork | None:
    parts = x.listed(0)
    return moves("copy", 0, None, parts, parts) if parts else None


FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {
        **dict.fromkeys(("aten::_fused_adam_", "aten::_fused_adamw_"), _adam),
        "aten::_fused_sgd_": _sgd,
        **{f"aten::_foreach_{n}{place}": _foreach(OPERATIONS[n]) for n in _ON_LISTS for place in ("", "_")},
        "aten::_foreach_norm": _foreach_norm,
        "aten::_foreach_copy_": _foreach_copy,
        "aten::_foreach_zero_": _foreach_zero,
        "aten::cat": _concatenated,
    }
)
"""By name of the operator."""
