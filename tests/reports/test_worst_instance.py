"""A rule's worst instance on the page: drawn as diagnosis.json has it, and left out where it has none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfdoc.reports.charts.excerpt import excerpt_picture
from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.text import render_text
from perfdoc.results import Diagnosis, TimelineTrack, WorstInstance
from perfdoc.results.figures import duration
from tests.reports import build
from tests.reports.build_choices import with_choices
from tests.reports.build_timeline import timeline
from tests.reports.build_worst import BEGIN, compared, with_worst, worst_instance
from tests.reports.page import Page


def shown() -> Diagnosis:
    return with_worst(with_choices(build.many_ranks(2)))


def with_instance(worst: WorstInstance | None) -> Diagnosis:
    made = with_choices(build.one_rank())
    return replace(made, rules=[replace(r, worst=worst) for r in made.rules if r.code == "PD202"])


def bars(page: Page) -> list[tuple[int, int]]:
    rects = [e for e in page.elements if e.tag == "rect" and "data-start" in e.attributes]
    return [(int(e.attributes["data-start"]), int(e.attributes["data-ns"])) for e in rects]


def test_every_bar_is_the_diagnosis_own() -> None:
    made = worst_instance()
    page = Page(render_html(with_instance(made)))
    assert page.problems == []
    order = ("ledger", "compute", "communication", "host", "ranges", "passes")
    expected = [
        row
        for rank in made.ranks
        for kind in order
        for track in rank.tracks
        if track.kind == kind
        for row in zip(track.start_ns, track.duration_ns, strict=True)
    ]
    assert bars(page) == expected
    (figure,) = [e for e in page.elements if e.attributes.get("class") == "cut"]
    assert (figure.attributes["data-from"], figure.attributes["data-to"]) == (
        str(BEGIN + 20_000),
        str(BEGIN + 70_000),
    )


def test_the_instance_is_marked_where_it_lies() -> None:
    # 20 us into 100 us, for 50 us.
    (rule,) = with_instance(worst_instance()).rules
    found = excerpt_picture(rule)
    assert found is not None
    assert found.mark == ("20%", "50%", "50.000 µs")
    assert [(tick.x, tick.text) for tick in found.ticks] == [
        ("0%", duration(-20_000)),
        ("20%", "0"),
        ("70%", "50.000 µs"),
        ("100%", "80.000 µs"),
    ]
    assert [rank.heading for rank in found.ranks] == ["rank 0", "rank 1"]
    assert [row.label for row in found.ranks[0].rows] == [
        *("ledger", "kernels", "comm TP", "host calls", "ranges", "passes"),
    ]
    assert "skew below 1.500 µs is within clock error" in found.notes[0]
    alone = excerpt_picture(replace(rule, worst=worst_instance(1)))
    assert alone is not None
    assert ([r.heading for r in alone.ranks], alone.notes) == ([""], [])


@pytest.mark.parametrize("worst", [None, replace(worst_instance(), ranks=[])])
def test_without_an_instance_there_is_none(worst: WorstInstance | None) -> None:
    html = render_html(with_instance(worst))
    assert "The worst instance" not in html
    assert 'class="cut"' not in html


def test_other_renderings_say_it_in_words() -> None:
    said = "Idle for 50 us in a data-loader stall (perfdoc.data)."
    made = with_instance(worst_instance())
    text = " ".join(render_text(made, width=200).split())
    assert f"worst: {said} (rank 0, `perfdoc.step 2`, at 5,020,000 ns)" in text
    # The comment on a pull request is short.
    assert "5,020,000 ns" not in render_markdown(made)


def test_columns_that_lie_break_nothing() -> None:
    made = worst_instance(1)
    rank = made.ranks[0]
    odd = TimelineTrack(
        kind="compute",
        codes=["gemm"],
        names=["k"],
        start_ns=[-50, 10, 10**15, 0],
        duration_ns=[100, -5, 5, 10**15],
        code=[0, 0, 0, 7],
        name=[9, 0, 0, 0],
        stretches=[1, 1, 1, 1],
        count=[1, 1, 1, 1],
    )
    page = Page(render_html(with_instance(replace(made, ranks=[replace(rank, tracks=[odd])]))))
    assert page.problems == []
    assert bars(page) == [(-50, 100)]


def test_fills_come_once_with_a_timeline_and_without() -> None:
    for made in (shown(), replace(shown(), timeline=timeline())):
        page = Page(render_html(made))
        ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
        assert len(ids) == len(set(ids))
        fills = {e.attributes.get("fill", "") for e in page.elements}
        assert {f[5:-1] for f in fills if f.startswith("url(#")} <= set(ids)


def test_the_strip_says_how_figures_compare() -> None:
    text = render_html(shown())
    for words in (
        "25.0&nbsp;% worse than the baseline (40.0&nbsp;%), beyond noise (±1.0&nbsp;%)",
        "target at least 25.0&nbsp;%: met",
        "within noise (±2.0&nbsp;%)",
        "Peak memory is unknown: its target cannot be checked.",
        "Differences: micro_batch_size (2, here absent).",
    ):
        assert words in text, words
    plain = " ".join(render_text(replace(build.one_rank(), against=compared()), width=400).split())
    assert "25.0 % worse than the baseline (40.0 %), beyond noise (±1.0 %)" in plain
