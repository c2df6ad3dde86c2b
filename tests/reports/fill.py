"""Dataclasses of the contract filled by their types: a result that was not measured, hostile strings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

T = TypeVar("T")
hints_of = cache(get_type_hints)
"""Evaluated once for a type: a diagnosis of many ranks asks thousands of times."""


@cache
def _empty(hint: Any) -> Callable[[str, str], Any]:
    """What makes an empty one for a reason and a remedy."""
    if NoneType in get_args(hint):
        return lambda *_: None
    if get_origin(hint) is Literal:
        word = "not_measured" if "not_measured" in get_args(hint) else get_args(hint)[-1]
        return lambda *_: word
    if is_dataclass(hint) and isinstance(hint, type):
        return partial(missing, hint)
    return lambda *_: (get_origin(hint) or hint)()


def missing(kind: type[T], reason: str, remedy: str = "") -> T:
    """A result of the kind that was not measured: figures are None, lists are empty."""
    return filled(kind, reason=reason, remedy=remedy)


def filled(kind: type[T], *, reason: str = "", remedy: str = "", **given: object) -> T:
    """One of the kind with what is given, and all other fields empty or not measured for the reason."""
    said = {"reason": reason, "remedy": remedy, **given}
    hints = hints_of(kind)
    values = {n: said[n] if n in said else _empty(hint)(reason, remedy) for n, hint in hints.items()}
    return kind(**values)


def _with(value: Any, hint: Any, text: str) -> Any:
    arguments = get_args(hint)
    if isinstance(value, str):
        return text if hint is str or str in arguments else value
    if isinstance(value, list):
        return [_with(item, arguments[0], text) for item in value]
    if isinstance(value, dict):
        return {_with(key, arguments[0], text): _with(v, arguments[1], text) for key, v in value.items()}
    return with_text(value, text) if is_dataclass(value) else value


def with_text(value: T, text: str) -> T:
    """The dataclass with every string that may come from outside as `text`, at any depth; of a closed set of
    words (Literal) each stays as it is."""
    hints = hints_of(type(value))
    changes = {f.name: _with(getattr(value, f.name), hints[f.name], text) for f in fields(value)}  # type: ignore[arg-type]
    return replace(value, **changes)  # type: ignore[type-var]
