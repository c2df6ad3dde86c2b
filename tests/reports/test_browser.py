"""The page in a real browser: nothing foreign runs, nothing is fetched, nothing overflows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfdoc.reports.html import render_html
from tests.amount import some, tries
from tests.reports import build, hostile, jobs
from tests.reports.browser import NARROW, WIDE, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# With the policy of the page in force a planted script could not run even where escaping failed, so
# the escaping is tried on a copy without the policy.
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
BARS = """() => Array.from(document.querySelectorAll('svg.bar')).filter(b => b.checkVisibility()).map(bar =>
  [bar.getBoundingClientRect().width,
   Array.from(bar.querySelectorAll('rect')).reduce((sum, r) => sum + r.width.baseVal.value, 0)])"""


def test_the_check_for_planted_scripts_messages_and_requests_works(browser: Browser, tmp_path: Path) -> None:
    bad = (
        '<!doctype html><title>a</title><img src="http://evil.example/x" '
        "onerror=\"document.title='pwned';console.error('seen')\">"
    )
    with visit(browser, tmp_path, bad) as seen:
        seen.page.wait_for_function("document.title === 'pwned'")
        assert any("seen" in line for line in seen.console)
        assert seen.requests == ["http://evil.example/x"]


@pytest.mark.parametrize("kind", some(["rank", "choices"], ["choices"]))
def test_hostile_names_run_nothing_even_without_the_policy(
    browser: Browser, tmp_path: Path, kind: str
) -> None:
    make = {"rank": hostile.hostile, "choices": hostile.hostile_choices}
    short = [text for text in hostile.HOSTILE if len(text) < 1000]
    alone = [text for text in short if any(c in text for c in "<\"{'") or text.startswith("javascript")]
    for text in ["".join(short), *(alone[: tries(3, len(alone))] if kind == "rank" else [])]:
        with visit(browser, tmp_path, POLICY.sub("", render_html(make[kind](text)))) as seen:
            assert seen.page.evaluate("window.pwned") is None
            assert seen.page.title().startswith("perfdoc: ")
            seen.assert_quiet()
            if text in alone:
                continue
            seen.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            for box in seen.page.locator("fieldset input.choice").all():
                box.check()
            for button in seen.page.locator(".sort").all()[:5]:
                button.click()
            assert seen.page.title().startswith("perfdoc: ")
            assert seen.page.evaluate("window.pwned") is None
            seen.assert_quiet()


@pytest.mark.parametrize("name", some(["one", "thousand", "none"], ["one"]))
def test_the_page_logs_and_fetches_nothing(browser: Browser, tmp_path: Path, name: str) -> None:
    made = {
        "one": build.one_rank,
        "thousand": lambda: build.many_ranks(1000),
        "none": lambda: build.diagnosis([]),
    }[name]()
    with visit(browser, tmp_path, render_html(made)) as seen:
        assert seen.page.locator("html.scripted").count() == 1  # its own scripts do run
        seen.assert_quiet()


def test_the_policy_stops_a_script_that_got_in(browser: Browser, tmp_path: Path) -> None:
    html = render_html(build.one_rank()).replace("</main>", "<script>document.title='pwned'</script></main>")
    with visit(browser, tmp_path, html) as seen:
        assert seen.page.title().startswith("perfdoc: ")
        assert any("Content Security Policy" in line for line in seen.console)


@pytest.mark.parametrize("size", [NARROW, pytest.param(WIDE, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("name", "drawn"), some([("eight", 9), ("stages", 5), ("hostile", 3)], [("hostile", 3)])
)
def test_bars_are_full_and_the_page_does_not_scroll_sideways(
    browser: Browser, tmp_path: Path, name: str, drawn: int, size: tuple[int, int]
) -> None:
    made = {
        "eight": lambda: build.many_ranks(8),
        "stages": lambda: jobs.job("stages"),
        "hostile": lambda: hostile.hostile_choices("W" * 3000),
    }[name]()
    with visit(browser, tmp_path, render_html(made), size=size) as seen:
        seen.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        root = seen.page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert root[0] == root[1]
        bars = seen.page.evaluate(BARS)
        assert len(bars) == drawn
        for width, filled in bars:
            assert width > 120
            assert filled == pytest.approx(width, abs=0.05)


def _luminance(colour: str) -> float:
    red, green, blue = (
        (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for c in (int(x) / 255 for x in re.findall(r"\d+", colour)[:3])
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("scripts", some([True, False], [True]))
def test_light_and_dark_follow_the_reader(
    browser: Browser, tmp_path: Path, scheme: str, scripts: bool
) -> None:
    html = render_html(build.one_rank())
    with visit(browser, tmp_path, html, scripts=scripts, color_scheme=scheme) as seen:
        style = "getComputedStyle(document.body)"
        behind, ink = (_luminance(seen.page.evaluate(f"{style}.{n}")) for n in ("backgroundColor", "color"))
    assert (behind < ink) is (scheme == "dark")
    assert (max(behind, ink) + 0.05) / (min(behind, ink) + 0.05) > 7  # WCAG AAA for text


@pytest.mark.slow
def test_without_javascript_the_page_says_the_same_and_offers_no_dead_control(
    browser: Browser, tmp_path: Path
) -> None:
    html = render_html(hostile.hostile_choices("harmless"))
    with visit(browser, tmp_path, html) as seen:
        with_scripts = seen.shown()
        assert seen.page.locator("select:visible, input:visible, button:visible").count() > 5
    with visit(browser, tmp_path, html, scripts=False) as seen:
        assert seen.shown() == with_scripts
        assert len(with_scripts) > 200
        assert seen.page.locator("select:visible, input:visible, button:visible").count() == 0
        # Folding needs no script either, and what is folded away can be read once it is opened.
        closed = len(seen.shown())
        while (folded := seen.page.locator("details:not([open]) > summary:visible")).count():
            folded.first.click()
        assert len(seen.shown()) > closed + 20
    # A page that does need JavaScript says something else, so the comparison can fail.
    needs = POLICY.sub("", html).replace("</main>", "<script>document.body.textContent='x'</script></main>")
    with visit(browser, tmp_path, needs) as seen:
        assert seen.shown() != with_scripts


def test_it_prints_in_light_whole_and_without_controls(browser: Browser, tmp_path: Path) -> None:
    html = render_html(hostile.hostile_choices("harmless"))
    with visit(browser, tmp_path, html, color_scheme="dark", scripts=False) as seen:
        seen.page.emulate_media(media="print", color_scheme="dark")
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        assert not seen.page.locator("nav").is_visible()
        # What is folded away on the screen is on paper.
        assert seen.page.locator(".opp details .more h3", has_text="Why").first.is_visible()
        assert seen.page.pdf().startswith(b"%PDF")


@pytest.mark.parametrize("name", ["stages", "exposed"])
def test_no_table_is_cut_off_on_paper(browser: Browser, tmp_path: Path, name: str) -> None:
    """A4 between margins of 10 mm is 718 px wide; nobody can scroll on it."""
    wide = "innerWidth < Math.max(...[...document.querySelectorAll('table')].filter(t => t.checkVisibility())"
    with visit(browser, tmp_path, render_html(jobs.job(name)), size=(718, 900)) as seen:
        seen.page.emulate_media(media="print")
        assert seen.page.evaluate(f"{wide}.map(t => t.getBoundingClientRect().right))") is False
