"""The timeline on the page: what is drawn are the diagnosis' times, and no string of it is more than text."""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections import Counter
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc import reports
from perfdoc.reports.charts.looks import SHAPES, look_of
from perfdoc.reports.charts.marks import longest_stretch, named_ranks
from perfdoc.reports.charts.timeline import patches
from perfdoc.reports.html import render_html
from perfdoc.reports.inlined import _packed, of_bars
from perfdoc.reports.view import HATCHES
from perfdoc.results import Step, TimelineTrack, WorstInstance
from perfdoc.results.figures import duration
from tests.reports import build, build_job, jobs
from tests.reports.build_timeline import LEAVES, ledger, rank, timeline, track, with_timeline
from tests.reports.page import Page

ASSETS = Path(reports.__file__).parent / "assets"
CODES = ["a", "b", "c"]


def test_columns_by_hand() -> None:
    # Columns of 100: the first is wide enough, the next three share one (60 + 20 of a, 40 of b), then a gap.
    rows = [(0, 300, "a"), (300, 60, "a"), (360, 40, "b"), (400, 20, "a"), (900, 10, "c")]
    found = [(p.code, p.start_ns, p.end_ns, p.top_frac, p.bottom_frac) for p in patches(made(rows), 100)]
    assert found == [
        (0, 0, 300, 0.0, 1.0),
        (0, 300, 400, 0.0, 0.6),
        (1, 300, 400, 0.6, 1.0),
        (0, 400, 420, 0.0, 1.0),
        (2, 900, 910, 0.0, 1.0),
    ]


def made(rows: list[tuple[int, int, str]]) -> TimelineTrack:
    return track("host", CODES, rows, [])


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60), st.sampled_from(CODES)), max_size=40),
    st.integers(1, 200),
)
def test_areas_are_times(rows: list[tuple[int, int, str]], column: int) -> None:
    laid, at = [], 0
    for gap, length, code in rows:
        laid.append((at + gap, length, code))
        at += gap + length
    area: Counter[int] = Counter()
    for patch in patches(made(laid), column):
        area[patch.code] += round((patch.end_ns - patch.start_ns) * (patch.bottom_frac - patch.top_frac), 6)
        assert 0 <= patch.top_frac < patch.bottom_frac <= 1
    exact: Counter[int] = Counter()
    for _, length, code in laid:
        exact[CODES.index(code)] += length
    assert dict(area) == pytest.approx(dict(exact), abs=1e-3)


def test_every_row_says_its_sums() -> None:
    page = Page(render_html(with_timeline()))
    spoken = [
        e.attributes["aria-label"]
        for e in page.within("timeline-still", "svg")
        if "aria-label" in e.attributes
    ]
    assert len(spoken) == 2 + 2 * 4
    first = rank(0).tracks[0]
    sums = Counter(dict.fromkeys(LEAVES, 0))
    for code, length in zip(first.code, first.duration_ns, strict=True):
        sums[LEAVES[code]] += length
    words = ", ".join(
        f"{look_of('ledger', leaf).label} {duration(sums[leaf])}" for leaf in LEAVES if sums[leaf]
    )
    assert spoken[0] == f"rank 0, ledger: {words}"


def test_a_page_with_a_timeline_allows_its_scripts_and_no_others() -> None:
    html = render_html(with_timeline())
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)
    allowed = re.search(r"script-src ([^;]*);", unescape(policy))
    assert allowed is not None
    packed = re.search(r'id="plotly-packed">([^<]*)<', html)
    assert packed is not None
    library = zlib.decompress(base64.b64decode(packed[1]))
    own = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    assert own[-1] == (ASSETS / "timeline.js").read_text(encoding="utf-8")
    digests = {
        f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'"
        for text in (*(each.encode() for each in own), library)
    }
    assert set(allowed[1].split()) == digests
    assert b"plotly.js" in library[:200]
    assert len(html) < 2_000_000


def test_the_largest_modules_of_the_library_are_left_out_unless_they_hold_others() -> None:
    """As plotly.js 3 to 4.1 are bundled: wrapped modules, and lazy ones behind their exports."""
    small = b"var $a=W((e,t)=>{t.exports=1});"
    maps = b"var b=W((f,$g)=>{" + b"x;" * 200_000 + b"$g.exports=2});"
    lazy = b"var c=W((e,t)=>{t.exports=3});var d,h=E(()=>{%b});"
    more = b"var g={};Fp(g,{D:()=>d});var n,m=E(()=>{%b});"
    others = b"var o=W((e,t)=>{t.exports=4});var p,q=E(()=>{r=1});var s,u=E(()=>{" + b"z;" * 200_000 + b"});"
    large = b"setTimeout(()=>{y},1);" * 20_000
    assert of_bars(b"!{});" + small + maps + lazy % large + more % large + others + small) == (
        b"!{});"
        + small
        + b"var b=W((f,$g)=>{$g.exports=new Proxy(()=>{},{get:(_,name,all)=>all})});"
        + lazy % b""
        + more % b""
        + others
        + small
    )


def test_what_is_read_stands_before_the_library() -> None:
    html = render_html(with_timeline())
    assert html.index('id="plotly-packed"') > html.index("</main>") > html.index('id="timeline-data"')


@pytest.mark.parametrize(
    ("version", "cut"), [("3.0.1", True), ("4.1.1", True), ("4.2.0", False), ("40.1.0", False)]
)
def test_a_library_whose_charts_nobody_saw_stays_whole(version: str, *, cut: bool) -> None:
    head = f"/**\n* plotly.js v{version}\n*/".encode()
    text = head + b"});var b=W((f,$g)=>{" + b"x;" * 200_000 + b"$g.exports=2});"
    packed, _ = _packed(text)
    assert (len(zlib.decompress(base64.b64decode(packed))) < len(text)) is cut


