"""The diagnosis as one HTML file that needs nothing else: no network, no font; scripts only help."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from perfdoc.reports import comm, gaps, headline, outlook, summary, view
from perfdoc.reports.advice import change_title, lines_of
from perfdoc.reports.analysed import analysed_line
from perfdoc.reports.charts.excerpt import excerpt_looks, excerpt_picture
from perfdoc.reports.charts.looks import Look
from perfdoc.reports.charts.timeline_parts import CHART_STYLE, TimelineParts, timeline_parts
from perfdoc.reports.heat import MOST_RANKS, ranks_island
from perfdoc.reports.inlined import CompiledTemplates, asset, library, policy
from perfdoc.reports.leaves import LEAVES
from perfdoc.reports.next_capture import next_capture
from perfdoc.reports.opportunities import choices, dialects_of, informing, opportunities, trifles
from perfdoc.reports.sections import Section, sections_by_place
from perfdoc.reports.sections.roles import roles_section
from perfdoc.reports.sections.section import opening, stopped
from perfdoc.reports.settings import snippets
from perfdoc.reports.summary import facts_of
from perfdoc.results import Diagnosis, figures
from perfdoc.results.names import base_name, pieces, prose, shorten
from perfdoc.results.roles import RolesAnalysis

_HERE = Path(__file__).parent
_LONGEST_STRING = 4000
_UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:%|ns|µs|ms|s)(?:\W|\Z))")
_INPUTS = 16
_NOTES = 12
_GAPS = 300
_STYLE = "report.css"
_FIRST = "theme.js"
"""Runs before anything is drawn."""
_SCRIPTS = ("tables.js", "copy.js", "choose.js")
_MANY_SCRIPTS = ("heat.js", "ranks.js")
"""Of the section on roles."""
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
def environment() -> Environment:
    """Templates, with the filters that they use. It is kept."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        bytecode_cache=CompiledTemplates(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_only_printable,
    )
    environment.filters.update(
        name=shorten,
        advice=lines_of,
        change=change_title,
        snippets=snippets,
        opening=opening,
        stopped=stopped,
        glued=_glued,
        pieces=lambda text: pieces(prose(text)),
        base_name=base_name,
        duration=figures.duration,
        in_scale=figures.in_scale,
        share=figures.share,
        size=figures.size,
        bandwidth=figures.bandwidth,
        count=figures.count,
        plural=figures.plural,
        excerpt=excerpt_picture,
    )
    return environment


def prepare() -> None:
    """Compile the templates and pack the chart library, which the first page would do."""
    library()
    for name in environment().list_templates(extensions=["html"]):
        environment().get_template(name)


def _communication(diagnosis: Diagnosis, roles: RolesAnalysis | None) -> dict[str, Any]:
    ranks = diagnosis.ranks
    rows, left_out = comm.overall_rows(ranks)
    drawn = summary.choose_drawn(ranks, roles).indices if len(ranks) > 1 else []
    labels = summary.rank_labels(ranks)
    own, own_left_out = comm.per_rank_rows([ranks[i] for i in drawn], [labels[i] for i in drawn])
    return {
        "rows": rows,
        "left_out": left_out,
        "own": own,
        "own_left_out": own_left_out,
        "undrawn": len(ranks) - len(drawn) if drawn else 0,
        "scale": figures.scale_for(max((row.total_ns for row in rows), default=0)),
        "no_blocking": gaps.missing_reason(diagnosis, "event_edges") or gaps.NOT_MEASURED_HERE,
        "no_bytes": gaps.missing_reason(diagnosis, "collective_payloads") or gaps.NOT_MEASURED_HERE,
    }


def _kernels(diagnosis: Diagnosis) -> dict[str, Any]:
    kernels = diagnosis.analyses.kernels
    most = max((row.total_ns for row in kernels.classes), default=0)
    return {
        "shares": figures.partition([row.total_ns for row in kernels.classes]),
        "widths": [
            f"{100 * max(row.total_ns, 0) / most:.2f}%" if most > 0 else "0%" for row in kernels.classes
        ],
        "scale": figures.scale_for(most),
        "total_ns": sum(row.total_ns for row in kernels.classes),
        "rest_ns": sum(row.total_ns for row in kernels.classes)
        - sum(row.total_ns for row in kernels.top[:_TOP_KERNELS]),
    }


