"""What is seen of the page before anything is scrolled: what to do, with its gain and the setting to copy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

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
    with visit(browser, tmp_path, render_html(PAGES[name]()), size=SCREEN) as seen:
        top = {
            place: seen.page.locator(f"#{place}").evaluate("e => e.getBoundingClientRect().top + scrollY")
            for place in ("opportunities", "time", "ledger")
        }
        assert 0 < top["opportunities"] < MOST_PX
        assert top["opportunities"] < top["time"] < top["ledger"]
        tables = seen.page.locator("main table:visible").evaluate_all(
            "all => all.map(e => e.getBoundingClientRect().top + scrollY)"
        )
        assert min(tables) > top["opportunities"]
        seen.assert_quiet()


@pytest.mark.parametrize("name", some(PAGES, ["doubtful"]))
def test_a_phone_scrolls_down_only(browser: Browser, tmp_path: Path, name: str) -> None:
    with visit(browser, tmp_path, render_html(PAGES[name]()), size=PHONE) as seen:
        assert seen.page.evaluate(ROOM) == [390, 390]
        seen.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert seen.page.evaluate(ROOM) == [390, 390]


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
