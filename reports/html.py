"""The diagnosis as one HTML file that needs nothing else: no network, no script, no font."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from perfdoc.diagnosis import Diagnosis
from perfdoc.reports import comm, gaps, summary, units, view
from perfdoc.reports.advice import lines_of
from perfdoc.reports.charts.page_parts import chart_style, timeline_parts
from perfdoc.reports.leaves import LEAVES
from perfdoc.reports.names import base_name, pieces, prose, shorten
from perfdoc.reports.sections import sections_of

_HERE = Path(__file__).parent
_LONGEST_STRING = 4000
_UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s)(?:\W|\Z))")
_INPUTS = 500
_NOTES = 12
_GAPS = 300
_TOP_KERNELS = 100


def _only_printable(value: Any) -> Any:
    """The last net: whatever a template prints holds no control or bidi character, even where it
    forgot to shorten a name."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return shorten(value, _LONGEST_STRING)
    return value


def _glued(text: str) -> Markup:
    """Text whose numbers stay on one line with their unit."""
    return Markup(_UNIT_SPACE.sub("&nbsp;", str(escape(shorten(text, _LONGEST_STRING)))))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_only_printable,
    )
    environment.filters.update(
        name=shorten,
        advice=lines_of,
        glued=_glued,
        pieces=lambda text: pieces(prose(text)),
        base_name=base_name,
        duration=units.duration,
        in_scale=units.in_scale,
        share=units.share,
        size=units.size,
        bandwidth=units.bandwidth,
        count=units.count,
        plural=units.plural,
    )
    return environment


def prepare() -> None:
    """Compile the templates, which the first page would do."""
    for name in _environment().list_templates(extensions=["html"]):
        _environment().get_template(name)


@cache
def _style() -> tuple[Markup, str]:
    """The stylesheet and its hash for the content security policy."""
    css = (_HERE / "assets" / "report.css").read_text(encoding="utf-8") + chart_style()
    digest = b64encode(hashlib.sha256(css.encode()).digest()).decode()
    # The file is ours and holds no "</style"; nothing from a diagnosis goes into it.
    return Markup(css), digest


def _communication(diagnosis: Diagnosis) -> dict[str, Any]:
    ranks = diagnosis.ranks
    rows, left_out = comm.overall_rows(ranks)
    drawn = summary.choose_drawn(ranks).indices if len(ranks) > 1 else []
    labels = summary.rank_labels(ranks)
    own, own_left_out = comm.per_rank_rows([ranks[i] for i in drawn], [labels[i] for i in drawn])
    return {
        "rows": rows,
        "left_out": left_out,
        "own": own,
        "own_left_out": own_left_out,
        "undrawn": len(ranks) - len(drawn) if drawn else 0,
        "scale": units.scale_for(max((row.total_ns for row in rows), default=0)),
        "no_blocking": gaps.missing_reason(diagnosis, "event_edges") or gaps.NOT_MEASURED_HERE,
        "no_bytes": gaps.missing_reason(diagnosis, "collective_payloads") or gaps.NOT_MEASURED_HERE,
    }


def _kernels(diagnosis: Diagnosis) -> dict[str, Any]:
    kernels = diagnosis.analyses.kernels
    most = max((row.total_ns for row in kernels.classes), default=0)
    return {
        "shares": units.partition([row.total_ns for row in kernels.classes]),
        "widths": [
            f"{100 * max(row.total_ns, 0) / most:.2f}%" if most > 0 else "0%" for row in kernels.classes
        ],
        "scale": units.scale_for(most),
        "total_ns": sum(row.total_ns for row in kernels.classes),
        "rest_ns": sum(row.total_ns for row in kernels.classes)
        - sum(row.total_ns for row in kernels.top[:_TOP_KERNELS]),
    }


def render_html(diagnosis: Diagnosis) -> str:
    """The diagnosis as a page: open it from disk, print it, read it with JavaScript off. Every string of
    the diagnosis is shortened and escaped; figures carry the exact nanoseconds in data-ns."""
    css, digest = _style()
    labels = summary.rank_labels(diagnosis.ranks)
    return (
        _environment()
        .get_template("report.html")
        .render(
            d=diagnosis,
            css=css,
            css_hash=digest,
            leaves=LEAVES,
            hatches=view.HATCHES,
            labels=labels,
            source=summary.source_line(diagnosis),
            figures=summary.headline(diagnosis),
            time=view.time_view(diagnosis) if diagnosis.ranks else None,
            strips=view.step_strips(diagnosis),
            open_strips=view.OPEN_STEP_STRIPS,
            timeline=timeline_parts(diagnosis),
            comm=_communication(diagnosis),
            sections=sections_of(diagnosis),
            kernels=_kernels(diagnosis),
            kernels_only=view.kernels_only_rows(diagnosis),
            gaps=gaps.gaps_of(diagnosis),
            rule_states=[
                (state, words, gaps.rules_in(diagnosis, state)) for state, words in gaps.RULE_STATES
            ],
            notes=_NOTES,
            shown_gaps=_GAPS,
            shown_kernels=_TOP_KERNELS,
            shown_inputs=diagnosis.inputs[:_INPUTS],
        )
    )
