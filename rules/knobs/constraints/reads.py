"""Which knobs a constraint reads, found in its code, so that nobody has to keep a list beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from perfdoc.rules.knobs.constraints.constraint import Constraint
from perfdoc.rules.knobs.load import catalogue

_TP, _PP, _CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
_DEGREES = {
    "tp": (_TP,),
    "pp": (_PP,),
    "vpp": ("virtual_pipeline_model_parallel_size",),
    "cp": (_CP,),
    "ep": ("expert_model_parallel_size",),
    "etp": ("expert_tensor_parallel_size", _TP),
    "dp": ("data_parallel_size", "world_size", _TP, _PP, _CP),
}
"""Short names of a View."""


@cache
def knobs_of(constraint: Constraint) -> frozenset[str]:
    """Ids of every knob and fact that the constraint may read, and of those that mend it."""
    mended = {name for name, _ in constraint.fix}
    return frozenset({constraint.subject, *mended, *_read_by(constraint.broken, set())})


def _read_by(function: Callable[..., Any], seen: set[int]) -> Iterator[str]:
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    values: list[Any] = [*cells, *(function.__defaults__ or ())]
    for code in _codes(function.__code__):
        values += code.co_consts
        for name in code.co_names:
            yield from _DEGREES.get(name, ())
            if name in function.__globals__:
                values.append(function.__globals__[name])
    for value in values:
        if isinstance(value, str):
            if value in catalogue():
                yield value
        elif isinstance(value, FunctionType):
            if value.__module__.startswith(_HERE):
                yield from _read_by(value, seen)
        elif isinstance(value, (tuple, frozenset)):
            yield from (v for v in value if isinstance(v, str) and v in catalogue())


def _codes(code: CodeType) -> Iterator[CodeType]:
    """A function's code and that of the comprehensions and lambdas inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _codes(inner)


_HERE = __name__.rpartition(".")[0]
