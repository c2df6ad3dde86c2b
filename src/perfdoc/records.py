"""Dataclasses, made without a compiler run each.

The standard library compiles six methods for each class while a module is imported, 0.8 ms: a quarter of a
small analysis, which makes objects of some of the 500 classes and compares or prints hardly any. Here fields
are the standard library's, looked for when the first object is made, and all methods are functions that go
through them: as fast as compiled ones, and a compiler run costs as much as a hundred objects. Other kinds of
dataclasses, with slots or an order, are made as ever.
"""

from __future__ import annotations

import dataclasses
import threading
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """As dataclasses.dataclass."""
        if cls is not None or not options.keys() <= {"frozen", "kw_only", "eq"}:
            return dataclasses.dataclass(cls, **options)
        return lambda made: _record(made, **{"frozen": False, "kw_only": False, "eq": True, **options})


_MISSING = dataclasses.MISSING
_MAKING = threading.RLock()
_BARE = {"init": False, "repr": False, "eq": False, "match_args": False}
_BODY = {"__doc__": "As the standard library makes them.", "__annotations__": {"any": object}}
_LIKE: Any = {
    frozen: dataclasses.dataclass(frozen=frozen, **_BARE)(type("_Like", (), dict(_BODY)))
    for frozen in (False, True)
}
_FIELD = _LIKE[True].__dataclass_fields__["any"]._field_type
"""Of a field that is neither a ClassVar nor an InitVar."""


def _record(cls: type, *, frozen: bool, kw_only: bool, eq: bool) -> type:
    own = {name for name, value in cls.__dict__.items() if value is not None}
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # else the standard library writes the signature
    given = {name: value for name, value in cls.__dict__.items() if isinstance(value, dataclasses.Field)}
    for name, field in given.items():  # the class has the default itself, or nothing
        delattr(cls, name) if field.default is _MISSING else setattr(cls, name, field.default)
    type.__setattr__(cls, "__dataclass_fields__", _FieldsLater(cls, kw_only, given))
    # Which the standard library asks of a base.
    type.__setattr__(cls, "__dataclass_params__", _LIKE[frozen].__dataclass_params__)
    methods: dict[str, Any] = {"__init__": _init_of(cls, kw_only), "__repr__": _shown}
    if frozen:
        methods |= {"__setattr__": _set, "__delattr__": _delete}
    if eq:  # what it says may change where it is not frozen
        methods |= {"__eq__": _equal, "__hash__": _hashed if frozen else None}
    for name, method in methods.items():
        if name not in own:
            setattr(cls, name, method)
    return cls


class _FieldsLater:
    """Stands where the standard library looks for a class's fields, until somebody does."""

    def __init__(self, owner: type, kw_only: bool, given: dict[str, Any]) -> None:
        self.owner, self.kw_only, self.given = owner, kw_only, given

    def __get__(self, instance: object, kind: type) -> Any:
        with _MAKING:
            if self.owner.__dict__["__dataclass_fields__"] is self:
                fields = _fields_of(self.owner, self.kw_only, self.given)
                type.__setattr__(self.owner, "__dataclass_fields__", fields)
        return self.owner.__dict__["__dataclass_fields__"]


def _fields_of(cls: type, kw_only: bool, given: dict[str, Any]) -> dict[str, Any]:
    """As the standard library leaves them, whose own look at a class is 3 % of a small analysis: it searches
    the text of each annotation for ClassVar and InitVar, which no record has.

    given: fields that the class was written with.
    """
    found: dict[str, Any] = {}
    for base in cls.__mro__[:0:-1]:
        found |= getattr(base, "__dataclass_fields__", {})
    for name, kind in cls.__annotations__.items():
        field: Any = given.get(name) or dataclasses.field(default=getattr(cls, name, _MISSING))
        field.name, field.type, field._field_type = name, kind, _FIELD
        if field.kw_only is _MISSING:
            field.kw_only = kw_only
        found[name] = field
    return found


def _init_of(cls: Any, kw_only: bool) -> Callable[..., None]:
    """What sets the fields of a new object and then calls `__post_init__`, if there is one."""
    post = hasattr(cls, "__post_init__")

    known: tuple[dict[str, Any], frozenset[str], dict[str, Callable[[], Any]]] | None = None

    def init(self: Any, /, *in_order: Any, **given: Any) -> None:
        nonlocal known
        defaults, needed, made = known = known or _defaults_of(cls)
        if in_order:
            named = dict(zip(defaults, in_order, strict=False))
            if kw_only or len(named) < len(in_order) or named.keys() & given.keys():
                raise TypeError(f"{cls.__qualname__} takes each field once, of {', '.join(defaults)}")
            given |= named
        values = {**defaults, **given}
        if len(values) != len(defaults):
            raise TypeError(f"{cls.__qualname__} has no {', '.join(sorted(given.keys() - defaults.keys()))}")
        if len(given) < len(values):
            if not needed <= given.keys():
                raise TypeError(
                    f"{cls.__qualname__} needs {next(n for n in values if n in needed - given.keys())}"
                )
            for name, make in made.items():
                if name not in given:
                    values[name] = make()
        object.__setattr__(self, "__dict__", values)
        if post:
            self.__post_init__()

    return init


def _defaults_of(cls: Any) -> tuple[dict[str, Any], frozenset[str], dict[str, Callable[[], Any]]]:
    """Of what `__init__` takes: all defaults, which have none, and what makes the others."""
    fields = {name: field for name, field in cls.__dataclass_fields__.items() if field.init}
    made = {n: f.default_factory for n, f in fields.items() if f.default_factory is not _MISSING}
    values = {name: field.default for name, field in fields.items()}
    return values, frozenset(n for n, value in values.items() if value is _MISSING and n not in made), made


# Methods of all records: of each class its own, they took half of what making the classes takes.


def _set(self: Any, name: str, value: Any) -> None:
    _refuse("assign to", self, name)
    object.__setattr__(self, name, value)


def _delete(self: Any, name: str) -> None:
    _refuse("delete", self, name)
    object.__delattr__(self, name)


def _refuse(what: str, one: Any, name: str) -> None:
    """A class made from a record that is none itself may have more than the record has."""
    if "__dataclass_fields__" in type(one).__dict__ or name in type(one).__dataclass_fields__:
        raise dataclasses.FrozenInstanceError(f"cannot {what} field {name!r}")


def _shown(self: Any) -> str:
    names = [field.name for field in dataclasses.fields(self) if field.repr]
    return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"


@cache
def _values_of(cls: Any) -> Callable[[Any], tuple[Any, ...]]:
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    return attrgetter(*names) if len(names) > 1 else lambda one: tuple(getattr(one, n) for n in names)


def _equal(self: Any, other: object) -> Any:
    values = _values_of(self.__class__)
    return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented


def _hashed(self: Any) -> int:
    return hash(_values_of(self.__class__)(self))
