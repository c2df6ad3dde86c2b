"""An accessibility checker over a page with everything on it, open, in light and dark."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from perfdoc.reports.html import render_html
from perfdoc.results import Diagnosis
from tests.amount import some
from tests.reports import build, jobs
from tests.reports.browser import NARROW, WIDE, visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
"""Taken out where a style is planted."""


def _everything() -> Diagnosis:
    return jobs.job("exposed")


def violations(page: Any) -> list[str]:
    """What is serious or critical, with the first element of each."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    found = axe.Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:120]}: {each['nodes'][0]['failureSummary'][:300]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


LOOKS = [("light", WIDE), ("dark", WIDE), ("light", NARROW)]


@pytest.mark.parametrize(("scheme", "size"), some(LOOKS, []))
def test_no_serious_violation(browser: Browser, tmp_path: Path, scheme: str, size: tuple[int, int]) -> None:
    with visit(browser, tmp_path, render_html(_everything()), size=size, color_scheme=scheme) as seen:
        seen.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
        assert violations(seen.page) == []
        seen.assert_quiet()


@pytest.mark.slow
def test_the_checker_finds_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    html = POLICY.sub("", render_html(build.one_rank())).replace(
        "<main>", '<main><button></button><p class="hush">'
    )
    with visit(browser, tmp_path, html.replace("--muted: #586270", "--muted: #d0d0d0")) as seen:
        found = [each.split(":")[0] for each in violations(seen.page)]
    assert {"button-name", "color-contrast"} <= set(found)
