from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from dataclasses import replace
from decimal import Decimal
from functools import cache, partial
from pathlib import Path

import pytest

import perfdoc.reports.html as html_module
from perfdoc.reports.headline import verdict_figures
from perfdoc.reports.html import render_html
from perfdoc.reports.leaves import LEAVES, leaf_values
from perfdoc.results import Diagnosis
from tests.reports import build
from tests.reports.build_memory import memory
from tests.reports.page import Page

DIAGNOSES = {
    "one": build.one_rank,
    "two": build.two_ranks,
    "eight": partial(build.many_ranks, 8),
    "thousand": partial(build.many_ranks, 1000),
    "none": partial(build.diagnosis, []),
}
ASSETS = Path(html_module.__file__).parent / "assets"


@cache
def page_of(name: str) -> str:
    return render_html(DIAGNOSES[name]())


@cache
def parsed(name: str) -> Page:
    """Parsing the page of a thousand ranks takes a second."""
    return Page(page_of(name))


EVERY = pytest.mark.parametrize("name", sorted(DIAGNOSES))


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
    assert [e.attributes["type"] for e in page.elements if e.tag == "script" and e.attributes] == (
        ["application/json"] if name == "thousand" else []
    )
    css = re.findall(r"url\(([^)]*)\)|(@import)", page_of(name))
    assert css
    assert all(target.startswith("#p-") and not imported for target, imported in css)
    # Links inside the page have a target, and ids are unique.
    ids = [e.attributes["id"] for e in page.elements if "id" in e.attributes]
    assert len(set(ids)) == len(ids)
    assert {e.attributes["href"][1:] for e in page.elements if e.tag == "a"} <= set(ids)
    assert {target[1:] for target, _ in css} <= set(ids)


@EVERY
def test_the_policy_forbids_everything_but_our_style_and_scripts(name: str) -> None:
    (policy,) = (
        e.attributes["content"]
        for e in parsed(name).elements
        if e.attributes.get("http-equiv") == "Content-Security-Policy"
    )
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    many = ["heat.js", "ranks.js"] if name == "thousand" else []
    assert allowed.pop("default-src") == allowed.pop("base-uri") == allowed.pop("form-action") == "'none'"
    assert allowed.pop("img-src") == "data:"
    for kind, tag, assets in (
        ("style-src", "style", ["report.css", "charts.css"]),
        ("script-src", "script", ["theme.js", "tables.js", "copy.js", "choose.js", *many]),
    ):
        # What stands in the page is the file, byte for byte, and the policy names its hash.
        inside = re.findall(f"<{tag}>(.*?)</{tag}>", page_of(name), re.DOTALL)
        assert inside == [(ASSETS / each).read_text() for each in assets]
        digests = [b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in inside]
        assert allowed.pop(kind) == " ".join(f"'sha256-{digest}'" for digest in digests)
    assert allowed == {}


@EVERY
def test_the_page_is_small(name: str) -> None:
    assert len(page_of(name).encode()) < (700_000 if name == "thousand" else 250_000)


def _rows(page: Page) -> dict[str, int]:
    """Leaf by leaf what the page says in total: the table's rows and the list of zeros."""
    found = [
        e
        for e in page.elements
        if "time" in e.inside and "data-leaf" in e.attributes and e.tag in ("tr", "span")
    ]
    assert len(found) == len(LEAVES)
    return {e.attributes["data-leaf"]: int(e.attributes["data-ns"]) for e in found}


@pytest.mark.parametrize("name", ["one", "two", "eight", "thousand"])
def test_every_leaf_and_their_sum_equal_the_diagnosis_exactly(name: str) -> None:
    ranks = DIAGNOSES[name]().ranks
    page = parsed(name)
    expected = [sum(leaf) for leaf in zip(*(leaf_values(r.ledger_ns) for r in ranks), strict=True)]
    assert _rows(page) == dict(zip((leaf.path for leaf in LEAVES), expected, strict=True))
    total = page.by_id("ledger-sum")
    assert int(total.attributes["data-ns"]) == sum(r.window.duration_ns for r in ranks) == sum(expected)
    assert total.text.replace(",", "") == str(sum(expected))
    assert ("to the nanosecond" in page.text) is True


def test_the_one_rank_by_hand() -> None:
    page = parsed("one")
    # 278,812,345 + 87,921,001 + 4,000,000 + 1,200,007 + 70,000,000 + 900,000 + 15,000,000 + 5,600,000
    # + 7,088 = 463,440,441
    assert page.by_id("ledger-sum").text == "463,440,441"
    assert _rows(page)["exposed_comm.dp"] == 87_921_001
    assert "19.0 %" in page.by_id("ledger").text
    # 463,440,441 in three steps: 154,480,147 each; the last has as much.
    assert "154.480 ms" in page.text


