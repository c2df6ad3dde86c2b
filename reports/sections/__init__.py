"""Sections of a report, one file each: what an analysis found, as sentences and tables for any renderer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from perfdoc.reports.sections import (
    contention,
    efficiency,
    host,
    job_model,
    kernel_parts,
    memory,
    mfu,
    pipeline,
    ranges,
    replay,
    skew,
    step_times,
    tables,
)
from perfdoc.reports.sections.section import Cell, Grid, Section
from perfdoc.results import Diagnosis

_Builder = Callable[[Diagnosis], Section | None]

_PLACES: Mapping[str, tuple[_Builder, ...]] = MappingProxyType(
    {
        "time": (mfu.build,),
        "communication": (
            ranges.build,
            host.build,
            contention.build,
            pipeline.build,
            job_model.build,
            skew.build,
            kernel_parts.build,
        ),
        "kernels": (efficiency.build, memory.build, replay.build, step_times.build, tables.build),
    }
)
"""In the order of every report, by the part of the page that they follow. Each gives None where its analysis
has no result, and `gaps` says why; or where the result is that there is nothing to look at."""


def sections_by_place(diagnosis: Diagnosis) -> dict[str, list[Section]]:
    """The sections that have something to show, by the part of the page that they follow."""
    return {
        place: [section for build in builders if (section := build(diagnosis)) is not None]
        for place, builders in _PLACES.items()
    }


def sections_of(diagnosis: Diagnosis) -> list[Section]:
    """All of them, in order."""
    return [section for placed in sections_by_place(diagnosis).values() for section in placed]


__all__ = ["Cell", "Grid", "Section", "sections_by_place", "sections_of"]