def test_without_a_timeline_its_script_is_not_there() -> None:
    html = render_html(build.one_rank())
    assert "timeline" not in html.split("<script>", 2)[2]
    assert "plotly" not in html


def test_sixty_four_ranks_fit_the_page() -> None:
    html = render_html(with_timeline(64, 600))
    assert len(html) < 6_000_000
    assert len(Page(html).within("timeline-still", "title")) < 2_000


def test_names_of_every_rank_s_own_do_not_make_the_page_long() -> None:
    made = replace(build.many_ranks(64), timeline=timeline(64, 500))
    assert made.timeline is not None
    shown = []
    for i, each in enumerate(made.timeline.ranks):
        names = [f"{'<' * 90}{i} {j}" for j in range(62)]
        rows = [(20_000 * j, 10_000, "gemm") for j in range(100)]
        tracks = [t for t in each.tracks if t.kind not in ("compute", "host")]
        shown.append(replace(each, tracks=[*tracks, track("compute", ["gemm"], rows, names)]))
    steps = [Step(name="<" * 90 + str(i), start_ns=i, duration_ns=1_000) for i in range(400)]
    ranks = [replace(r, window=replace(r.window, step_list=steps)) for r in made.ranks]
    html = render_html(replace(made, ranks=ranks, timeline=replace(made.timeline, ranks=shown)))
    assert len(html) < 6_000_000


def test_every_hatch_has_a_name_for_the_library() -> None:
    assert set(HATCHES.values()) <= set(SHAPES)
    assert len({(look_of("ledger", leaf).colour, look_of("ledger", leaf).hatch) for leaf in LEAVES}) == len(
        LEAVES
    )
    assert ledger(3).kind == "ledger"


def test_the_page_says_how_typical_the_step_is() -> None:
    made = with_timeline()
    assert made.timeline is not None
    drawn = {rank.label: rank.duration_ns for rank in made.timeline.ranks}

    def said(*frac: float) -> str:
        ranks = [
            replace(
                rank,
                window=replace(
                    rank.window,
                    step_list=[
                        Step(name=f"s {i}", start_ns=0, duration_ns=round(drawn[rank.label] * f))
                        for i, f in enumerate(frac)
                    ],
                ),
            )
            for rank in made.ranks
        ]
        page = Page(render_html(replace(made, ranks=ranks)))
        return page.by_id("timeline").text.replace("\u00a0", " ")

    assert "the only step captured." in said(1)
    assert "within 2.0 % of the median step" in said(1, 1.01, 1.5)
    # Of a mean far above the median, 2: half of it is missing.
    assert "up to 50.0 % from the mean step" in said(1, 1, 4)
    # Of a mean of 0.6, 1.5 times the median, nothing is missing.
    assert "no shorter than the mean step" in said(1, 0.4, 0.4)
    # A quarter of the median is missing: the median is 4 / 3 of it.
    assert "up to 25.0 % from the median step" in said(1, 4 / 3, 2)


@pytest.mark.parametrize("stages", [0, 2])
def test_the_picture_says_where_a_bubble_of_the_ledger_is(stages: int) -> None:
    """The ledger's bar has a colour of its own for the bubble, which has no time of its own on the tracks."""
    made = with_timeline()
    pipeline = build_job.pipeline(stages=2, replicas=1) if stages else made.analyses.pipeline
    exposed = replace(made.ranks[0].ledger_ns.exposed_comm, pp=500_000_000)
    ranks = [replace(r, ledger_ns=replace(r.ledger_ns, exposed_comm=exposed)) for r in made.ranks]
    made = replace(made, ranks=ranks, analyses=replace(made.analyses, pipeline=pipeline))
    page = Page(render_html(made))
    assert ("bubble" in page.by_id("timeline").text) == bool(stages)
    assert ("pipeline bubble" in page.by_id("ledger").text) == bool(stages)


def test_the_timeline_marks_the_longest_stretch_of_the_largest_loss() -> None:
    """Two ranks that begin together; the host keeps the second idle for 100, 150 and 50 ns on end."""
    rows = {
        0: [(0, 900, "compute"), (900, 100, "idle.host")],
        1: [(0, 500, "compute"), (500, 100, "idle.host"), (600, 150, "idle.host"), (750, 50, "idle.host")],
    }
    drawn = [
        replace(rank(i), duration_ns=1000, offset_ns=0, tracks=[track("ledger", LEAVES, rows[i], [])])
        for i in rows
    ]
    ranks = [build.rank(i, build.ledger(compute=500, idle_host=500)) for i in rows]
    made = replace(build.diagnosis(ranks), timeline=replace(timeline(), ranks=drawn))
    mark = longest_stretch(made)
    assert mark is not None
    assert (mark.label, mark.start_ns, mark.end_ns) == ("rank 1", 500, 800)
    assert '<rect class="mark" x="500" y="0" width="300"' in render_html(made)
    assert longest_stretch(replace(made, timeline=None)) is None


def test_the_timeline_marks_who_the_verdict_names() -> None:
    """The rank of the straggler's worst instance, where the verdict is about it."""
    made = with_timeline()
    at = WorstInstance(
        rank=1, label="rank 1", step="", name="", says="It is late.", start_ns=0, end_ns=1, cost_ns=1
    )
    late = replace(jobs.job("exposed").rules[0], code="PD303", state="fires", worst=at)
    for blamed, names in (("cause", {"rank 1"}), ("loss", set[str]())):
        rows = [replace(jobs.job("exposed").opportunities[0], codes=["PD303"], blamed=blamed)]
        named = replace(made, rules=[late], opportunities=rows)
        assert named_ranks(named) == names
        assert ("\u25b6 rank 1" in Page(render_html(named)).text) == bool(names)
