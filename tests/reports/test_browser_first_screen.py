"""What is seen of the page before anything is scrolled: what to do, with its gain and the setting to copy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import perfdoc
from perfdoc.reports.html import render_html
from perfdoc.results import Diagnosis, Quality
from tests.amount import some
from tests.reports import build, jobs
from tests.reports.browser import visit
from tests.reports.build_choices import with_choices

if TYPE_CHECKING:
    from playwright.sync_api import Browser

SCREEN, PHONE = (1280, 800), (390, 844)
MOST_PX = 900
ROOM = "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"


def doubtful() -> Diagnosis:
    """Choices on a capture of which twelve things have to be known."""
    notes = [
        Quality(code=f"note-{i}", message="is not as it should be. " * 8, remedy="Mend.") for i in range(12)
    ]
    return with_choices(build.diagnosis(build.many_ranks(8).ranks, quality=notes))


PAGES = {
    "choices": lambda: with_choices(build.many_ranks(8)),
    "doubtful": doubtful,
    "memory": lambda: jobs.job("nothing"),
    "analysed": lambda: jobs.job("stages"),
}


@pytest.mark.parametrize("name", some(PAGES, ["doubtful"]))
def test_what_to_do_is_on_the_first_screen_and_the_ledger_follows(
    browser: Browser, tmp_path: Path, name: str
) -> None:
    then = ("memory",) if name == "memory" else ("time", "ledger")  # memory alone has no time to split
    with visit(browser, tmp_path, render_html(PAGES[name]()), size=SCREEN) as seen:
        top = {
            place: seen.page.locator(f"#{place}").evaluate("e => e.getBoundingClientRect().top + scrollY")
            for place in ("opportunities", *then)
        }
        assert 0 < top["opportunities"] < MOST_PX
        assert list(top.values()) == sorted(top.values())
        tables = seen.page.locator("main table:visible").evaluate_all(
            "all => all.map(e => e.getBoundingClientRect().top + scrollY)"
        )
        assert min(tables) > top["opportunities"]
        seen.assert_quiet()


@pytest.mark.parametrize("name", some(PAGES, ["doubtful"]))
def test_a_phone_scrolls_down_only(browser: Browser, tmp_path: Path, name: str) -> None:
    with visit(browser, tmp_path, render_html(PAGES[name]()), size=PHONE) as seen:
        assert seen.page.evaluate(ROOM) == [390, 390]
        looks = "[...document.querySelectorAll('p code')].map((code) => getComputedStyle(code).display)"
        assert set(seen.page.evaluate(looks)) <= {"inline"}, "a sentence goes on behind it"
        seen.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert seen.page.evaluate(ROOM) == [390, 390]


def blamed() -> Diagnosis:
    """Choices of which the verdict is about the setting for garbage collection."""
    made = with_choices(build.one_rank())
    rows = sorted(made.opportunities, key=lambda row: row.codes != ["PD202"])
    return replace(made, opportunities=[replace(rows[0], blamed="loss"), *rows[1:]])


@pytest.mark.parametrize("scripts", [True, False])
def test_the_verdict_why_and_next_lead_the_page_and_settings_need_no_opening(
    browser: Browser, tmp_path: Path, scripts: bool
) -> None:
    made = replace(blamed(), verdict="The host collects garbage.", why="Four collections.")
    with visit(browser, tmp_path, render_html(made), size=SCREEN, scripts=scripts, folded=True) as seen:
        said = [text for text in seen.shown() if text]
        order = ["The host collects garbage.", "Why:", "Next:", "What to do", "--manual-gc true"]
        places = [said.index(text) for text in order]
        assert places == sorted(places)
        rows = seen.page.locator(".opp .code").all_inner_texts()
        assert rows[0] == "PD202"
        assert seen.page.locator("nav a").count() <= LINKS
        # What is folded opens without a script.
        assert not seen.page.locator("#facts dl").is_visible()
        seen.page.locator("#facts > details > summary").click()
        assert seen.page.locator("#facts dl").is_visible()
        seen.assert_quiet()


TALLEST = 5_000
"""Pixels of a page as it opens, at a width of 1,400."""
LINKS = 6


@pytest.mark.parametrize("name", some(PAGES, ["choices"]))
def test_a_page_opens_short(browser: Browser, tmp_path: Path, name: str) -> None:
    with visit(browser, tmp_path, render_html(PAGES[name]()), size=(1400, 900), folded=True) as seen:
        assert seen.page.evaluate("document.documentElement.scrollHeight") <= TALLEST


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["nsys/gpt_small_full_step_a100.sqlite", "strangers/ddp_resnet_4gpu_rocm_one_file.json.gz"]
)
def test_the_page_of_a_capture_of_three_megabytes_opens_short(
    browser: Browser, tmp_path: Path, shared_traces: Path, name: str
) -> None:
    made = perfdoc.analyze(shared_traces / name).diagnosis
    with visit(browser, tmp_path, render_html(made), size=(1400, 900), folded=True) as seen:
        assert seen.page.evaluate("document.documentElement.scrollHeight") <= TALLEST
        assert seen.page.locator("nav a").count() <= LINKS
        seen.assert_quiet()


def test_a_setting_is_copied_without_opening_its_row(browser: Browser, tmp_path: Path) -> None:
    permissions = ["clipboard-read", "clipboard-write"]
    html = render_html(with_choices(build.one_rank()))
    with visit(browser, tmp_path, html, size=SCREEN, permissions=permissions) as seen:
        quick = seen.page.locator("#PD202 .quick")
        gain = seen.page.locator("#PD202 .gain")
        assert "2 ms" in gain.inner_text()
        quick.get_by_role("button").click()
        seen.page.locator("#said", has_text="Copied.").wait_for(state="attached")
        assert seen.page.evaluate("navigator.clipboard.readText()") == "--manual-gc true"
        seen.page.locator("#dialect").select_option("perfdoc")
        assert quick.locator("code:visible").all_inner_texts() == ["manual_gc=true"]
        # Opened, the row has all of its settings, and none of them twice.
        seen.page.locator("#PD202 summary").click()
        assert quick.is_hidden()
        assert seen.page.locator("#PD202 .paste:visible").all_inner_texts() == ["manual_gc=true"]
        seen.assert_quiet()


def test_the_way_to_make_a_change_that_no_rule_explains_stays_when_its_row_is_open_or_printed(
    browser: Browser, tmp_path: Path
) -> None:
    """Of PD202 the open row has the settings, and paper has the open row."""
    made = with_choices(build.one_rank())
    at = next(i for i, row in enumerate(made.opportunities) if row.codes == ["PD202"])
    own = replace(made.opportunities[at], codes=[])
    html = render_html(replace(made, opportunities=[own, *made.opportunities]))
    with visit(browser, tmp_path, html, size=SCREEN) as seen:
        ways = [seen.page.locator(f"{row} .quick") for row in ("#opportunity-1", "#PD202")]
        seen.page.emulate_media(media="print")
        assert [way.is_visible() for way in ways] == [True, False]
        seen.page.emulate_media(media="screen")
        assert all(way.is_visible() for way in ways)
        for row in ("#opportunity-1", "#PD202"):
            seen.page.locator(f"{row} summary").click()
        assert [way.is_visible() for way in ways] == [True, False]
