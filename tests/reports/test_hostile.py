"""Strings from a trace that try to be markup, code or terminal commands, in every place of a report."""

from __future__ import annotations

import re

import pytest

from perfdoc.reports import html as html_module
from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.text import render_text
from perfdoc.results import from_json, to_json
from perfdoc.results.names import prose, shorten
from tests.reports import hostile
from tests.reports.page import Page

HARMLESS = Page(render_html(hostile.hostile("harmless")))
EACH = pytest.mark.parametrize("text", hostile.TEXTS, ids=range(len(hostile.TEXTS)))
# A figure or name that is cut never runs longer than this without a break of ours.
LONGEST_RUN = 1200


def _runs(text: str, unit: str) -> int:
    return max((len(run) for run in re.findall(f"(?:{re.escape(unit)})+", text)), default=0)


@EACH
def test_html_has_the_same_elements_whatever_the_names_are(text: str) -> None:
    html = render_html(hostile.hostile(text))
    page = Page(html)
    assert page.problems == []
    shape = [(e.tag, sorted(e.attributes)) for e in page.elements if e.tag not in ("code",)]
    # A name with back-quotes may become code; nothing else may come or go.
    assert shape == [(e.tag, sorted(e.attributes)) for e in HARMLESS.elements if e.tag not in ("code",)]
    assert {e.tag for e in page.elements} == {e.tag for e in HARMLESS.elements}


@EACH
def test_html_shows_the_name_shortened_and_never_a_character_that_hides(text: str) -> None:
    html = render_html(hostile.hostile(text))
    html.encode("utf-8")
    assert not [c for c in html if not c.isprintable() and c != "\n"]
    assert shorten(text) in Page(html).text
    assert len(html) < 260_000
    assert _runs(html, "x") <= LONGEST_RUN


@EACH
def test_memory_and_replay_show_names_as_names(text: str) -> None:
    made, harmless = hostile.hostile_memory(text), hostile.hostile_memory("harmless")
    html = render_html(made)
    page, plain = Page(html), Page(render_html(harmless))
    assert page.problems == []
    assert {"memory", "path"} <= {e.attributes.get("id") for e in plain.elements}
    shape = [(e.tag, sorted(e.attributes)) for e in page.elements if e.tag != "code"]
    assert shape == [(e.tag, sorted(e.attributes)) for e in plain.elements if e.tag != "code"]
    for shown in (html, render_text(made), render_markdown(made)):
        assert not [c for c in shown if not c.isprintable() and c != "\n"]
        assert len(shown) < 220_000
        assert _runs(shown, "x") <= LONGEST_RUN
    lines = [len(render_markdown(d).splitlines()) for d in (made, harmless)]
    assert lines[0] == lines[1]


def test_a_template_expression_in_a_name_is_not_evaluated() -> None:
    assert "{{7*7}}" in Page(render_html(hostile.hostile("{{7*7}}"))).text


@EACH
def test_text_has_no_control_character_but_the_newline(text: str) -> None:
    shown = render_text(hostile.hostile(text))
    assert not [c for c in shown if not c.isprintable() and c != "\n"]
    coloured = render_text(hostile.hostile(text), colour=True)
    # Colour adds its own sequences and nothing else.
    assert re.sub(r"\x1b\[[0-9;]+m", "", coloured) == shown
    assert re.findall(r"\x1b\[[0-9;]+m", coloured)
    assert len(shown) < 60_000


@EACH
def test_markdown_reads_as_plain_text_to_a_parser(text: str) -> None:
    markdown_it = pytest.importorskip("markdown_it")
    parser = markdown_it.MarkdownIt("commonmark").enable("table")
    source = render_markdown(hostile.hostile(text))
    assert not [c for c in source if not c.isprintable() and c != "\n"]
    assert len(source) < 60_000
    tags: set[str] = set()
    kinds: list[str] = []
    read = ""
    for token in parser.parse(source):
        kinds.append(token.type)
        if token.type.startswith("html"):
            tags |= set(re.findall(r"</?\w+[^>]*>", token.content))
        for inline in token.children or []:
            kinds.append(inline.type)
            if inline.type == "html_inline":
                tags.add(inline.content)
            elif inline.type == "text":
                read += inline.content
    assert tags <= {"<code>", "</code>", "<details>", "</details>", "<summary>", "</summary>"}
    assert not {"link_open", "image", "code_inline", "fence", "code_block", "autolink"} & set(kinds)
    # Rows have as many cells as their header, so no name ended a cell.
    assert kinds.count("table_open") == 4 + 6  # the headline, ranks, communication, kernels; the sections
    harmless = [t.type for t in parser.parse(render_markdown(hostile.hostile("harmless")))]
    assert kinds.count("td_open") == harmless.count("td_open")
    assert kinds.count("heading_open") == harmless.count("heading_open")
    assert kinds.count("list_item_open") == harmless.count("list_item_open")
    # What a reader sees is the shortened name, but for the characters without width that break links.
    assert shorten(text, 96) in read.replace("\u200b", "")
    assert "http://" not in read
    assert "@octocat" not in read


@EACH
def test_the_serial_form_takes_the_name_or_refuses_it_whole(text: str) -> None:
    made = hostile.hostile(text)
    try:
        data = to_json(made)
    except (UnicodeEncodeError, ValueError):
        assert any(0xD800 <= ord(c) <= 0xDFFF for c in text)
        return
    again = from_json(data)
    assert render_html(again) == render_html(made)


def test_prose_keeps_a_reason_readable() -> None:
    assert prose("the table\nis missing") == "the table is missing"


def test_a_template_that_forgets_to_shorten_still_prints_no_hidden_character() -> None:
    template = html_module.environment().from_string("<p>{{ name }}</p>")
    assert template.render(name="a\u202e<b>\x1b" + "x" * 9000).startswith("<p>a\\u202e&lt;b&gt;\\x1bxxx")
    assert len(template.render(name="x" * 9000)) < 4100
