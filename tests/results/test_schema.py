"""The contract: schemas are files with versions, and no class is another one over again."""

from __future__ import annotations

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from perfdoc import results
from perfdoc.compare.diff import result as diff
from perfdoc.tune import result as tune

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "diagnosis": ROOT / "results" / "diagnosis.schema.json",
    "diff": ROOT / "src" / "perfdoc" / "compare" / "diff" / "diff.schema.json",
    "tune": ROOT / "src" / "perfdoc" / "tune" / "tune.schema.json",
}
MADE = {"diagnosis": results.json_schema, "diff": diff.json_schema, "tune": tune.json_schema}
VERSIONS = {
    "diagnosis": results.SCHEMA_VERSION,
    "diff": diff.SCHEMA_VERSION,
    "tune": tune.SCHEMA_VERSION,
}
DIGESTS = {
    ("diagnosis", "1.3"): "a3f951953b12bcd4",
    ("diagnosis", "1.4"): "b760b3844667e848",
    ("diagnosis", "1.5"): "62bbb26fce03b1fe",
    ("diagnosis", "1.6"): "5ee824cde2afafab",
    ("diagnosis", "1.7"): "2425c4df0bcbb01c",
    ("diagnosis", "1.8"): "ddabccf4a9ba1439",
    ("diagnosis", "1.9"): "e23c006c25d42b0b",
    ("diagnosis", "1.10"): "9c3702d12665d4f3",
    ("diagnosis", "1.11"): "2a720a21d794c32d",
    ("diagnosis", "1.12"): "b8b56d2ed578f7c3",
    ("diagnosis", "1.13"): "5702d1c7efdf1537",
    ("diagnosis", "1.14"): "7e0a116f2bd6e282",
    ("diagnosis", "1.15"): "9b215a4c615a2d58",
    ("diagnosis", "1.16"): "a1f82d7b8a140dc9",
    ("diagnosis", "1.17"): "bdad1d6e175e5129",
    ("diagnosis", "1.18"): "9cb493c76653d6ac",
    ("diagnosis", "1.19"): "aefbd386561c4a96",
    ("diagnosis", "1.20"): "cb050233fdb21718",
    ("diff", "1.0"): "8a534ab843c86f01",
    ("diff", "1.1"): "347176efd79c7f77",
    ("tune", "1.0"): "a330cf92edbcc909",
}
"""Of each version that was published, without its words. What was published stays as it is: raise
SCHEMA_VERSION and add a line."""


def shape(found: Any, defined: dict[str, Any]) -> Any:
    """A schema without its words: docstrings and names of classes may change."""
    if isinstance(found, list):
        return [shape(value, defined) for value in found]
    if not isinstance(found, dict):
        return found
    if isinstance(name := found.get("$ref"), str):
        return shape(defined[name.removeprefix("#/$defs/")], defined)
    words = {key for key in ("title", "description") if isinstance(found.get(key), str)}
    return {key: shape(value, defined) for key, value in found.items() if key not in words}


def digest(schema: dict[str, Any]) -> str:
    made = json.dumps(shape({"$ref": schema["$ref"]}, schema["$defs"]), sort_keys=True)
    return hashlib.sha256(made.encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_the_schema_of_the_types(name: str) -> None:
    assert json.loads(FILES[name].read_bytes()) == MADE[name](), f"{FILES[name].name} is stale: make docs"


@pytest.mark.parametrize("name", FILES)
def test_another_schema_has_another_version(name: str) -> None:
    found, version = digest(json.loads(FILES[name].read_bytes())), (name, VERSIONS[name])
    assert version in DIGESTS, f"a new version: add the line {version!r}: {found!r} to DIGESTS"
    assert found == DIGESTS[version], "the schema is another: raise its SCHEMA_VERSION"


ADDED_TYPES = {
    *("Contradiction", "DataPauses", "EventCounts", "MessageSizes", "Opportunity", "Pause", "Period"),
    *("ClassEfficiency", "KernelEfficiency", "Loss", "OperatorEfficiency"),
    *("JobModelAnalysis", "LateRank", "ModelledStage", "OptimizerLoop"),
    *("AttentionScores", "UnfusedAttention"),
    *("AllToAll", "AllToAllBalance", "AllToAllRow", "CollectiveSize", "CopyRow", "GpuMetrics"),
    *("MetricMean", "RangeRow", "RangeTable", "Tables"),
    *(
        "RangeProposal",
        "Setting",
        "Role",
        "RoleDeviation",
        "RoleOutlier",
        "RolePlaces",
        "RoleShare",
        "RolesAnalysis",
    ),
    *("StartUp", "SuspectedCommunication", "SuspectedKernel", "ThreadWait"),
    *("WhatIfAnalysis", "WhatIfCause", "WhatIfPart"),
}
"""Since 1.3. What holds them has a default for them."""


def test_what_was_stored_under_this_major_version_is_read() -> None:
    """A new field of an old type has a default, else `diff` and --baseline refuse stored diagnoses."""
    defined = json.loads(FILES["diagnosis"].read_bytes())["$defs"]
    assert defined.keys() > ADDED_TYPES
    required = {n: sorted(each.get("required", ())) for n, each in defined.items() if n not in ADDED_TYPES}
    found = hashlib.sha256(json.dumps(required, sort_keys=True).encode()).hexdigest()[:16]
    assert (results.SCHEMA_VERSION.partition(".")[0], found) == ("1", "c0a85f080ebe2e45"), (
        "give the new field a default, or name the new type in ADDED_TYPES; else raise the major version"
    )


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
    frozenset({"traces.kineto.document._File", "traces.kineto.document.Facts"}): "its raw form",
    frozenset({"results.contention.DeviceContention", "results.contention.NormContentionAnalysis"}): (
        "published, of one device and of all: a common base would change the order of the file's keys"
    ),
    frozenset({"results.quality.Measured", "results.quality.NotMeasured"}): "two types of the schema",
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
