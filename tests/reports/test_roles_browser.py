"""The section on roles in a real browser: the heat map zooms, every rank can be found, nothing is logged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfdoc.reports.html import render_html
from tests.reports.browser import Visit, visit
from tests.reports.build_roles import late, staged

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PAGE = 100
WAIT_MS = 20_000


def ready(seen: Visit) -> None:
    seen.page.locator("#heat-still").scroll_into_view_if_needed()
    seen.page.wait_for_selector("#heat-chart[data-ready]", timeout=WAIT_MS)


def ranks(seen: Visit) -> list[str]:
    found: list[str] = seen.page.locator("#ranks tbody th").all_inner_texts()
    return found


def view(seen: Visit) -> tuple[int, int]:
    data = seen.page.evaluate("({...document.getElementById('heat-chart').dataset})")
    return int(data["from"]), int(data["to"])


def test_every_rank_is_listed_on_demand_found_and_sorted(browser: Browser, tmp_path: Path) -> None:
    with visit(browser, tmp_path, render_html(staged(256))) as seen:
        assert ranks(seen) == []  # no row before it is asked for
        ready(seen)  # what is below it has moved; a click during that would miss
        seen.page.locator("#every-rank summary").click()
        seen.page.wait_for_selector("#ranks tbody tr")
        assert ranks(seen) == [f"rank {i}" for i in range(PAGE)]
        seen.page.click("#ranks-more")
        seen.page.click("#ranks-more")
        assert len(ranks(seen)) == 256
        assert not seen.page.locator("#ranks-more").is_visible()
        seen.page.fill("#ranks-find", "7, 16-18, nothing")
        assert ranks(seen) == ["rank 7", "rank 16", "rank 17", "rank 18"]
        seen.page.fill("#ranks-find", "")
        seen.page.select_option("#ranks-role", label="stage 1")
        assert seen.page.locator("#ranks-said").inner_text() == "64 of 64 ranks that fit, of 256"
        seen.page.locator("#ranks .sort", has_text="compute").click()
        assert ranks(seen)[0] == f"rank {late(256)}"
        assert seen.page.locator("#ranks [aria-sort]").get_attribute("aria-sort") == "descending"
        seen.page.check("#ranks-far")
        assert ranks(seen) == [f"rank {late(256)}", f"rank {late(256) - 1}"]
        # Rank 69: 390,000 + 400 + 80,000 ns of 1 ms.
        cell = seen.page.locator("#ranks tbody tr").first.locator("td[data-ns='470400']")
        assert cell.inner_text() == "47.0 %"
        seen.page.select_option("#ranks-unit", "ns")
        assert cell.inner_text() == "470,400"
        seen.assert_quiet()


def test_the_heat_map_zooms_and_a_click_looks_a_rank_up(browser: Browser, tmp_path: Path) -> None:
    with visit(browser, tmp_path, render_html(staged(64))) as seen:
        ready(seen)
        assert view(seen) == (0, 64)
        seen.page.click("#heat-chart button[data-do=in]")
        assert view(seen) == (16, 48)
        seen.page.focus("#heat-plot")
        seen.page.keyboard.press("ArrowLeft")
        assert view(seen) == (8, 40)
        seen.page.keyboard.press("0")
        assert view(seen) == (0, 64)
        box = seen.page.locator("#heat-plot canvas").bounding_box()
        assert box is not None
        left, wide = 190, box["width"] - 190
        at = box["x"] + left + wide * (late(64) + 0.5) / 64
        seen.page.mouse.move(at, box["y"] + 10)  # the first row is compute
        # 390,100 + 80,000 ns of 1 ms; the median of the stage is 390,200.
        tip = seen.page.locator("#heat-tip").inner_text()
        assert tip == "rank 21, stage 1: compute 47.01 % of its window, +7.99 % against its role"
        # The late rank is drawn in another colour than its neighbour.
        colours = seen.page.evaluate(
            """x => {
              const canvas = document.querySelector('#heat-plot canvas'), size = devicePixelRatio;
              const row = canvas.getContext('2d').getImageData(0, 10 * size, canvas.width, 1).data;
              const of = (rank) => 4 * Math.round((190 + x * (rank + .5) / 64) * size);
              return [21, 22].map((rank) => row.slice(of(rank), of(rank) + 4).join());
            }""",
            wide,
        )
        assert colours[0] != colours[1]
        # A drag from the middle into the names zooms to the first ranks, not to more for the way beyond them.
        seen.page.mouse.move(box["x"] + left + wide * 31.5 / 64, box["y"] + 10)
        seen.page.mouse.down()
        seen.page.mouse.move(box["x"] + 5, box["y"] + 10, steps=3)
        seen.page.mouse.up()
        assert view(seen) == (0, 32)
        seen.page.focus("#heat-plot")
        seen.page.keyboard.press("0")
        assert view(seen) == (0, 64)
        seen.page.mouse.click(at, box["y"] + 10)
        assert ranks(seen) == ["rank 21"]
        seen.page.locator("#heat-still").scroll_into_view_if_needed()
        seen.page.select_option("#heat-rows", label="compute, by role")
        assert view(seen) == (0, 16)
        seen.assert_quiet()


def test_without_scripts_roles_and_outliers_are_there_and_no_dead_control(
    browser: Browser, tmp_path: Path
) -> None:
    with visit(browser, tmp_path, render_html(staged(64)), scripts=False) as seen:
        shown = " ".join(seen.shown())
        assert "stage 3, loss" in shown
        assert f"rank {late(64)}" in shown
        assert "diagnosis.json has all of them" in shown
        assert seen.page.locator("#heat-still svg").first.is_visible()
        assert seen.page.locator("select:visible, input:visible, button:visible").count() == 0


def test_hostile_labels_run_nothing(browser: Browser, tmp_path: Path) -> None:
    made = staged(64)
    text = "<img src=x onerror=window.pwned=1></script><script>window.pwned=1</script>"
    bad = replace(
        made,
        ranks=[replace(rank, label=f"{i} {text}") for i, rank in enumerate(made.ranks)],
        inputs=[replace(item, path=f"/data/{text}") for item in made.inputs],
    )
    with visit(browser, tmp_path, render_html(bad)) as seen:
        ready(seen)
        seen.page.locator("#every-rank summary").click()
        seen.page.wait_for_selector("#ranks tbody tr")
        assert ranks(seen)[0].startswith("0 <img src=x")
        seen.page.locator("#heat-plot canvas").hover(position={"x": 400, "y": 10})
        assert "<img" in seen.page.locator("#heat-tip").inner_text()
        assert seen.page.evaluate("window.pwned") is None
        seen.assert_quiet()
