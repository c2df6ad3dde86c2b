"""The knobs that a rule can advise, read from its code: every `advise(knob=…)` that it reaches."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from types import FunctionType, ModuleType

from perfdoc.knobs.load import catalogue
from perfdoc.rules.engine.rule import Rule

_FACTS = "perfdoc.rules.facts."


@cache
def advisable(rule: Rule) -> Sequence[str]:
    """Canonical ids in the order of the code; those of functions that it calls in `rules/facts` included.

    Where the knob is a variable, all knobs that the function, or a table that it reads, names.
    """
    module = sys.modules[rule.evaluate.__module__]
    found: dict[str, None] = {}
    seen: set[str] = set()
    todo = [
        f for f in vars(module).values() if isinstance(f, FunctionType) and f.__module__ == module.__name__
    ]
    while todo:
        function = todo.pop(0)
        key = f"{function.__module__}.{function.__qualname__}"
        if key in seen or not function.__module__.startswith((module.__name__, _FACTS)):
            continue
        seen.add(key)
        home = sys.modules[function.__module__]
        found.update(dict.fromkeys(_advised_in(function, home)))
        names = (node.id for node in ast.walk(_tree(function)) if isinstance(node, ast.Name))
        todo += [f for name in names if isinstance(f := getattr(home, name, None), FunctionType)]
    return [*found]


@cache
def _tree(function: FunctionType) -> ast.AST:
    return ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))


def _advised_in(function: FunctionType, home: ModuleType) -> Iterator[str]:
    for node in ast.walk(_tree(function)):
        if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "advise":
            continue
        knob = next(k.value for k in node.keywords if k.arg == "knob")
        if isinstance(knob, ast.Constant):
            yield str(knob.value)
        elif isinstance(knob, ast.Name) and isinstance(value := getattr(home, knob.id, None), str):
            yield value
        else:
            yield from _named(function, home)


def _named(function: FunctionType, home: ModuleType) -> Iterator[str]:
    """Knobs that a function names, reads from tables of its module, or gets from functions that make
    settings; what it only asks the case for is left out."""
    known = catalogue()
    asked = {id(arg) for node in ast.walk(_tree(function)) if _asks(node) for arg in node.args}  # type: ignore[attr-defined]
    for node in ast.walk(_tree(function)):
        if id(node) in asked:
            continue
        if isinstance(node, ast.Constant) and node.value in known:
            yield str(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [re.escape(str(p.value)) if isinstance(p, ast.Constant) else r"\w+" for p in node.values]
            yield from (one for one in known if re.fullmatch("".join(parts), one))
        elif isinstance(node, ast.Name):
            value = getattr(home, node.id, None)
            if isinstance(value, FunctionType) and "dict[str" in str(value.__annotations__.get("return")):
                yield from _named(value, sys.modules[value.__module__])
            elif not isinstance(value, FunctionType | ModuleType | type):
                yield from (one for one in _strings(value) if one in known)


def _asks(node: ast.AST) -> bool:
    """A question to the case, such as `case.setting(…)`."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (getattr(node.func.value, "id", "") == "case")
    )


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple | list | frozenset | set):
        for one in sorted(value, key=str) if isinstance(value, frozenset | set) else value:
            yield from _strings(one)
    elif hasattr(value, "items"):
        for pair in value.items():
            yield from _strings(pair)
    elif hasattr(value, "__dataclass_fields__"):
        for field in value.__dataclass_fields__:
            yield from _strings(getattr(value, field))
