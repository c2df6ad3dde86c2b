"""The diagnosis as one HTML file that needs nothing else: no network, no font; scripts only help."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from perfdoc.patterns import pattern_of
from perfdoc.reports import gaps, headline, outlook, summary, view
from perfdoc.reports.advice import change_title, gain_words, lines_of, related_words, worst_words
from perfdoc.reports.charts.steps import OPEN_STEP_STRIPS, step_strips
from perfdoc.reports.charts.timeline_parts import CHART_STYLE, TimelineParts, timeline_parts
from perfdoc.reports.inlined import asset, inlined, policy
from perfdoc.reports.leaves import LEAVES
from perfdoc.reports.opportunities import choices, dialects_of, informing, opportunities, trifles
from perfdoc.reports.outline import inputs_grid, sections_of
from perfdoc.reports.savings import next_said, of_all
from perfdoc.reports.sections.roles import roles_section
from perfdoc.reports.sections.section import stopped
from perfdoc.reports.settings import snippets
from perfdoc.results import Diagnosis, figures
from perfdoc.results.names import opening, pieces, prose, shorten

_HERE = Path(__file__).parent
_LONGEST_STRING = 4000
_UNIT_SPACE = pattern_of(r"(?<=\d) (?=(?:%|ns|µs|ms|s)(?:\W|\Z))")
_OPTION = pattern_of(r"(?<![\w-])--[a-z][\w-]*(?:=(?:&#39;.*?&#39;|[\w.,:/-]*\w))?(?: [a-z_]+=\w+)*")
_NOTES = 12
_GAPS = 300
_STYLE = "report.css"
_FIRST = "theme.js"
"""Runs before anything is drawn."""
_SCRIPTS = ("tables.js", "copy.js", "choose.js")
_MANY_SCRIPTS = ("heat.js", "ranks.js")
"""Of the section on roles."""


def _only_printable(value: Any) -> Any:
    """The last net: whatever a template prints holds no control or bidi character, even where it
    forgot to shorten a name."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return shorten(value, _LONGEST_STRING)
    return value


def _glued(text: str) -> Markup:
    """Text whose numbers stay on one line with their unit, and with options as code."""
    safe = _UNIT_SPACE.sub("&nbsp;", str(escape(shorten(text, _LONGEST_STRING))))
    return Markup(_OPTION.sub(r'<code class="w">\g<0></code>', safe))


def _percent(value: float) -> str:
    return f"{value:.3f}".rstrip("0").rstrip(".") + "%"


class _Compiled(FileSystemBytecodeCache):
    """Templates as Python code, kept as Python keeps its own; where nothing may be written, nothing is."""

    def dump_bytecode(self, bucket: Bucket) -> None:
        """As Jinja does."""
        if not sys.dont_write_bytecode:
            with suppress(OSError):
                Path(self.directory).mkdir(parents=True, exist_ok=True)
                super().dump_bytecode(bucket)


@cache
def environment() -> Environment:
    """Templates, with the filters that they use. It is kept."""
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_only_printable,
        bytecode_cache=_Compiled(str(Path(cache_from_source(_HERE / "templates" / "any.py")).parent)),
    )
    environment.filters.update(
        name=shorten,
        advice=lines_of,
        gain_words=gain_words,
        related=related_words,
        change=change_title,
        snippets=snippets,
        opening=opening,
        stopped=stopped,
        glued=_glued,
        pieces=lambda text: pieces(prose(text)),
        duration=figures.duration,
        in_scale=figures.in_scale,
        share=figures.share,
        count=figures.count,
        plural=figures.plural,
        worst=worst_words,
        percent=_percent,
    )
    return environment


def render_html(diagnosis: Diagnosis) -> str:
    """The diagnosis as a page: open it from disk, print it, read it with JavaScript off. Every string of
    the diagnosis is shortened and escaped; figures carry the exact nanoseconds in data-ns."""
    return "".join(_parts_of(diagnosis))


def html_bytes(diagnosis: Diagnosis) -> bytes:
    """The same, encoded part by part: in one text an arrow or a dash widens all of the chart library."""
    return b"".join(part.encode() for part in _parts_of(diagnosis))


def _parts_of(diagnosis: Diagnosis) -> Iterator[str]:
    timeline = timeline_parts(diagnosis)
    roles = diagnosis.analyses.roles
    to_do, (next_row, said) = opportunities(diagnosis), next_said(diagnosis)
    return page_parts(
        "report.html",
        scripts=(*_SCRIPTS, *(_MANY_SCRIPTS if roles else ())),
        timeline=timeline,
        d=diagnosis,
        leaves=LEAVES,
        hatches=view.HATCHES,
        labels=summary.rank_labels(diagnosis.ranks),
        source=summary.source_line(diagnosis),
        figures=headline.verdict_figures(diagnosis),
        shares=headline.share_figures(diagnosis),
        next=said,
        next_row=to_do[0].anchor if next_row is not None else "",
        together=outlook.gain_together(diagnosis) or outlook.nothing_gained(diagnosis),
        analysed=summary.analysed_line(diagnosis),
        opportunities=to_do,
        of_all=opening("; ".join(of_all([o.ranked for o in to_do], outlook.base_words(diagnosis)))),
        dialects=dialects_of(to_do),
        dialect=diagnosis.job.dialect if diagnosis.job is not None else None,
        choices=choices(diagnosis),
        informing=informing(diagnosis),
        trifles=trifles(diagnosis),
        facts=list(summary.facts_of(diagnosis)),
        inputs=inputs_grid(diagnosis),
        time=view.time_view(diagnosis, roles) if diagnosis.ranks else None,
        roles=roles_section(diagnosis, roles) if roles else None,
        roles_data=view.ranks_island(diagnosis, roles) if roles else None,
        roles_left_out=max(0, len(diagnosis.ranks) - view.MOST_RANKS),
        strips=step_strips(diagnosis, roles),
        open_strips=OPEN_STEP_STRIPS,
        sections=sections_of(diagnosis),
        gaps=gaps.gaps_of(diagnosis),
        gap_count=len(gaps.gap_names(diagnosis)),
        skipped=gaps.skipped_rules(diagnosis),
        rule_states=[(state, words, gaps.rules_in(diagnosis, state)) for state, words in gaps.RULE_STATES],
        notes=_NOTES,
        shown_gaps=_GAPS,
    )


def page_parts(
    template: str, *, scripts: Sequence[str], timeline: TimelineParts | None = None, **values: Any
) -> Iterator[str]:
    """One of our pages, with its styles and scripts inside and the policy that allows nothing else.

    scripts: files of reports/assets. values: what the template names.
    """
    styles, first = [asset(_STYLE), asset(CHART_STYLE)], asset(_FIRST)
    chart = timeline.library if timeline else None
    ours = [asset(name) for name in (*scripts, *(["timeline.js"] if chart else ()))]
    # The library makes an empty style and fills it rule by rule.
    allowed = [inlined(""), chart] if chart else []
    return (
        environment()
        .get_template(template)
        .generate(
            **values,
            timeline=timeline,
            styles=[style.text for style in styles],
            first=first.text,
            scripts=[script.text for script in ours],
            policy=policy(
                [style.source for style in (*styles, *allowed[:1])],
                [script.source for script in (first, *ours, *allowed[1:])],
            ),
        )
    )
