"""Frozen dataclasses with names for all arguments, made without a compiler run each.

The standard library compiles six methods for each class while a module is imported, 0.8 ms: a quarter of a
small analysis, which makes objects of some of the 500 classes and compares or prints hardly any. Here fields
are the standard library's, `__init__` is compiled when the first object is made, and the rest are functions
that go through the fields. Other kinds of dataclasses are made as ever.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, **options: bool) -> Any:
        """As dataclasses.dataclass."""
        if {**options, "eq": True} != {"frozen": True, "kw_only": True, "eq": True}:
            return dataclasses.dataclass(cls, **options)
        return lambda made: _record(made, compared=options.get("eq", True))


_UNSET = object()


def _record(cls: type, *, compared: bool) -> type:
    own = frozenset(name for name, value in cls.__dict__.items() if value is not None)
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # else the standard library writes the signature
    dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=True)(cls)
    methods = {"__init__": _made_later(cls), "__repr__": _shown(cls), **_frozen(cls)}
    if compared:
        methods |= _compared(cls)
    for name, method in methods.items():
        if name not in own:
            method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
            setattr(cls, name, method)
    return cls


def _made_later(cls: Any) -> Callable[..., None]:
    def init(self: Any, /, *args: Any, **given: Any) -> None:
        cls.__init__ = _init_of(cls)
        cls.__init__(self, *args, **given)

    return init


def _init_of(cls: type) -> Callable[..., None]:
    """What sets the fields of a new object and then calls `__post_init__`, if there is one."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_UNSET": _UNSET}
    by_place: list[str] = []
    by_name: list[str] = []
    lines: list[str] = []
    for field in dataclasses.fields(cls):
        name = parameter = value = field.name
        if field.default_factory is not dataclasses.MISSING:
            known[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_UNSET"
            value = f"_make_{name}() if {name} is _UNSET else {name}"
        elif field.default is not dataclasses.MISSING:
            known[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
        if field.init:
            (by_name if field.kw_only else by_place).append(parameter)
            lines.append(f"_set(self, {name!r}, {value})")
        elif field.default_factory is not dataclasses.MISSING:
            lines.append(f"_set(self, {name!r}, _make_{name}())")
    if hasattr(cls, "__post_init__"):
        lines.append("self.__post_init__()")
    parameters = ", ".join(["self", *by_place, *(["*", *by_name] if by_name else [])])
    body = "\n  ".join(lines or ["pass"])
    exec(f"def __init__({parameters}):\n  {body}", known)
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _frozen(cls: Any) -> dict[str, Callable[..., Any]]:
    def set_(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def delete(self: Any, name: str) -> None:
        if type(self) is cls or name in cls.__dataclass_fields__:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": set_, "__delattr__": delete}


def _shown(cls: Any) -> Callable[..., str]:
    def shown(self: Any) -> str:
        names = [field.name for field in dataclasses.fields(cls) if field.repr]
        return f"{type(self).__qualname__}({', '.join(f'{n}={getattr(self, n)!r}' for n in names)})"

    return shown


def _compared(cls: Any) -> dict[str, Callable[..., Any]]:
    @cache
    def names() -> tuple[str, ...]:
        return tuple(field.name for field in dataclasses.fields(cls) if field.compare)

    def values(self: Any) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in names()])

    def equal(self: Any, other: object) -> Any:
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    def hashed(self: Any) -> int:
        return hash(values(self))

    return {"__eq__": equal, "__hash__": hashed}
