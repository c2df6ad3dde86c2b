"""What a rule that ties settings together is, and which knobs it reads, found in its code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any, Literal

from perfdoc.knobs.configuration import View
from perfdoc.knobs.knob import Dialect, Value
from perfdoc.knobs.load import catalogue

Kind = Literal["forbidden", "ineffective", "inadvisable"]
"""`forbidden`: refused at start-up, or silently wrong. `ineffective`: changes nothing. `inadvisable`: works,
and costs something."""


@dataclass(frozen=True, kw_only=True)
class Constraint:
    """A Python function of a configuration, with its words. No string of a file is ever evaluated."""

    name: str
    """Stable, for people who look it up or leave it out."""
    subject: str
    """The knob that is to blame."""
    kind: Kind
    broken: Callable[[View], bool]
    """True where the rule is broken. Raises Undecided where a setting that it needs is unknown."""
    rule: str
    """The rule in words."""
    fix: tuple[tuple[str, Value], ...] = ()
    """Settings that mend it; empty where that is the user's to decide."""
    needs_companion: bool = False
    """The subject is useless without another setting that is off by default, so that it is worth a note even
    where a recipe may have set it."""
    gpu_decides: bool = False
    """Whether it holds follows from the GPU, of which no file tells: a note, not an error."""
    dialects: tuple[Dialect, ...] = ()
    """Where it holds; everywhere if empty."""


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
