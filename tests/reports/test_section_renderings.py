"""Sections in the terminal, on the page and in the comment."""

from __future__ import annotations

import re
from dataclasses import replace

from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import escape, render_markdown, sentence
from perfdoc.reports.sections import sections_of
from perfdoc.reports.text import render_text
from tests.reports import build, build_job
from tests.reports.page import Page
from tests.reports.read_sections import section, table


def test_every_figure_of_every_table_is_in_all_renderings_that_show_it() -> None:
    two = build.analysed(build.two_ranks())
    page, text, short = Page(render_html(two)), render_text(two, width=400), render_markdown(two)
    assert sum(len(found.grids) for found in sections_of(two)) > 10
    for found in sections_of(two):
        shown = page.by_id(found.key).text
        for at, grid in enumerate(found.grids):
            for row in grid.rows:
                cells = [cell.text for cell in row if cell.text]
                assert all(cell in shown for cell in cells)
                line = r"\s+".join(re.escape(cell) for cell in cells)
                assert re.search(line, text), cells
                if at == 0:
                    assert "| " + " | ".join(escape(cell.text) for cell in row) + " |" in short
        figures = [
            e.attributes["data-ns"]
            for e in page.elements
            if found.key in e.inside and "data-ns" in e.attributes
        ]
        assert figures == [str(c.ns) for g in found.grids for row in g.rows for c in row if c.ns is not None]


def test_every_sentence_is_in_all_renderings_and_the_first_ones_in_the_comment() -> None:
    two = build.analysed(build.two_ranks())
    page, text, short = Page(render_html(two)), render_text(two), render_markdown(two)
    for found in sections_of(two):
        assert found.sentences
        for at, said in enumerate(found.sentences):
            plain = said.replace("`", "")
            assert plain in page.by_id(found.key).text.replace("\xa0", " ")
            assert said in " ".join(text.split())
            assert (sentence(said) in short) is (at < 3)


def test_hundreds_of_ranks_stay_short() -> None:
    base = build.analysed(build.many_ranks(512))
    made = replace(base, analyses=replace(base.analyses, pipeline=build_job.pipeline(stages=16, replicas=32)))
    for found in sections_of(made):
        assert all(len(grid.rows) <= 12 for grid in found.grids)
        assert len(found.grids) <= 3
        assert all(len(text) < 400 for text in found.sentences)
    assert section(made, "skew").grids[1].left_out == 512 - 8
    assert table(made, "pipeline", 1)[1][1] == "32 ranks, embedding"
    text = render_text(made)
    assert len(text[text.index("Step times") : text.index("\nKernels\n")].splitlines()) < 170
    assert len(render_markdown(made)) < 14_000
    assert len(render_html(made)) < len(render_html(build.many_ranks(512))) + 120_000