@dataclass(frozen=True, kw_only=True)
class _RolesPart:
    """The section on roles, of many ranks."""

    section: Section
    data: Markup
    left_out: int


def _roles_part(diagnosis: Diagnosis, roles: RolesAnalysis) -> _RolesPart:
    return _RolesPart(
        section=roles_section(diagnosis, roles),
        data=ranks_island(diagnosis, roles),
        left_out=max(0, len(diagnosis.ranks) - MOST_RANKS),
    )


def _fills(diagnosis: Diagnosis, timeline: TimelineParts | None) -> list[tuple[str, Look]]:
    """Fills of excerpts that the timeline does not define for itself: an id comes once on a page."""
    known = set()
    if timeline is not None:
        legend = timeline.picture.legend
        known = {look.id(timeline.kinds[title]) for title, looks in legend for look in looks}
    return [(kind, look) for kind, look in excerpt_looks(diagnosis) if look.id(kind) not in known]


def render_html(diagnosis: Diagnosis) -> str:
    """The diagnosis as a page: open it from disk, print it, read it with JavaScript off. Every string of
    the diagnosis is shortened and escaped; figures carry the exact nanoseconds in data-ns."""
    timeline = timeline_parts(diagnosis)
    by_role = diagnosis.analyses.roles
    roles = _roles_part(diagnosis, by_role) if by_role else None
    styles, first = [asset(_STYLE), asset(CHART_STYLE)], asset(_FIRST)
    names = [*_SCRIPTS, *(_MANY_SCRIPTS if roles else ())]
    scripts = [*map(asset, names), *(timeline.scripts if timeline else ())]
    found = opportunities(diagnosis)
    dialects = dialects_of(found)
    labels = summary.rank_labels(diagnosis.ranks)
    return (
        environment()
        .get_template("report.html")
        .render(
            d=diagnosis,
            styles=[style.text for style in styles],
            first=first.text,
            scripts=[script.text for script in scripts],
            policy=policy(
                [*(style.source for style in styles), *(timeline.style_sources if timeline else ())],
                [first.source, *(s.source for s in scripts), *(timeline.script_sources if timeline else ())],
            ),
            leaves=LEAVES,
            hatches=view.HATCHES,
            labels=labels,
            source=summary.source_line(diagnosis),
            figures=headline.verdict_figures(diagnosis),
            shares=headline.share_figures(diagnosis),
            first_words=outlook.opening_words(diagnosis),
            analysed=analysed_line(diagnosis),
            next_capture=next_capture(diagnosis),
            against=headline.against_lines(diagnosis),
            opportunities=found,
            dialects=dialects,
            dialect=diagnosis.job.dialect if diagnosis.job is not None else None,
            choices=choices(diagnosis),
            informing=informing(diagnosis),
            trifles=trifles(diagnosis),
            facts=list(facts_of(diagnosis)),
            time=view.time_view(diagnosis, by_role) if diagnosis.ranks else None,
            roles=roles,
            strips=view.step_strips(diagnosis, by_role),
            open_strips=view.OPEN_STEP_STRIPS,
            fills=_fills(diagnosis, timeline),
            timeline=timeline,
            comm=_communication(diagnosis, by_role),
            places=sections_by_place(diagnosis),
            kernels=_kernels(diagnosis),
            kernels_only=view.kernels_only_rows(diagnosis, by_role),
            gaps=gaps.gaps_of(diagnosis),
            skipped=gaps.skipped_rules(diagnosis),
            rule_states=[
                (state, words, gaps.rules_in(diagnosis, state)) for state, words in gaps.RULE_STATES
            ],
            notes=_NOTES,
            shown_gaps=_GAPS,
            shown_kernels=_TOP_KERNELS,
            shown_inputs=diagnosis.inputs[:_INPUTS],
        )
    )
