"""Reading a section of a report back."""

from __future__ import annotations

from perfdoc.reports.outline import sections_of
from perfdoc.reports.sections.section import Section
from perfdoc.results import Diagnosis


def section(made: Diagnosis, key: str) -> Section:
    """The one section with a key."""
    (found,) = (s for s in sections_of(made) if s.key == key)
    return found


def table(made: Diagnosis, key: str, at: int) -> list[list[str]]:
    """A table's head and cells."""
    grid = section(made, key).grids[at]
    rows = [[cell.text for cell in row] for row in grid.rows]
    assert all(len(row) == len(grid.head) == len(grid.align) for row in rows)
    return [list(grid.head), *rows]