@pytest.mark.parametrize("name", ["one", "two", "eight", "thousand"])
def test_every_bar_fills_100_per_cent_and_holds_its_ranks_figures(name: str) -> None:
    page = parsed(name)
    ranks = {f"rank {r.rank}": r for r in DIAGNOSES[name]().ranks}
    bars = [e for e in page.elements if e.tag == "svg" and e.attributes.get("class") == "bar"]
    # The bar of all, and one per drawn rank where there are several: of one role the typical, and four long.
    assert len(bars) == {"one": 1, "two": 3, "eight": 9, "thousand": 6}[name]
    for bar in bars:
        rects = [e for e in bar.children if e.tag == "rect"]
        assert sum(Decimal(e.attributes["width"].removesuffix("%")) for e in rects) == 100
        label = bar.attributes["aria-label"].split(":")[0]
        if label in ranks:
            drawn = {e.attributes["data-leaf"]: int(e.attributes["data-ns"]) for e in rects}
            leaves = zip(LEAVES, leaf_values(ranks[label].ledger_ns), strict=True)
            assert drawn == {leaf.path: ns for leaf, ns in leaves if ns}
        for rect in rects:
            assert rect.text  # a title to hover over


def test_all_ranks_are_in_the_exact_table() -> None:
    page = parsed("eight")
    body = list(page.within("ranks", "tr"))[1:]
    assert len(body) == 8
    for row, made in zip(body, DIAGNOSES["eight"]().ranks, strict=True):
        cells = [cell.text.strip() for cell in row.children]
        assert cells == [
            f"rank {made.rank}",
            *(str(ns) for ns in leaf_values(made.ledger_ns)),
            str(made.window.duration_ns),
            "=",
        ]


def test_of_many_ranks_a_typical_one_and_the_longest_are_drawn() -> None:
    # Rank i's window is 1,001 ns longer than rank i - 1's, so rank 499 is in the middle.
    who = [e.text for e in parsed("thousand").elements if e.attributes.get("class") == "who"]
    assert who[:5] == ["rank 499", "rank 999", "rank 998", "rank 997", "rank 996"]


def test_a_ledger_that_does_not_fill_its_window_is_shown_as_such() -> None:
    made = build.rank(0, build.ledger(compute=70, idle_host=30))
    made = replace(made, window=replace(made.window, duration_ns=101))
    page = Page(render_html(build.diagnosis([made])))
    assert "differs from the window: 101 ns" in page.text
    assert "to the nanosecond" not in page.text


def test_an_empty_window_has_no_shares() -> None:
    page = Page(render_html(build.diagnosis([build.rank(0, build.ledger())])))
    assert page.problems == []
    assert page.by_id("ledger-sum").text == "0"


def test_communication_rows_carry_exact_figures_and_unknown_is_a_dash_with_a_reason() -> None:
    page = parsed("one")
    first, second = page.within("comm", "tr")[1:]
    figures = [int(e.attributes["data-ns"]) for e in first.children if "data-ns" in e.attributes]
    assert figures == [88_921_001, 1_000_000, 87_921_001, 43_960_500]  # total, hidden, exposed, blocking
    figures = [int(e.attributes["data-ns"]) for e in second.children if "data-ns" in e.attributes]
    assert figures == [5_000_000, 1_000_000, 4_000_000]  # blocking is not measured: no figure, not 0
    section = page.by_id("communication").text
    assert "blocking —: the capture has no CUPTI_ACTIVITY_KIND_CUDA_EVENT table" in section


def test_communication_of_two_ranks_is_added_up_and_listed_by_rank() -> None:
    page = parsed("two")
    dp = next(e for e in page.within("comm", "tr") if e.attributes.get("data-dimension") == "dp")
    figures = [int(e.attributes["data-ns"]) for e in dp.children if "data-ns" in e.attributes]
    assert figures == [47_000_000, 2_000_000, 45_000_000, 22_500_000]  # 26 + 21, 1 + 1, 25 + 20, half
    assert len(page.within("comm-ranks", "tr")) == 1 + 3


def test_sections_come_in_order_and_quality_shows_only_where_there_is_some() -> None:
    page = parsed("one")
    ids = [e.attributes["id"] for e in page.elements if e.tag == "section"]
    assert ids == [
        *("opportunities", "time", "communication", "kernels", "steps", "missing", "rules", "facts")
    ]
    assert [e for e in page.elements if e.tag == "aside"]
    assert not [e for e in parsed("two").elements if e.tag == "aside"]


