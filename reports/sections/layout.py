"""How the job is spread over its ranks: each degree of parallelism and what shows it."""

from __future__ import annotations

from perfdoc.reports.sections.section import Grid, grid_of, name, word
from perfdoc.results import figures
from perfdoc.results.degrees import Degree
from perfdoc.results.headline import Job

_LABELS = {"world_size": "ranks"}


def layout_grid(job: Job | None) -> Grid | None:
    """None where nothing is known of it."""
    rows = [d for d in job.degrees if d.evidence or d.contradicted_by] if job is not None else []
    if not rows:
        return None
    return grid_of(
        rows,
        ("layout", "l", lambda row: word(_LABELS.get(row.name, row.name))),
        ("ranks", "r", lambda row: word(figures.UNKNOWN if row.ranks is None else f"{row.ranks:,}")),
        ("known by", "l", lambda row: word(row.strength)),
        ("what shows it", "n", lambda row: name(_shown(row), 160)),
        caption="The layout of the job",
        key="layout",
    )


def _shown(row: Degree) -> str:
    against = [f"against it: {text}" for text in row.contradicted_by]
    return "; ".join([*row.evidence[:2], *against])
