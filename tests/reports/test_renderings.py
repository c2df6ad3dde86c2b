"""Every rendering of six planted jobs: what it shows is the diagnosis' own, whole, in order, and short."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import cache, partial
from pathlib import Path
from statistics import fmean

import msgspec
import pytest

import perfdoc.reports.html as html_module
from perfdoc.reports.charts.timeline_parts import timeline_data
from perfdoc.reports.html import html_bytes, render_html
from perfdoc.reports.leaves import LEAVES, leaf_values
from perfdoc.reports.llm import LIMIT, QUOTED, findings_of, render_llm
from perfdoc.reports.markdown import escape, render_markdown, sentence
from perfdoc.reports.outline import outline, sections_of
from perfdoc.reports.ranking import ranking
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis, figures, to_json
from perfdoc.results.bubble import exposed_bubble_ns
from perfdoc.results.names import prose
from perfdoc.results.ranks import longest_step_ns
from tests.reports import build, jobs
from tests.reports.figures import allowed_figures, figures_of, shown_wrongly, units_of_columns
from tests.reports.page import Page

MADE = {
    **{name: partial(jobs.job, name) for name in jobs.NAMES},
    "thousand": partial(build.many_ranks, 1000),
    "none": partial(build.diagnosis, []),
}
ASSETS = Path(html_module.__file__).parent / "assets"
EVERY = pytest.mark.parametrize("name", MADE)
PLANTED = pytest.mark.parametrize("name", jobs.NAMES)
WITH_RANKS = pytest.mark.parametrize("name", [n for n in MADE if n not in ("none", "nothing")])


def made(name: str) -> Diagnosis:
    return MADE[name]()


@cache
def page_of(name: str) -> str:
    return render_html(made(name))


@cache
def parsed(name: str) -> Page:
    return Page(page_of(name))


@EVERY
def test_the_page_is_well_formed_and_refers_to_nothing_outside(name: str) -> None:
    page = parsed(name)
    assert page.problems == []
    tags = {element.tag for element in page.elements}
    assert not tags & {"link", "img", "iframe", "object", "embed", "base", "form"}
    for element in page.elements:
        for key, value in element.attributes.items():
            assert not key.startswith("on")
            assert key != "data-theme"  # the reader chooses
            assert key not in ("src", "style", "srcset", "action")
            if key in ("href", "xlink:href"):
                assert value.startswith("#")
    css = re.findall(r"url\(([^)]*)\)|(@import)", "".join(re.findall("<style>(.*?)</style>", page_of(name))))
    assert all(target.startswith("#p-") and not imported for target, imported in css)
    # Links and fills inside the page have a target, and ids are unique.
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(set(ids)) == len(ids)
    assert {e.attributes["href"][1:] for e in page.elements if e.tag == "a"} <= set(ids)
    fills = {e.attributes["fill"] for e in page.elements if e.attributes.get("fill", "").startswith("url")}
    assert {fill[5:-1] for fill in fills} <= set(ids)


@EVERY
def test_the_policy_forbids_everything_but_our_style_and_scripts(name: str) -> None:
    (policy,) = (
        e.attributes["content"]
        for e in parsed(name).elements
        if e.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed.pop("default-src") == allowed.pop("base-uri") == allowed.pop("form-action") == "'none'"
    assert allowed.pop("img-src") == "data:"
    files = {path.read_text() for path in ASSETS.iterdir() if path.is_file()}
    for kind, tag in (("style-src", "style"), ("script-src", "script")):
        # What stands in the page is a file of ours, byte for byte, and the policy names its hash.
        inside = re.findall(f"<{tag}>(.*?)</{tag}>", page_of(name), re.DOTALL)
        assert inside
        assert set(inside) <= files
        digests = [f"'sha256-{b64encode(hashlib.sha256(t.encode()).digest()).decode()}'" for t in inside]
        named = allowed.pop(kind).split()
        assert named[: len(digests)] == digests
        assert len(named) <= len(digests) + 1  # the chart library, or the style that it makes
    assert allowed == {}


@EVERY
def test_the_page_is_small(name: str) -> None:
    without_charts = re.sub(
        r'<script type="application[^>]*>.*?</script>', "", page_of(name), flags=re.DOTALL
    )
    assert len(without_charts.encode()) < (700_000 if name == "thousand" else 450_000)


def bubble_figures(found: Diagnosis) -> Iterator[int]:
    """Exposed PP is shown in two parts, of each rank and of all: the pipeline's bubble and the rest."""
    bubbles = [exposed_bubble_ns(found.analyses.pipeline, [rank]) for rank in found.ranks]
    exposed = [rank.ledger_ns.exposed_comm.pp for rank in found.ranks]
    for bubble, whole in (*zip(bubbles, exposed, strict=True), (sum(bubbles), sum(exposed))):
        yield from (bubble, whole - bubble)