def test_memory_alone_has_no_sections_of_time() -> None:
    made = build.diagnosis([])
    alone = replace(made, analyses=replace(made.analyses, memory=memory()))
    page = Page(render_html(alone))
    ids = {e.attributes["id"] for e in page.elements if e.tag == "section"}
    assert ids & {"time", "communication", "kernels", "memory"} == {"memory"}
    links = {e.attributes["href"] for e in page.elements if e.tag == "a" and "href" in e.attributes}
    assert links & {"#time", "#communication", "#kernels", "#memory"} == {"#memory"}
    assert "MFU" not in {fig.label for fig in verdict_figures(alone)}


def test_kernel_shares_add_up_and_the_rest_is_a_row() -> None:
    page = parsed("one")
    # 600 + 250 + 100 + 49.9 + 0.1 of 1000 ms
    cells = [row.children[1].text for row in page.within("classes", "tr")[1:]]
    assert cells == ["60.0 %", "25.0 %", "10.0 %", "5.0 %", "<0.1 %"]
    assert "all other kernels" in page.by_id("top").text
    rest = page.within("top", "tr")[-1]
    assert [e.attributes["data-ns"] for e in rest.children if "data-ns" in e.attributes] == ["440000000"]


def test_what_is_missing_says_why_and_how_to_capture_it() -> None:
    text = parsed("one").by_id("missing").text
    assert "the capture has no CUPTI_ACTIVITY_KIND_CUDA_EVENT table" in text
    assert "nsys profile --cuda-event-trace=true" in text
    assert "no range names a step" in text
    assert "no collective could be matched" not in text  # one rank waits for nobody
    assert "FLOPs per step are not known" in text
    assert "PD401" in text  # the rule that was skipped
    # A thousand files that lack the same thing are one row.
    assert parsed("thousand").by_id("missing").text.count("no event rows") == 1


def test_rules_are_folded_with_counts_but_for_those_that_failed() -> None:
    page = parsed("one")
    folded = [e.text for e in page.within("rules", "summary")]
    assert folded == ["1 rule: passes", "1 rule: does not apply", "1 rule: skipped"]
    (card,) = [e.text for e in page.within("rules", "article")]
    assert "failed to run PD402" in card
    assert "1 rule fires" in page.by_id("rules").text


def test_an_mfu_is_a_percentage_and_without_one_the_reason_stands() -> None:
    assert "unknown" in parsed("one").text
    base = build.one_rank()
    known = replace(base, mfu=replace(base.mfu, value=0.4231, reason="", convention="6 N D"))
    text = Page(render_html(known)).text
    assert "42.3 %" in text
    assert "6 N D" in text


def test_ranks_are_called_by_their_labels() -> None:
    labels = ["GPU 0, pid 7, input 0", "GPU 0, pid 7, input 1", "GPU 1, pid 7"]
    ranks = [replace(build.rank(None, build.ledger(compute=10)), label=label) for label in labels]
    base: Diagnosis = build.diagnosis(ranks)
    who = [e.text for e in Page(render_html(base)).elements if e.attributes.get("class") == "who"]
    assert who == labels


def test_more_steps_than_bars_are_merged_and_said_so() -> None:
    made = build.rank(0, build.ledger(compute=1_000_000), steps=1000)
    page = Page(render_html(build.diagnosis([made])))
    bars = [e for e in page.elements if e.tag == "rect" and e.attributes.get("class") == "step"]
    assert len(bars) == 200
    assert "each bar is the longest of 5 steps" in page.text


def test_the_input_is_named_without_its_folder() -> None:
    assert "/data/runs" not in page_of("one")
    assert "9f86d081884c" in parsed("one").by_id("inputs").text


def test_groups_of_one_kind_of_communication_are_one_row_and_apart_by_rank() -> None:
    first, second = build.two_ranks().ranks
    own = [
        replace(build.communication("dp", 1_000_000 * n, hidden_ns=n), group=f"group {n}") for n in (1, 2, 3)
    ]
    ranks = [replace(first, communication=own[:2]), replace(second, communication=own[2:])]
    page = Page(render_html(build.diagnosis(ranks)))
    (row,) = page.within("comm", "tr")[1:]
    figures = [int(e.attributes["data-ns"]) for e in row.children if "data-ns" in e.attributes]
    assert figures == [6_000_006, 6, 6_000_000, 3_000_000]
    assert row.children[3].text == "2"  # ranks
    assert row.children[-1].text == "3 groups"
    groups = [e.children[-1].text for e in page.within("comm-ranks", "tr")[1:]]
    assert sorted(groups) == ["group 1", "group 2", "group 3"]
