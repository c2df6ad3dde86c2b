"""Heat strips of ranks, and the waterfall down to the MFU."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal

from perfdoc.reports.heat import LEVELS, heat_of
from perfdoc.reports.html import render_html
from perfdoc.reports.view import falls_of
from perfdoc.results import WaterfallBar
from tests.reports import build
from tests.reports.page import Page
from tests.reports.read_sections import section

RUN = re.compile(r"M(\d+) 0h(\d+)v1H\1z")


def _levels(paths: list[tuple[int, str]], columns: int) -> list[int]:
    """What is drawn, column by column; 0 where nothing is."""
    found = [0] * columns
    for level, path in paths:
        runs = RUN.findall(path)
        assert "".join(f"M{at} 0h{n}v1H{at}z" for at, n in runs) == path
        for at, length in runs:
            for i in range(int(at), int(at) + int(length)):
                assert found[i] == 0
                found[i] = level
    return found


def test_a_level_is_the_share_by_the_row_s_largest() -> None:
    # Idle is 0, 10, 20, 50 and 100 of 1,000: levels are fifths of 10 %, rounded up.
    idle = [0, 10, 20, 50, 100]
    ranks = [build.rank(i, build.ledger(compute=1000 - ns, idle_host=ns)) for i, ns in enumerate(idle)]
    heat = heat_of(build.diagnosis(ranks))
    compute, host = heat.rows
    assert _levels(host.paths, 5) == [0, 1, 1, 3, 5]
    assert (host.low, host.high, host.who) == ("0.0 %", "10.0 %", "rank 4")
    assert host.spoken == "idle host: 0.0 % to 10.0 %, most on rank 4"
    assert _levels(compute.paths, 5) == [5] * 5
    assert compute.paths == [(5, "M0 0h5v1H0z")]


def test_of_more_ranks_than_columns_the_worst_of_neighbours_is_shown() -> None:
    ranks = [
        build.rank(i, build.ledger(compute=1000 - (i == 700) * 500, idle_gc=(i == 700) * 500))
        for i in range(1024)
    ]
    heat = heat_of(build.diagnosis(ranks))
    assert (heat.columns, heat.merged) == (512, 2)
    gc = _levels(heat.rows[1].paths, 512)
    assert [at for at, level in enumerate(gc) if level] == [350]
    assert gc[350] == LEVELS
    assert heat.rows[1].who == "rank 700"


def test_few_ranks_have_bars_alone_and_empty_windows_do_no_harm() -> None:
    assert heat_of(build.two_ranks()).rows == []
    assert heat_of(build.diagnosis([build.rank(i, build.ledger()) for i in range(6)])).rows == []


def test_the_waterfall_falls_from_100_per_cent_without_a_gap() -> None:
    ns = {"ideal": 400, "compute_beyond_ideal": 200, "exposed_comm.dp": 300, "idle.gc": 0, "idle.host": 100}
    base = build.one_rank()
    bars = [WaterfallBar(name=name, total_ns=value, frac=value / 1000) for name, value in ns.items()]
    made = replace(base, mfu=replace(base.mfu, value=0.4, waterfall=bars))
    falls = [(f.x, f.width, f.css) for f in falls_of(made)]
    assert falls == [
        ("0%", "40%", "ideal"),
        ("40%", "20%", "compute"),
        ("60%", "30%", "exposed-comm-dp"),
        ("90%", "10%", "idle-host"),
    ]
    page = Page(render_html(made))
    assert page.problems == []
    assert page.by_id("mfu").tag == "div"
    assert "mfu" not in [e.attributes.get("id") for e in page.elements if e.tag == "section"]
    drawn = [e.attributes["width"] for e in page.within("mfu", "rect")]
    assert sum(Decimal(width.removesuffix("%")) for width in drawn) == 100
    shown = [int(e.attributes["data-ns"]) for e in page.within("mfu", "td") if "data-ns" in e.attributes]
    assert shown == [400, 200, 300, 100, 1000]


def test_printed_shares_of_the_waterfall_add_up_and_agree_with_the_ledger_s() -> None:
    leaves = {"compute": 3_335, "dp": 2_224, "idle_gc": 2_223, "idle_host": 2_218}
    base = build.diagnosis([build.rank(0, build.ledger(**leaves), steps=2)])
    # 1,234 of 10,000 is 12.34 %, which is the MFU; of four leaves each share ends in a half or nearly.
    ns = {"ideal": 1_234, "compute_beyond_ideal": 2_101, "exposed_comm.dp": 2_224}
    bars = [
        WaterfallBar(name=name, total_ns=value, frac=value / 10_000)
        for name, value in (ns | {"idle.host": 2_218, "idle.gc": 2_223}).items()
    ]
    made = replace(base, mfu=replace(base.mfu, value=0.1234, waterfall=bars))
    (grid,) = section(made, "mfu").grids
    shown = {row[0].text: row[1].text for row in grid.rows}
    assert shown.pop("sum") == "100.0 %"
    assert sum(Decimal(text.removesuffix(" %")) for text in shown.values()) == 100
    assert shown["model FLOPs at peak (MFU)"] == "12.3 %"
    ledger = {e.text for e in Page(render_html(made)).within("ledger", "td")}
    assert {shown[name] for name in ("exposed comm DP", "idle host", "idle garbage collection")} <= ledger