@EVERY
def test_every_figure_of_the_page_is_the_diagnosis_own_and_shown_as_what_it_is(name: str) -> None:
    page = parsed(name)
    allowed, units = allowed_figures(msgspec.to_builtins(made(name))), units_of_columns(page)
    allowed |= set(bubble_figures(made(name)))
    lengths = [step.duration_ns for rank in made(name).ranks for step in rank.window.step_list]
    allowed.add(round(fmean(lengths or [0])))
    allowed.add(round(longest_step_ns(made(name).ranks)) if lengths else 0)  # which stands for the mean
    shown = list(figures_of(page))
    assert [e.text[:40] for e in shown if int(e.attributes["data-ns"]) not in allowed] == []
    cells = [e for e in shown if e.tag in ("td", "th")]
    assert [wrong for e in cells if (wrong := shown_wrongly(e, units.get(id(e))))] == []


@WITH_RANKS
def test_every_leaf_and_their_sum_equal_the_diagnosis_exactly(name: str) -> None:
    ranks, page = made(name).ranks, parsed(name)
    expected = [sum(leaf) for leaf in zip(*(leaf_values(r.ledger_ns) for r in ranks), strict=True)]
    rows = [
        e
        for e in page.elements
        if "time" in e.inside and "data-leaf" in e.attributes and e.tag in ("tr", "span")
    ]
    shown: Counter[str] = Counter()
    for e in rows:
        shown[e.attributes["data-leaf"]] += int(e.attributes["data-ns"])
    assert shown.keys() == {leaf.path for leaf in LEAVES}
    assert dict(shown) == dict(zip((leaf.path for leaf in LEAVES), expected, strict=True))
    total = page.by_id("ledger-sum")
    assert total.text.replace(",", "") == total.attributes["data-ns"] == str(sum(expected))
    assert sum(expected) == sum(r.window.duration_ns for r in ranks)
    assert "to the nanosecond" in page.text


@WITH_RANKS
def test_every_bar_fills_100_per_cent_and_holds_its_ranks_figures(name: str) -> None:
    labelled = {r.label: r for r in made(name).ranks}
    bars = [e for e in parsed(name).elements if e.tag == "svg" and e.attributes.get("class") == "bar"]
    assert bars
    for bar in bars:
        rects = [e for e in bar.children if e.tag == "rect"]
        assert sum(Decimal(e.attributes["width"].removesuffix("%")) for e in rects) == 100
        assert all(rect.text for rect in rects)  # a title to hover over
        if (rank := labelled.get(bar.attributes["aria-label"].split(":")[0])) is not None:
            drawn: Counter[str] = Counter()  # the bubble is drawn apart from exposed PP
            for e in rects:
                drawn[e.attributes["data-leaf"]] += int(e.attributes["data-ns"])
            leaves = zip(LEAVES, leaf_values(rank.ledger_ns), strict=True)
            assert drawn == {leaf.path: ns for leaf, ns in leaves if ns}
            bubble = [int(e.attributes["data-ns"]) for e in rects if e.text.startswith("pipeline bubble")]
            assert sum(bubble) == exposed_bubble_ns(made(name).analyses.pipeline, [rank])


@PLANTED
def test_sections_are_the_same_in_every_rendering(name: str) -> None:
    diagnosis = made(name)
    page, text, short = parsed(name), render_text(diagnosis, width=400), render_markdown(diagnosis)
    for section in sections_of(diagnosis):
        shown = page.by_id(section.key)
        words = " ".join(shown.text.replace("\xa0", " ").split())
        for at, said in enumerate(section.sentences):
            plain = prose(said)
            assert " ".join(plain.replace("`", "").split()) in words
            assert plain in " ".join(text.split())
            assert (sentence(said) in short) is (at < 3)
        cells = [c for grid in section.grids for row in grid.rows for c in row]
        assert [int(e.attributes["data-ns"]) for e in figures_of(page) if section.key in e.inside] == [
            c.ns for c in cells if c.ns is not None
        ]
        for cell in cells:
            assert cell.ns is None or cell.text in (
                figures.duration(cell.ns),
                f"costs {figures.duration(-cell.ns)}",
            )
        for at, grid in enumerate(section.grids):
            assert all(len(row) == len(grid.head) == len(grid.align) for row in grid.rows)
            for i, row in enumerate(grid.rows):
                assert all(cell.text in shown.text for cell in row)
                line = r"\s+".join(re.escape(cell.text) for cell in row if cell.text and len(cell.text) < 48)
                if i < 20 and not grid.folded and "n" not in grid.align:
                    assert re.search(line, text), line
                if i < 8 and at == 0 and not section.notes:
                    assert "| " + " | ".join(escape(cell.text) for cell in row) + " |" in short


