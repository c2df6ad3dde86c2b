"""Conditions of constraints: expressions over settings, in a small part of Python's syntax.

`tp > 1 and num_layers % pp != 0`. A setting is a switch that is on where a truth is asked, a whole number
where one is computed or ordered, and its value in other comparisons. Only what is listed here is understood,
and nothing is evaluated by Python.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal

from perfdoc.knobs.configuration import Undecided, View
from perfdoc.knobs.load import catalogue
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass

Test = Callable[[View], Any]
"""Raises Undecided where a setting that it needs is unknown."""
_As = Literal["truth", "number", "value"]

_TP, _PP, _CP = "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"
_DEGREES: Mapping[str, tuple[Test, tuple[str, ...]]] = MappingProxyType(
    {
        "tp": (lambda v: v.tp, (_TP,)),
        "pp": (lambda v: v.pp, (_PP,)),
        "vpp": (lambda v: v.vpp, ("virtual_pipeline_model_parallel_size",)),
        "cp": (lambda v: v.cp, (_CP,)),
        "ep": (lambda v: v.ep, ("expert_model_parallel_size",)),
        "etp": (lambda v: v.etp, ("expert_tensor_parallel_size", _TP)),
        "dp": (lambda v: v.dp, ("data_parallel_size", "world_size", _TP, _PP, _CP)),
    }
)


def _is_set(v: View, name: str) -> bool:
    try:
        return v(name) is not None
    except Undecided:
        return False


def _count(v: View, name: str) -> int:
    value = v.or_default(name)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Undecided(name)
    return value


def _named_degree(v: View, name: str) -> int:
    """A degree that is 1 where nobody names it."""
    try:
        return v.degree(name)
    except Undecided:
        if name in v.unknown:
            raise
        return 1


def _listed(v: View, name: str) -> tuple[object, ...]:
    value = v.or_default(name)
    return value if isinstance(value, tuple) else ()


_OF_SETTING: Mapping[str, Callable[[View, str], Any]] = MappingProxyType(
    {
        "on": View.on,
        "number": View.number,
        "degree": View.degree,
        "items": View.items,
        "named_on": View.named_on,
        "given": View.is_given,
        "default": View.or_default,
        "is_set": _is_set,
        "count": _count,
        "named_degree": _named_degree,
        "listed": _listed,
        "text": lambda v, name: str(v(name) or "").lower().replace(" ", ""),
    }
)
_OF_VALUES: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {"max": max, "len": len, "prod": lambda values: math.prod(int(str(n)) for n in values)}
)
_WORD = pattern_of(r"'[^']*'|\"[^\"]*\"|([A-Za-z_]\w*)")
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_OPERATORS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = MappingProxyType(
    {
        **{ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge},
        **{ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Is: operator.is_, ast.IsNot: operator.is_not},
        ast.In: lambda a, b: a in b,
        ast.NotIn: lambda a, b: a not in b,
        **{ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul},
        **{ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod},
    }
)


@dataclass(frozen=True, kw_only=True)
class Term:
    """A part of conditions that has a name: an expression, or a function where that says it better."""

    is_: str | Test
    reads: tuple[str, ...] = ()
    """Settings that a function reads."""


def _joined(parts: Sequence[Test], *, decisive: bool) -> Test:
    """`or` (decisive: true) or `and` of the parts: one that is decisive ends it, whatever of the others is
    unknown; what an unknown part has read did not decide anything."""

    def holds(v: View) -> bool:
        unknown: Undecided | None = None
        for part in parts:
            read, assumed = set(v.read), set(v.assumed)
            try:
                if bool(part(v)) is decisive:
                    return decisive
            except Undecided as error:
                v.read, v.assumed = read, assumed
                unknown = unknown or error
        if unknown is not None:
            raise unknown
        return not decisive

    return holds


def compiled(text: str, terms: Mapping[str, Term]) -> Test:
    """Whether it holds, compiled when that is first asked: few of 400 are. Raises ValueError then."""
    test: Test | None = None

    def holds(v: View) -> Any:
        nonlocal test
        test = test or _Compiler(terms=terms).test(_parsed(text), "truth")
        return test(v)

    return holds


def settings_of(text: str, terms: Mapping[str, Term]) -> frozenset[str]:
    """Ids of every setting that the condition may read."""
    found: set[str] = set()
    for word in _WORD.findall(text):
        if word in _DEGREES:
            found.update(_DEGREES[word][1])
        elif word in terms:
            term = terms[word]
            found.update(term.reads, settings_of(term.is_, terms) if isinstance(term.is_, str) else ())
        elif word in catalogue():
            found.add(word)
    return frozenset(found)


def _parsed(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"no condition: {text}") from error


@dataclass(frozen=True, kw_only=True)
class _Compiler:
    terms: Mapping[str, Term]

    def test(self, node: ast.expr, as_: _As) -> Test:
        """The node as a function of a view."""
        if isinstance(node, ast.BoolOp):
            parts = [self.test(part, "truth") for part in node.values]
            return _joined(parts, decisive=isinstance(node.op, ast.Or))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            inner = self.test(node.operand, "truth")
            return lambda v: not inner(v)
        if isinstance(node, ast.Compare):
            return self._comparison(node)
        if isinstance(node, ast.BinOp):
            left, right = self.test(node.left, "number"), self.test(node.right, "number")
            calculate = _OPERATORS[type(node.op)]
            return lambda v: calculate(left(v), right(v))
        if isinstance(node, ast.Name):
            return self._name(node.id, as_)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node.func.id, node.args)
        constant = ast.literal_eval(node)
        return lambda v: constant

    def _comparison(self, node: ast.Compare) -> Test:
        as_: _As = "number" if any(isinstance(op, _ORDERS) for op in node.ops) else "value"
        first = self.test(node.left, as_)
        rest = [
            (_OPERATORS[type(op)], self.test(other, as_))
            for op, other in zip(node.ops, node.comparators, strict=True)
        ]

        def holds(v: View) -> bool:
            left = first(v)
            for compare, other in rest:
                right = other(v)
                if not compare(left, right):
                    return False
                left = right
            return True

        return holds

    def _name(self, name: str, as_: _As) -> Test:
        if name in _DEGREES:
            return _DEGREES[name][0]
        if name in self.terms:
            is_ = self.terms[name].is_
            return self.test(_parsed(is_), as_) if isinstance(is_, str) else is_
        setting = self._setting(name)
        if as_ == "value":
            return lambda v: v(setting)
        return (lambda v: v.on(setting)) if as_ == "truth" else (lambda v: v.number(setting))

    def _call(self, name: str, arguments: list[ast.expr]) -> Test:
        if name in _OF_SETTING and len(arguments) == 1 and isinstance(arguments[0], ast.Name):
            read, setting = _OF_SETTING[name], self._setting(arguments[0].id)
            return lambda v: read(v, setting)
        if name in _OF_VALUES:
            call, values = _OF_VALUES[name], [self.test(a, "number") for a in arguments]
            return lambda v: call(*(value(v) for value in values))
        raise ValueError(f"no function {name}")

    def _setting(self, name: str) -> str:
        if name not in catalogue():
            raise ValueError(f"there is no knob {name}")
        return name
