"""One result model: what is measured is made as it is published."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass

FEWEST = 3
"""Fields: of two, classes may be alike by chance."""

ROOMS = ("analyzers", "simulator", "rules", "reports", "knobs", "diagnose", "compare", "export")
"""That may import `results`; `traces`, which may not, has its own type of a note and of a GPU."""


def dataclasses_of(room: str) -> Iterator[tuple[str, frozenset[str]]]:
    """(name, names of the fields, inherited ones among them) of every dataclass that a room defines."""
    package = importlib.import_module(f"perfdoc.{room}")
    for found in pkgutil.walk_packages(package.__path__, f"perfdoc.{room}."):
        for made in vars(importlib.import_module(found.name)).values():
            if isinstance(made, type) and is_dataclass(made) and made.__module__ == found.name:
                yield f"{found.name}.{made.__qualname__}", frozenset(f.name for f in fields(made))


def test_no_class_is_one_of_the_result_over_again() -> None:
    published = {names: where for where, names in dataclasses_of("results") if len(names) >= FEWEST}
    assert len(published) > 70
    mirrored = [
        f"{where} is {published[names]}"
        for room in ROOMS
        for where, names in dataclasses_of(room)
        if names in published
    ]
    assert not mirrored, "\n".join(mirrored)
