"""Kernel time by class, and the kernels that take most of it."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.reports.sections.section import (
    Cell,
    Grid,
    Section,
    Stretch,
    count,
    grid_of,
    name,
    share,
    time,
    word,
)
from perfdoc.results import Diagnosis, KernelsAnalysis, figures
from perfdoc.results.names import prose, shorten

_TOP = 100
_NAMED = 3
"""Classes that the first sentence names."""


def build(diagnosis: Diagnosis) -> Section | None:
    """None without ranks."""
    kernels = diagnosis.analyses.kernels
    if not diagnosis.ranks:
        return None
    if kernels.state != "measured":
        return Section(key="kernels", title="Kernels", sentences=[f"Not measured: {prose(kernels.reason)}"])
    most = sorted((row for row in kernels.classes if row.total_ns), key=lambda row: -row.total_ns)[:_NAMED]
    named = ", ".join(f"{shorten(row.name, 48)} {figures.share(row.share_frac)}" for row in most)
    said = f"Of kernel time {named}. " if named else ""
    if kernels.other_frac:
        said += f"{figures.share(kernels.other_frac)} is in class other: no known name. "
    said += "Sums over all ranks' windows: concurrent kernels count twice."
    return Section(
        key="kernels", title="Kernels", sentences=[said], grids=[_classes(kernels), *_top(kernels)]
    )


def _classes(kernels: KernelsAnalysis) -> Grid:
    totals = [row.total_ns for row in kernels.classes]
    most = max(totals, default=0)
    grid = grid_of(
        list(zip(kernels.classes, figures.shares(totals), strict=True)),
        ("class", "l", lambda row: name(row[0].name, 48)),
        ("share", "r", lambda row: word(row[1])),
        ("total", "r", lambda row: time(row[0].total_ns)),
        ("count", "r", lambda row: count(row[0].count)),
        key="classes",
    )
    widths = [100 * max(ns, 0) / most if most > 0 else 0.0 for ns in totals]
    return replace(grid, drawn=[[Stretch(start=0, width=width, css="meter-fill")] for width in widths])


def _top(kernels: KernelsAnalysis) -> list[Grid]:
    if not kernels.top:
        return []
    grid = grid_of(
        kernels.top,
        ("kernel", "n", lambda row: name(row.name, 160)),
        ("class", "l", lambda row: name(row.kernel_class, 48)),
        ("share", "r", lambda row: share(row.share_frac)),
        ("total", "r", lambda row: time(row.total_ns)),
        ("count", "r", lambda row: count(row.count)),
        ("mean", "r", lambda row: time(row.mean_ns)),
        caption="Top kernels",
        most=_TOP,
        key="top",
    )
    total_ns = sum(row.total_ns for row in kernels.classes)
    rest_ns = total_ns - sum(row.total_ns for row in kernels.top[:_TOP])
    none = Cell(text="")
    rest = [word("all other kernels"), none, share(rest_ns / max(total_ns, 1)), time(rest_ns), none, none]
    return [replace(grid, rows=[*grid.rows, rest]) if rest_ns > 0 else grid]
