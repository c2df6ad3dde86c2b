"""A rule's worst instance in a browser: where its wait lies, without scripts, on a narrow screen."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfdoc.reports.html import render_html
from perfdoc.results.figures import duration
from tests.amount import some
from tests.reports.browser import NARROW, WIDE, visit
from tests.reports.build_worst import worst_instance
from tests.reports.test_browser_axe import violations
from tests.reports.test_worst_instance import shown, with_instance

if TYPE_CHECKING:
    from playwright.sync_api import Browser

LOOKS = [("light", WIDE), ("dark", WIDE), ("light", NARROW)]


@pytest.mark.parametrize(("scheme", "size"), some(LOOKS, []))
def test_in_a_browser(browser: Browser, tmp_path: Path, scheme: str, size: tuple[int, int]) -> None:
    with visit(browser, tmp_path, render_html(shown()), size=size, color_scheme=scheme) as seen:
        seen.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        box = seen.page.locator("figure.cut").first
        assert "Idle for 50 us" in box.inner_text()
        mark = box.locator(".cut-bar").bounding_box()
        wait = box.locator("rect[data-start='20000'][data-ns='50000']").first.bounding_box()
        assert mark is not None
        assert wait is not None
        # The bar that the sentence is about lies under the mark.
        assert abs(mark["x"] - wait["x"]) < 2
        assert abs(mark["width"] - wait["width"]) < 3
        row = box.locator("svg.track").first.bounding_box()
        assert row is not None
        assert abs(wait["width"] / row["width"] - 0.5) < 0.02
        assert violations(seen.page) == []
        assert seen.page.evaluate("document.documentElement.scrollWidth") == size[0]
        seen.assert_quiet()


def test_without_scripts_it_is_drawn_all_the_same(browser: Browser, tmp_path: Path) -> None:
    with visit(browser, tmp_path, render_html(shown()), scripts=False) as seen:
        seen.page.locator("#opportunities summary").first.click()
        assert seen.page.locator("figure.cut").first.is_visible()


_CROWDED = """() => {
  // Headline figures wider than their card, and times below an instance that lie on one another.
  const wide = [...document.querySelectorAll('.verdict .value')].filter(
    e => e.getBoundingClientRect().right > e.closest('.figure').getBoundingClientRect().right);
  const over = [...document.querySelectorAll('.cut .axis')].flatMap(axis => {
    const at = [...axis.querySelectorAll('text')].map(e => e.getBoundingClientRect()).filter(r => r.width);
    return at.slice(1).map((r, i) => r.left < at[i].right).filter(crossed => crossed);
  });
  return [...wide.map(e => e.textContent), ...over];
}"""


def test_a_narrow_screen_has_room_for_figures_and_times(browser: Browser, tmp_path: Path) -> None:
    # [0, 50) us of an excerpt from -20 to 80 us: four times on a wide screen.
    times = ".cut .axis text:visible"
    with visit(browser, tmp_path, render_html(with_instance(worst_instance()))) as seen:
        seen.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        wide = seen.page.locator(times).all_text_contents()
        assert wide == [duration(-20_000), "0", "50.000 µs", "80.000 µs"]
        seen.page.set_viewport_size({"width": 340, "height": 800})
        assert seen.page.locator(times).all_text_contents() == ["0", "50.000 µs"]
        # As long as a figure gets.
        longest = "for (const e of document.querySelectorAll('.verdict .value')) e.textContent = '358.774 ms'"
        seen.page.evaluate(longest)
        assert seen.page.evaluate(_CROWDED) == []
