"""The formulas of all operators, by name."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from perfdoc.analyzers.work import attention, convolution, elementwise, gemm, losses, norms, optimizers
from perfdoc.analyzers.work.inputs import Inputs
from perfdoc.analyzers.work.operator_work import Formula, OperatorWork

FORMULAS: Mapping[str, Formula] = MappingProxyType(
    {
        **elementwise.FORMULAS,
        **losses.FORMULAS,
        **norms.FORMULAS,
        **optimizers.FORMULAS,
        **convolution.FORMULAS,
        **gemm.FORMULAS,
        **attention.FORMULAS,
    }
)
"""By name of the operator. Composite ones (`aten::matmul`, `aten::layer_norm`) call others that are here."""

LISTS = frozenset(optimizers.FORMULAS) | {"aten::cat"}
"""Operators on lists of tensors, whose element types are not recorded."""


def operator_work(x: Inputs) -> OperatorWork | None:
    """The work of one call; None where the operator has no formula or its inputs do not determine it."""
    formula = FORMULAS.get(x.name)
    return formula(x) if formula is not None else None
