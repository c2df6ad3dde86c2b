"""Records against the standard library's dataclasses of the same fields."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, field, fields, replace
from functools import cached_property
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc import records

MAKERS = (dataclasses.dataclass, records.dataclass)
VALUES = st.one_of(st.integers(0, 2), st.just(float("nan")), st.sampled_from(["a", "b"]), st.just(()))


def _classes(make: Callable[..., Any]) -> tuple[type, type, type]:
    """A base, what is made from it, and one that compares nothing."""

    @make(frozen=True, kw_only=True)
    class Base:
        a: Any
        b: Any = 1
        more: list[Any] = field(default_factory=list, compare=False)

    @make(frozen=True, kw_only=True)
    class Made(Base):
        """Has a word of its own."""

        c: Any
        hidden: Any = field(default=3, repr=False)
        later: Any = field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "later", (self.a, self.c))

        @cached_property
        def together(self) -> Any:
            return self.a, self.b, self.c

    @make(frozen=True, kw_only=True, eq=False)
    class Apart:
        a: Any = 0

    return Base, Made, Apart


STANDARD, OURS = map(_classes, MAKERS)


@given(st.lists(st.fixed_dictionaries({"a": VALUES, "c": VALUES}, optional={"b": VALUES}), max_size=4))
def test_objects_are_equal_hashed_and_written_as_the_standard_librarys(given: list[dict[str, Any]]) -> None:
    for kind in (0, 1):
        wanted = [{k: v for k, v in g.items() if kind or k != "c"} for g in given]
        theirs, ours = ([kinds[kind](**values) for values in wanted] for kinds in (STANDARD, OURS))
        assert [repr(one) for one in ours] == [repr(one) for one in theirs]
        assert [hash(one) for one in ours] == [hash(one) for one in theirs]
        assert [[x == y for y in ours] for x in ours] == [[x == y for y in theirs] for x in theirs]


@pytest.mark.parametrize(("base", "made", "apart"), [STANDARD, OURS], ids=["standard", "ours"])
def test_an_object_cannot_change_and_a_copy_can_differ(base: type, made: type, apart: type) -> None:
    one = made(a=1, c=2)
    assert (one.b, one.more, one.later, one.together) == (1, [], (1, 2), (1, 1, 2))
    assert one.more is not made(a=1, c=2).more
    assert replace(one, a=5) == made(a=5, c=2) != one
    assert one != base(a=1)
    assert apart() != apart()
    for change in (lambda: setattr(one, "a", 2), lambda: setattr(one, "new", 2), lambda: delattr(one, "a")):
        with pytest.raises(FrozenInstanceError):
            change()
    for wrong in ({}, {"a": 1}, {"a": 1, "c": 2, "later": 3}, {"a": 1, "c": 2, "d": 3}):
        with pytest.raises(TypeError):
            made(**wrong)
    with pytest.raises(TypeError):
        made(1, 2)
    assert [f.name for f in fields(made)] == ["a", "b", "more", "c", "hidden", "later"]


@records.dataclass(frozen=True, kw_only=True)
class Sent:
    """At the top of a module, where pickle finds it."""

    a: int


def test_what_another_process_sends_is_compared_before_any_object_is_made_here() -> None:
    """Unpickling makes an object without a call of `__init__`."""
    empty = object.__new__(Sent)
    empty.__dict__["a"] = 3
    read = pickle.loads(pickle.dumps(empty))
    assert read == empty
    assert hash(read) == hash((3,))
    assert repr(read) == "Sent(a=3)"
    assert read == Sent(a=3)


@pytest.mark.parametrize("make", MAKERS)
def test_fields_in_order_are_taken_once_each_where_names_are_not_asked_for(make: Callable[..., Any]) -> None:
    @make(frozen=True)
    class Pair:
        a: Any
        b: Any = 2

        def __post_init__(self) -> None:
            assert self.b

    assert Pair(1) == Pair(1, 2) == Pair(a=1, b=2) != Pair(1, 3)
    assert (hash(Pair(1)), repr(Pair(1))[-14:]) == (hash(Pair(1, 2)), "Pair(a=1, b=2)")
    assert replace(Pair(1), b=5) == Pair(1, 5)
    for wrong in (lambda: Pair(), lambda: Pair(1, 2, 3), lambda: Pair(1, a=2), lambda: OURS[0](1)):
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(FrozenInstanceError):
        Pair(1).a = 2


@pytest.mark.parametrize("make", MAKERS)
def test_a_class_has_its_defaults_and_is_a_base_of_any_dataclass(make: Callable[..., Any]) -> None:
    @make(frozen=True, kw_only=True)
    class Base:
        x: int = field(default=3, metadata={"unit": "ns"})
        more: list[int] = field(default_factory=list)
        plain: int = 4

    @make(frozen=True, kw_only=True)
    class Again(Base):
        x: int

    @dataclasses.dataclass(frozen=True, kw_only=True, order=True)
    class Ordered(Base):
        y: int

    for _ in range(2):  # before anybody looks at the fields, and then
        assert (Base.x, Base.plain, hasattr(Base, "more"), Again.x) == (3, 4, False, 3)
        assert [f.default for f in fields(Base)] == [3, dataclasses.MISSING, 4]
        assert [f.type for f in fields(Base)] == ["int", "list[int]", "int"]
        assert (fields(Base)[0].metadata["unit"], fields(Base)[0].kw_only) == ("ns", True)
    assert Again() == Again(x=3) != Again(x=4)
    assert Ordered(y=1) < Ordered(y=2) == replace(Ordered(y=1), y=2)


@pytest.mark.parametrize("make", MAKERS)
def test_what_is_not_frozen_can_change_and_is_no_key(make: Callable[..., Any]) -> None:
    @make(kw_only=True)
    class Sum:
        total: int = 0
        of: list[int] = field(default_factory=list)

    @make(kw_only=True, eq=False)
    class Apart:
        name: str

    one, other, apart = Sum(), Sum(total=2, of=[2]), Apart(name="x")
    one.total += 2
    one.of.append(2)
    apart.name = "y"
    assert one == other != Sum()
    assert repr(apart).endswith(".Apart(name='y')")
    with pytest.raises(TypeError):
        hash(one)
    assert len({apart, Apart(name="y")}) == 2
    with pytest.raises(TypeError, match="frozen"):

        @dataclasses.dataclass(frozen=True)
        class Frozen(Sum):
            pass


def test_no_method_of_a_record_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataclasses, "dataclass", None)  # which compiles them
    for options in ({"frozen": True}, {}, {"kw_only": True, "eq": False}):
        kind = records.dataclass(**options)(type("Some", (), {"__annotations__": {"a": int}}))
        assert kind(a=1).a == 1
