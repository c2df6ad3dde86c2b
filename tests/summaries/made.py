"""Summaries of captures, and the diagnosis of a set of files, as tests compare them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perfdoc.diagnose.asked import parse_request
from perfdoc.diagnose.diagnosis import diagnosis_of
from perfdoc.diagnose.measuring import measure_all
from perfdoc.results import to_json
from perfdoc.simulator.forward.job import simulate
from perfdoc.simulator.forward.layout import parse_layout
from perfdoc.simulator.forward.writing import write_job
from perfdoc.summaries.writing import Written, summarize
from perfdoc.traces.load import find_captures
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.fuzz import base
from tests.simulator.simulated import DENSE


def simulated(folder: Path, layout: str, ranks: int) -> Path:
    """The traces of a simulated job of so many ranks."""
    job = simulate(DENSE, parse_layout(f"seq=4096,{layout}"), steps=2)
    write_job(job, folder, ranks=range(ranks))
    return folder / "traces"


def two_ranks(folder: Path) -> list[Path]:
    """A small capture of each of two ranks, with something of everything in it."""
    folder.mkdir()
    paths = [folder / f"rank{rank}.sqlite" for rank in range(base.RANKS)]
    for rank, path in enumerate(paths):
        write_nsys_sqlite(base.timeline(rank), path)
    return paths


def summarized(traces: Path, folder: Path, *, ranks: int | None = None, **options: Any) -> list[Written]:
    """Summaries of all captures behind a path, in a folder."""
    folder.mkdir(exist_ok=True)
    request = parse_request([str(traces)], **options, jobs=1)
    return [summarize(c, request, ranks=ranks, folder=folder) for c in find_captures([str(traces)])]


def diagnosed(paths: Sequence[Path], config: Path | None = None, **options: Any) -> bytes:
    """The diagnosis as it is written. Raises what an analysis raises."""
    found = measure_all(parse_request([str(p) for p in paths], config=config, **options, jobs=1))
    if not found.captures:
        raise found.silent[0]
    return to_json(diagnosis_of(found, config)[0])


def renamed(diagnosis: bytes, new: Path, old: Path) -> bytes:
    """With another path for one input; in prose its name stands alone."""
    return diagnosis.replace(str(new).encode(), str(old).encode()).replace(
        new.name.encode(), old.name.encode()
    )


def same(one: Any, two: Any) -> bool:
    """Whether two values are alike in all their parts; a list is as good as a tuple of the same."""
    if isinstance(one, np.ndarray):
        alike = isinstance(two, np.ndarray) and one.dtype == two.dtype and one.shape == two.shape
        return alike and one.tobytes() == two.tobytes()
    if isinstance(one, list | tuple):
        return (
            isinstance(two, list | tuple)
            and len(one) == len(two)
            and all(same(a, b) for a, b in zip(one, two, strict=True))
        )
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[k], two[k]) for k in one)
    names = getattr(one, "__struct_fields__", None) or (
        [f.name for f in dataclasses.fields(one)] if dataclasses.is_dataclass(one) else ()
    )
    if names:
        return all(same(getattr(one, n), getattr(two, n)) for n in names)
    return bool(one == two)
