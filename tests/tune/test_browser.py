"""The page of `perfdoc tune` in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc.tune.words import render_html
from tests.reports.browser import NARROW, visit
from tests.tune.test_ranking import tuned

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_the_page_in_a_browser(browser: Browser, tmp_path: Path) -> None:
    found = tuned()
    with visit(browser, tmp_path, render_html(found), size=NARROW) as seen:
        assert seen.page.locator("#ranking tbody tr").count() == len(found.rows)
        assert seen.page.locator("#ranking tbody").is_visible()
        assert seen.page.locator("code.paste").first.text_content() == "--pipeline-model-parallel-size 1"
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= NARROW[0]
        seen.assert_quiet()
