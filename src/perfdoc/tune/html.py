"""What `perfdoc tune` found, as a page that needs nothing else."""

from __future__ import annotations

from perfdoc.reports.html import render_page
from perfdoc.tune.result import Tuning
from perfdoc.tune.words import changes_words, sections_of, written_of


def render_html(found: Tuning) -> str:
    """The result as one file: every string in it is shortened and escaped."""
    return render_page(
        "tune.html",
        scripts=("tables.js", "copy.js"),
        t=found,
        sections=sections_of(found),
        pasted=[
            (row.place, changes_words(row.changes), " ".join(written_of(row)))
            for row in found.rows
            if row.place and written_of(row)
        ],
    )
