"""Sections of a report, one file each: what an analysis found, as sentences and tables for any renderer."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.diagnosis import Diagnosis
from perfdoc.reports.sections import (
    contention,
    host,
    kernel_parts,
    memory,
    mfu,
    pipeline,
    replay,
    skew,
    step_times,
)
from perfdoc.reports.sections.section import Cell, Grid, Section

_BUILDERS: tuple[Callable[[Diagnosis], Section | None], ...] = (
    mfu.build,
    step_times.build,
    host.build,
    skew.build,
    pipeline.build,
    contention.build,
    kernel_parts.build,
    replay.build,
    memory.build,
)
"""In the order of the page. Each gives None where its analysis has no result, and `gaps` says why; or where
the result is that there is nothing to look at."""


def sections_of(diagnosis: Diagnosis) -> list[Section]:
    """The sections that have something to show."""
    return [section for build in _BUILDERS if (section := build(diagnosis)) is not None]


__all__ = ["Cell", "Grid", "Section", "sections_of"]
