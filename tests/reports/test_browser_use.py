"""What a reader does with the page, by mouse and by keyboard: sort, open, copy, choose, switch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from perfdoc.reports.html import render_html
from tests.amount import some
from tests.reports import build
from tests.reports.browser import Visit, visit
from tests.reports.build_choices import with_choices

if TYPE_CHECKING:
    from playwright.sync_api import Browser

HTML = render_html(with_choices(build.many_ranks(8)))
ADD_UP = "() => document.querySelectorAll('input.choice:checked').length"


@pytest.fixture
def seen(browser: Browser, tmp_path: Path) -> Iterator[Visit]:
    with visit(browser, tmp_path, HTML, permissions=["clipboard-read", "clipboard-write"]) as found:
        yield found
        found.assert_quiet()


def _column(seen: Visit, table: str, at: int) -> list[int]:
    cells = seen.page.locator(f"#{table} tbody tr > :nth-child({at})").all()
    return [int(cell.get_attribute("data-ns") or -1) for cell in cells]


@pytest.mark.parametrize("by", some(["mouse", "keyboard"], ["mouse"]))
def test_tables_sort_by_any_column_and_back(seen: Visit, by: str) -> None:
    def press(name: str) -> None:
        button = seen.page.locator("#comm thead").get_by_role("button", name=name)
        if by == "mouse":
            button.click()
        else:
            button.focus()
            seen.page.keyboard.press("Enter" if name == "exposed" else "Space")

    head = seen.page.locator("#comm thead th", has_text="exposed")
    written = [row.inner_text() for row in seen.page.locator("#comm tbody tr").all()]
    heads = seen.page.locator("#comm thead th").all_inner_texts()
    at = 1 + next(i for i, text in enumerate(heads) if "exposed" in text)
    figures = _column(seen, "comm", at)
    press("exposed")
    assert head.get_attribute("aria-sort") == "descending"
    assert _column(seen, "comm", at) == sorted(figures, reverse=True)
    press("exposed")
    assert head.get_attribute("aria-sort") == "ascending"
    assert _column(seen, "comm", at) == sorted(figures)
    press("dimension")
    assert head.get_attribute("aria-sort") is None
    names = seen.page.locator("#comm tbody th").all_inner_texts()
    assert names == sorted(names)
    press("dimension")
    assert seen.page.locator("#comm tbody th").all_inner_texts() == sorted(names, reverse=True)
    press("dimension")
    assert [row.inner_text() for row in seen.page.locator("#comm tbody tr").all()] == written


@pytest.mark.parametrize("by", some(["mouse", "keyboard"], ["mouse"]))
def test_an_opportunity_opens_to_why_and_how(seen: Visit, by: str) -> None:
    first = seen.page.locator("#PD203 summary")
    assert not seen.page.locator("#PD203 h3", has_text="Why").is_visible()
    if by == "mouse":
        first.click()
    else:
        first.focus()
        seen.page.keyboard.press("Enter")
    headings = seen.page.locator("#PD203 h3:visible").all_inner_texts()
    assert headings == ["Why", "Do", "Gain", "How to verify", "False alarm if"]
    first.press("Enter")
    assert seen.page.locator("#PD203 h3:visible").count() == 0


def test_a_link_to_an_opportunity_opens_it(browser: Browser, tmp_path: Path) -> None:
    with visit(browser, tmp_path, HTML, hash_="#PD202") as seen:
        assert seen.page.locator("#PD202 h3", has_text="Why").is_visible()
        assert seen.page.locator("#PD202").evaluate("e => e.getBoundingClientRect().top < innerHeight")
        seen.assert_quiet()


@pytest.mark.parametrize("by", some(["mouse", "keyboard"], ["mouse"]))
def test_a_setting_is_copied_as_it_is_written(seen: Visit, by: str) -> None:
    seen.page.clock.install()  # so that what is said for two seconds stays
    seen.page.locator("#PD202 summary").click()
    button = seen.page.get_by_role("button", name="copy the setting for Megatron-LM")
    if by == "mouse":
        button.click()
    else:
        button.focus()
        seen.page.keyboard.press("Enter")
    seen.page.locator("#said", has_text="Copied.").wait_for(state="attached")
    assert seen.page.evaluate("navigator.clipboard.readText()") == "--manual-gc true"
    assert button.inner_text() == "copied"
    seen.page.clock.fast_forward(2_001)
    assert button.inner_text() == "copy"


@pytest.mark.slow
def test_the_reader_s_dialect_is_shown_alone(seen: Visit) -> None:
    seen.page.locator("#PD202 summary").click()
    # The diagnosis knows in which the job is written.
    assert seen.page.locator("#dialect").input_value() == "megatron_lm"
    assert seen.page.locator("#PD202 .paste:visible").all_inner_texts() == ["--manual-gc true"]
    seen.page.locator("#dialect").select_option("perfdoc")
    assert seen.page.locator("#PD202 .paste:visible").all_inner_texts() == ["manual_gc=true"]
    seen.page.locator("#dialect").select_option("all")
    assert seen.page.locator("#PD202 .paste:visible").count() == 3


def test_a_chosen_set_shows_what_was_simulated_for_it_and_nothing_is_added(seen: Visit) -> None:
    said = seen.page.locator("#chosen")
    assert said.inner_text() == "No change is chosen."
    # By mouse beside an opportunity: its twin below is chosen with it.
    seen.page.locator("#PD203 input.choice").check()
    assert said.inner_text() == "This change alone: saves 10 ms (9 ms to 11 ms)"
    assert seen.page.evaluate(ADD_UP) == 2
    # By keyboard below.
    seen.page.get_by_label("without gc").focus()
    seen.page.keyboard.press("Space")
    # 2 + 10 were simulated to gain 11.5 together, not 12.
    assert said.inner_text() == "Simulated together: saves 11.5 ms (10.4 ms to 12.6 ms)"
    assert seen.page.locator("#PD202 input.choice").is_checked()
    seen.page.get_by_label("norms alone").check()
    assert said.inner_text().startswith("Simulated together: saves 12 ms")
    seen.page.locator("#PD203 input.choice").uncheck()
    assert said.inner_text().startswith("Simulated together: saves 2.5 ms")


@pytest.mark.slow
def test_a_set_that_was_not_simulated_is_said_to_be_none(browser: Browser, tmp_path: Path) -> None:
    html = HTML.replace('data-set="0,1"', 'data-set="gone"')
    with visit(browser, tmp_path, html) as seen:
        seen.page.get_by_label("without gc").check()
        seen.page.get_by_label("without data").check()
        assert seen.page.locator("#chosen").inner_text() == "These were not simulated together."


@pytest.mark.parametrize("by", some(["mouse", "keyboard"], []))
def test_the_theme_is_switched_and_kept(seen: Visit, by: str) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    light = seen.page.evaluate(colour)
    select = seen.page.locator("#theme")
    assert select.input_value() == "auto"
    if by == "mouse":
        select.select_option("dark")
    else:
        select.focus()
        seen.page.keyboard.press("d")
    dark = seen.page.evaluate(colour)
    assert (light, dark) == ("rgb(250, 250, 248)", "rgb(17, 20, 24)")
    seen.page.reload()
    assert seen.page.evaluate(colour) == dark
    assert select.input_value() == "dark"
    seen.page.emulate_media(color_scheme="dark")
    select.select_option("light")
    assert seen.page.evaluate(colour) == light
    select.select_option("auto")
    assert seen.page.evaluate(colour) == dark


def test_every_control_is_reached_by_tab_and_shows_it(seen: Visit) -> None:
    reached = []
    for _ in range(400):
        seen.page.keyboard.press("Tab")
        found = seen.page.evaluate(
            "() => { const e = document.activeElement; if (e === document.body) return null;"
            " const s = getComputedStyle(e); return [e.tagName + '.' + e.className + '#' + e.id,"
            " s.outlineStyle !== 'none' || s.boxShadow !== 'none']; }"
        )
        if found is None:
            break
        reached.append(found)
    else:
        raise AssertionError("the tab order does not end")
    names = {name for name, _ in reached}
    for control in ("SELECT.#theme", "SELECT.#dialect", "INPUT.choice#", "BUTTON.sort#", "SUMMARY.#"):
        assert control in names
    assert [name for name, outlined in reached if not outlined] == []


def test_printing_opens_what_is_folded_and_folds_it_again(seen: Visit) -> None:
    shut = "() => document.querySelectorAll('details:not([open])').length"
    before = seen.page.evaluate(shut)
    seen.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert seen.page.evaluate(shut) == seen.page.locator("details.exact").count()
    seen.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert seen.page.evaluate(shut) == before
