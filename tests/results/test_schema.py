"""The contract: schemas are files with versions, and no class is another one over again."""

from __future__ import annotations

import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import combinations
from typing import Any

import msgspec
import pytest

from perfdoc import results
from tests.results.published import FILES, MADE, VERSIONS, digest, published, required


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_the_schema_of_the_types(name: str) -> None:
    assert json.loads(FILES[name].read_bytes()) == MADE[name](), f"{FILES[name].name} is stale: make docs"


PUBLISHED = published()


@pytest.mark.parametrize("name", FILES)
def test_another_schema_has_another_version(name: str) -> None:
    version = f"{name} {VERSIONS[name]}"
    assert version in PUBLISHED.digests, f"{version} is new: make docs"
    assert digest(json.loads(FILES[name].read_bytes())) == PUBLISHED.digests[version], (
        "the schema is another: raise its SCHEMA_VERSION, then make docs. Where this version is not on main "
        "yet: git checkout main tests/results/published.json, then make docs"
    )


def test_what_was_stored_under_this_major_version_is_read() -> None:
    """A new field of an old type has a default, else `diff` refuses stored diagnoses."""
    assert results.SCHEMA_VERSION.partition(".")[0] == "1"
    now = required()
    new = {
        name: fields
        for name, old in PUBLISHED.required.items()
        if (fields := set(now.get(name, "").split()) - set(old.split()))
    }
    assert new == {}, "give the new field a default; else raise the major version"


FEWEST = 3
"""Fields: of two, classes may be alike by chance."""
ALIKE_FRAC = 0.8
"""Of the fields of the larger class."""

ROOMS = ("results", "profiling", "knobs", "traces", "analyzers", "simulator", "rules", "reports") + (
    *("diagnose", "compare", "run", "export", "redact", "doctor"),
)

FOREIGN = {"transformers", "lightning"}
"""Trainers that a module of callbacks is for; they need not be installed."""

ALLOWED = {
    frozenset({"traces.model.Note", "results.quality.Quality"}): "traces may not import results",
    frozenset({"traces.model.ApiCalls", "traces.more_tables.OsCalls"}): "columns of two tables",
    frozenset({"results.contention.DeviceContention", "results.contention.NormContentionAnalysis"}): (
        "published, of one device and of all: a common base would change the order of the file's keys"
    ),
}


def is_record(made: Any) -> bool:
    return isinstance(made, type) and (is_dataclass(made) or issubclass(made, msgspec.Struct))


def types_of(made: type) -> Mapping[str, str]:
    """The type of each field, as it is written."""
    if is_dataclass(made):
        return {f.name: str(f.type) for f in fields(made)}
    return {f.name: str(made.__annotations__.get(f.name)) for f in msgspec.structs.fields(made)}


def records() -> Iterator[tuple[str, type, Mapping[str, str]]]:
    """Name, class and fields, inherited ones among them, of every record that has enough of them."""
    for room in ROOMS:
        package = importlib.import_module(f"perfdoc.{room}")
        for found in pkgutil.walk_packages(package.__path__, f"perfdoc.{room}."):
            try:
                module = importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                if error.name not in FOREIGN:
                    raise
                continue
            for made in vars(module).values():
                if is_record(made) and made.__module__ == found.name and len(types_of(made)) >= FEWEST:
                    yield f"{found.name}.{made.__qualname__}".removeprefix("perfdoc."), made, types_of(made)


def alike(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """The same names, or most of the names of which half have the same type.

    A row and the columns of its table have names in common and no type.
    """
    if one.keys() == other.keys():
        return True
    shared = one.keys() & other.keys()
    same = sum(one[name].split(".")[-1] == other[name].split(".")[-1] for name in shared)
    return len(shared) >= ALIKE_FRAC * max(len(one), len(other)) and same >= len(shared) / 2


def related(one: type, other: type) -> bool:
    """Whether what they have in common is written once, in one of them or in a record that both extend."""
    both = [c for c in one.__mro__ if c in other.__mro__ and is_record(c)]
    return any(types_of(c).keys() >= types_of(one).keys() & types_of(other).keys() for c in both)


def twins(found: list[tuple[str, type, Mapping[str, str]]]) -> set[frozenset[str]]:
    return {
        frozenset({a, b})
        for (a, one, left), (b, other, right) in combinations(found, 2)
        if alike(left, right) and not related(one, other)
    }


def test_no_class_is_another_one_over_again() -> None:
    found = list(records())
    assert len(found) > 250
    mirrored = twins(found)
    assert mirrored <= ALLOWED.keys(), sorted(map(sorted, mirrored - ALLOWED.keys()))
    assert ALLOWED.keys() <= mirrored, "an exception that is none any more"
