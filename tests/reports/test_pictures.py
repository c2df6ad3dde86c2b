"""Pictures inside sections: the schedule of a pipeline, and memory over time."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest

from perfdoc.diagnosis import Diagnosis
from perfdoc.diagnosis.memory import MemorySeries
from perfdoc.reports.html import render_html
from perfdoc.reports.markdown import render_markdown
from perfdoc.reports.text import render_text
from tests.reports import build, build_memory
from tests.reports.build_timeline import timeline
from tests.reports.fill import with_text
from tests.reports.hostile import HOSTILE
from tests.reports.page import Page
from tests.reports.read_sections import section

GIB = 1024**3


def with_schedule() -> Diagnosis:
    return replace(build.analysed(build.many_ranks(4)), timeline=timeline(4))


def with_history() -> Diagnosis:
    made = build_memory.with_memory_and_replay(build.one_rank())
    series = MemorySeries(
        event=[-1, 0, 1, 2],
        time_ns=[0, 0, 40, 100],
        category_bytes={"parameters": [GIB, GIB, GIB, GIB], "activations": [0, 2 * GIB, 3 * GIB, 0]},
        reserved_bytes=[4 * GIB, 4 * GIB, 8 * GIB, 8 * GIB],
        peak=2,
    )
    memory = made.analyses.memory
    devices = [replace(d, series=series) for d in memory.devices]
    return replace(made, analyses=replace(made.analyses, memory=replace(memory, devices=devices)))


def test_the_schedule_has_a_box_for_every_pass() -> None:
    made = with_schedule()
    assert made.timeline is not None
    (picture,) = section(made, "pipeline").pictures
    page = Page(f"<html><body>{picture}</body></html>")
    boxes = [e for e in page.elements if e.tag == "rect" and "seg" in e.attributes.get("class", "")]
    rows = [e for e in page.elements if e.attributes.get("class") == "rank"]
    assert len(boxes) == 8 * len(rows)
    words = Counter(
        re.sub(r" of micro-batch \d", "", e.text.split(":")[0]) for e in page.elements if e.tag == "title"
    )
    assert words == {"forward": 4 * len(rows), "backward": 4 * len(rows)}
    # The first pass of the first row begins at the left edge, the last row's last one ends at the right edge.
    assert boxes[0].attributes["x"] == "0%"
    end = float(boxes[-1].attributes["x"][:-1]) + float(boxes[-1].attributes["width"][:-1])
    assert end == pytest.approx(100, abs=0.02)


def test_stages_are_in_their_order() -> None:
    made = with_schedule()
    stages = {row.rank: row.stage for row in made.analyses.pipeline.stages}
    (picture,) = section(made, "pipeline").pictures
    shown = re.findall(r'class="who">stage (\d+) \(rank (\d+)\)', str(picture))
    assert shown
    assert [int(s) for s, _ in shown] == sorted({s for r, s in stages.items() if r in range(4)})
    assert all(stages[int(r)] == int(s) for s, r in shown)


def test_without_passes_there_is_no_schedule() -> None:
    made = with_schedule()
    assert made.timeline is not None
    bare = [replace(r, tracks=[t for t in r.tracks if t.kind != "passes"]) for r in made.timeline.ranks]
    assert not section(replace(made, timeline=replace(made.timeline, ranks=bare)), "pipeline").pictures
    assert not section(replace(made, timeline=None), "pipeline").pictures


def test_memory_over_time_by_hand() -> None:
    # 8 GiB are 180 units high, 100 ns are 1000 wide. Parameters: 1 GiB all along, a band of 22.5 below.
    (picture,) = section(with_history(), "memory").pictures
    paths = re.findall(r'<path fill="url\(#([^)]*)\)" d="([^"]*)"><title>([^<]*)</title>', str(picture))
    assert paths[0] == (
        "t-memory-parameters",
        "M0 157.5H0V157.5H400V157.5H1000V157.5L1000 180V180H400V180H0V180H0z",
        "parameters: 1.0 GiB at the peak",
    )
    # Activations on top: 0, 2, 3 and 0 GiB more.
    assert paths[1][1] == "M0 157.5H0V112.5H400V90H1000V157.5L1000 157.5V157.5H400V157.5H0V157.5H0z"
    assert 'class="mark" d="M400 0V180"' in picture
    assert 'd="M0 90H0V90H400V0H1000V0"><title>reserved' in picture
    assert "4.0 GiB at the peak" in picture


def test_pictures_are_on_the_page_and_nowhere_else() -> None:
    for made, key in ((with_schedule(), "pipeline"), (with_history(), "memory")):
        assert Page(render_html(made)).within(key, "figure")
        for text in (render_text(made), render_markdown(made)):
            assert "<svg" not in text
            assert "patternUnits" not in text


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_strings_stay_text(text: str) -> None:
    for made in (with_schedule(), with_history()):
        html = render_html(with_text(made, text))
        for bad in ("<img src", "<svg onload", "<script>document", "<b><b>", "<style>*"):
            assert bad not in html
        Page(html)