@PLANTED
def test_every_report_has_the_order_of_the_ranking(name: str) -> None:
    diagnosis = made(name)
    sized = [row for row in ranking(diagnosis) if row.sized]
    anchors = [e.attributes["id"] for e in parsed(name).elements if e.attributes.get("class") == "opp"]
    led = [row for row in ranking(diagnosis) if row.leads]
    assert anchors == [
        row.rule.code if row.rule is not None else f"opportunity-{i}" for i, row in enumerate(led, 1)
    ]
    for shown in (render_text(diagnosis, width=400), render_markdown(diagnosis).replace("\\_", "_")):
        places = [shown.index(f"{row.title[1:]}") for row in sized[:5]]
        assert len(places) == len(sized[:5])
    assert [found["place"] for found in findings_of(diagnosis)] == list(range(1, len(ranking(diagnosis)) + 1))
    assert [found["codes"] for found in findings_of(diagnosis)] == [r.codes for r in diagnosis.opportunities]


@EVERY
def test_the_page_that_is_written_is_the_one_that_is_shown(name: str) -> None:
    """Parts of ASCII and of more are encoded apart, and make one page."""
    found = made(name)
    page = html_bytes(found)
    assert page == render_html(found).encode()
    assert len(page) > len(page.decode())


@EVERY
@pytest.mark.parametrize("width", [60, 100])
def test_text_is_printable_and_its_sentences_fit(name: str, width: int) -> None:
    text = render_text(made(name), width=width)
    assert not [c for c in text if not c.isprintable() and c != "\n"]
    coloured = render_text(made(name), width=width, colour=True)
    assert re.sub(r"\x1b\[[0-9;]+m", "", coloured) == text
    assert len(text) < 60_000
    prose_lines = [line for line in text.splitlines() if not re.search(r"\S  +\S|^ {20}", line)]
    assert [line for line in prose_lines if len(line) > max(width, 60) + 2 and "…" not in line][:3] == []


@EVERY
def test_text_for_a_model_is_short_quoted_and_has_what_to_do(name: str) -> None:
    diagnosis = made(name)
    text = render_llm(diagnosis)
    assert len(text) <= LIMIT
    assert text.splitlines()[1] == QUOTED
    for row in (r for r in ranking(diagnosis) if r.sized and r.rule is not None):
        assert row.rule is not None
        assert f" {row.rule.code} " in text
    for section in outline(diagnosis):
        if section.key in ("missing", "communication", "kernels"):
            assert f"# {section.title}" in text


@EVERY
def test_the_comment_is_short_and_its_tables_are_whole(name: str) -> None:
    text = render_markdown(made(name))
    assert len(text) < 25_000
    assert text.count("<details>") == text.count("</details>")
    head = 0
    for line in text.splitlines():
        cells = line.count("|") if line.startswith("|") else 0
        assert cells in (0, head) or head == 0
        head = cells


def test_what_is_not_measured_is_said_with_the_reason_and_the_remedy() -> None:
    one = build.one_rank()
    for shown in (Page(render_html(one)).text, render_text(one, width=400)):
        assert "the capture has no CUPTI_ACTIVITY_KIND_CUDA_EVENT table" in shown
        assert "nsys profile --cuda-event-trace=true" in shown
        assert "FLOPs per step are not known" in shown.replace("\xa0", " ")
        assert "PD401" in shown  # the rule that was skipped
    # A thousand files that lack the same thing are one row.
    assert parsed("thousand").by_id("missing").text.count("no event rows") == 1


def test_a_ledger_that_does_not_fill_its_window_is_shown_as_such() -> None:
    rank = build.rank(0, build.ledger(compute=70, idle_host=30))
    rank = replace(rank, window=replace(rank.window, duration_ns=101))
    diagnosis = build.diagnosis([rank])
    assert "differs from the window: 101 ns" in Page(render_html(diagnosis)).text
    assert "differs from window 101" in render_text(diagnosis)


@PLANTED
def test_the_timeline_s_data_are_the_diagnosis_own(name: str) -> None:
    timeline = made(name).timeline
    if timeline is None or timeline.state != "measured":
        return
    data = msgspec.json.decode(str(timeline_data(timeline)).encode())
    for shown, rank in zip(data["ranks"], timeline.ranks, strict=True):
        for track in rank.tracks:
            one = shown["tracks"][track.kind]
            assert one["length"] == track.duration_ns
            assert sum(one["gap"]) + sum(one["length"]) == (
                track.start_ns[-1] + track.duration_ns[-1] if track.start_ns else 0
            )
            looks = [data["looks"][track.kind][code][0] for code in one["code"]]
            assert len(looks) == len(track.code)


def test_the_diagnosis_is_not_changed_by_its_renderings() -> None:
    before = to_json(made("data"))
    for render in (render_html, render_text, render_markdown, render_llm):
        render(made("data"))
    assert to_json(made("data")) == before
