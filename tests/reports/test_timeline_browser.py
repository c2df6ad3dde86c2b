"""The timeline in a real browser: it draws, zooms by mouse and keyboard, asks for nothing, logs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from perfdoc.reports.html import render_html
from tests.amount import some
from tests.reports import build
from tests.reports.build_timeline import timeline, with_timeline
from tests.reports.fill import with_text
from tests.reports.hostile import HOSTILE

pytest.importorskip("plotly", reason="plotly is not installed")


@pytest.fixture(autouse=True)
def closed_again(browser: Any) -> Iterator[None]:
    """Pages that stay open draw on, and slow down the next."""
    yield
    for context in browser.contexts:
        context.close()


SPAN = 60 * 20_000 + 5_000
WAIT_MS = 20_000


class Opened:
    """A page with what it logged and asked for."""

    def __init__(self, browser: Any, folder: Path, html: str, **options: Any) -> None:
        file = folder / "page.html"
        file.write_text(html, encoding="utf-8")
        context = browser.new_context(viewport={"width": 1200, "height": 900}, offline=True, **options)
        self.page = context.new_page()
        self.logged: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.logged.append(message.text))
        self.page.on("pageerror", lambda error: self.logged.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.uri = file.as_uri()

    def ready(self) -> None:
        self.page.locator("#timeline-still .track").first.click()
        self.page.wait_for_selector("#timeline-chart[data-ready]", timeout=WAIT_MS)

    def view(self) -> tuple[int, int]:
        data = self.page.evaluate("({...document.getElementById('timeline-chart').dataset})")
        return int(data["from"]), int(data["to"])

    def shows(self, start: int, end: int) -> None:
        selector = f"#timeline-chart[data-from='{start}'][data-to='{end}']"
        self.page.wait_for_selector(selector, timeout=WAIT_MS)

    def hover(self, down: float) -> str:
        """What the chart says of its first bar so far down."""
        box = self.page.locator("#timeline-plot .nsewdrag").first.bounding_box()
        for across in (0.006, 0.008):
            self.page.mouse.move(box["x"] + box["width"] * across, box["y"] + box["height"] * down)
        self.page.wait_for_selector("#timeline-plot .hovertext", timeout=WAIT_MS)
        return " ".join(self.page.locator("#timeline-plot .hovertext").all_text_contents())

    def quiet(self) -> None:
        assert self.logged == []
        # A blob is how the page unpacks the library; it leaves the page no more than a variable does.
        assert [u for u in self.asked if not u.startswith("blob:")] == [self.uri]


def test_it_zooms_by_mouse_and_keyboard(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_html(with_timeline()))
    opened.ready()
    page = opened.page
    assert opened.view() == (0, SPAN)
    # Out of sight, and still there for a screen reader, to which the chart says no figure.
    box = page.locator("#timeline-still").bounding_box()
    assert (box["width"], box["height"]) == (1, 1)
    assert "rank 1, ledger: compute " in page.locator("#timeline").aria_snapshot()
    assert page.locator("#timeline-plot .point").count() > 60
    page.click("button[data-do=in]")
    opened.shows(SPAN // 4, SPAN // 4 + (SPAN + 1) // 2)
    page.click("button[data-do=whole]")
    opened.shows(0, SPAN)
    # By keyboard alone: from the first button to the chart, then in and to the left.
    page.focus("button[data-do=in]")
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "timeline-plot":
            break
    assert page.evaluate("document.activeElement.id") == "timeline-plot"
    page.keyboard.press("+")
    opened.shows(SPAN // 4, SPAN // 4 + (SPAN + 1) // 2)
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"document.getElementById('timeline-chart').dataset.from < {SPAN // 4 - 1000}")
    page.keyboard.press("0")
    opened.shows(0, SPAN)
    # By the mouse: drag over the middle half of the plot.
    box = page.locator("#timeline-plot .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.25, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 60, steps=8)
    page.mouse.up()
    page.wait_for_function("Number(document.getElementById('timeline-chart').dataset.from) > 0")
    start, end = opened.view()
    assert (start, end) == pytest.approx((SPAN / 4, SPAN * 3 / 4), rel=0.05)
    opened.quiet()


def test_who_scrolls_past_unpacks_nothing(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_html(with_timeline()))
    opened.page.locator("#timeline").scroll_into_view_if_needed()
    opened.page.wait_for_timeout(300)
    assert opened.page.evaluate("typeof Plotly") == "undefined"
    assert opened.page.locator("#timeline-still").is_visible()
    opened.page.click("button[data-do=in]")  # the first view is the one that was asked for
    opened.shows(SPAN // 4, SPAN // 4 + (SPAN + 1) // 2)
    opened.page.wait_for_selector("#timeline-still.replaced", state="attached")
    opened.quiet()


@pytest.mark.slow
def test_a_bar_says_what_it_is(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_html(with_timeline(ranks=1)))
    opened.ready()
    # Row 1 of 5 is compute, its first bar the kernel of the first 30 of 1200 us.
    said = opened.hover(0.3)
    assert "gemm" in said
    assert "30.000 µs" in said
    assert "nvjet_hsh_256x128" in said
    opened.quiet()


def test_without_scripts_the_picture_is_there(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, render_html(with_timeline()), java_script_enabled=False)
    page = opened.page
    assert page.locator("#timeline-still").is_visible()
    assert not page.locator("#timeline-chart").is_visible()
    assert page.locator("#timeline-still path").count() > 10
    box = page.locator("#timeline-still .track").first.bounding_box()
    assert box["width"] > 500
    # The outline is as wide as what it marks, of a row of 1,000 units.
    mark = page.locator("#timeline-still rect.mark").first
    drawn = float(mark.get_attribute("width")) / 1000 * box["width"]
    assert mark.evaluate("e => e.getBoundingClientRect().width") == pytest.approx(drawn, abs=3)
    opened.quiet()


def try_hostile(browser: Any, folder: Path, text: str, *, policy: bool) -> None:
    html = render_html(replace(build.one_rank(), timeline=with_text(timeline(), text)))
    opened = Opened(browser, folder, html if policy else html.replace("Content-Security-Policy", "X-None"))
    opened.ready()
    assert opened.hover(0.05)
    assert opened.page.locator("#timeline-plot a, #timeline-plot img, #timeline-plot script").count() == 0
    assert opened.page.title().startswith("perfdoc: ")
    opened.quiet()


MARKUP = [t for t in HOSTILE if "<" in t and len(t) < 1000]


@pytest.mark.parametrize("text", some(MARKUP, []))
def test_hostile_names_run_nothing_even_without_the_policy(browser: Any, tmp_path: Path, text: str) -> None:
    try_hostile(browser, tmp_path, text, policy=False)


@pytest.mark.slow
def test_hostile_names_log_nothing_with_the_policy(browser: Any, tmp_path: Path) -> None:
    try_hostile(browser, tmp_path, "<img src=x onerror=a><b>\x00\u202e{{7}}", policy=True)
