"""What `perfdoc tune` found, as a page that needs nothing else."""

from __future__ import annotations

from perfdoc.reports.charts.timeline_parts import CHART_STYLE
from perfdoc.reports.html import environment
from perfdoc.reports.inlined import asset, policy
from perfdoc.tune.result import Tuning
from perfdoc.tune.words import changes_words, sections_of, written_of

_STYLES = ("report.css", CHART_STYLE)
_FIRST = "theme.js"
_SCRIPTS = ("tables.js", "copy.js")


def render_html(found: Tuning) -> str:
    """The result as one file: every string in it is shortened and escaped."""
    styles, first = [asset(name) for name in _STYLES], asset(_FIRST)
    scripts = [asset(name) for name in _SCRIPTS]
    return (
        environment()
        .get_template("tune.html")
        .render(
            t=found,
            sections=sections_of(found),
            pasted=[
                (row.place, changes_words(row.changes), " ".join(written_of(row)))
                for row in found.rows
                if row.place and written_of(row)
            ],
            styles=[s.text for s in styles],
            first=first.text,
            scripts=[s.text for s in scripts],
            policy=policy([s.source for s in styles], [first.source, *(s.source for s in scripts)]),
        )
    )
