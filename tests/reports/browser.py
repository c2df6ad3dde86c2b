"""A page in a real Chromium, opened from disk without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
WIDE = (1280, 900)
NARROW = (420, 800)

SHOWN = """() => {
  // Every text that can be seen, in order; controls that need a script are left out.
  const shown = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const at = node.parentElement;
    const text = node.textContent.trim();
    if (text && at.checkVisibility() && !at.closest('.scripted-only, .copy, script, style')) shown.push(text);
  }
  return shown;
}"""
"""Text as a reader sees it: what is folded away is not in it."""


@dataclass(frozen=True, kw_only=True)
class Visit:
    """An open page, and what it did since."""

    page: Page
    console: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    """Of anything but the page itself."""

    def shown(self) -> list[str]:
        """Texts that can be seen."""
        found: list[str] = self.page.evaluate(SHOWN)
        return found

    def assert_quiet(self) -> None:
        """Nothing was logged, nothing went wrong, nothing was asked for."""
        assert self.console == []
        assert self.requests == []


@contextmanager
def visit(
    browser: Browser,
    folder: Path,
    html: str,
    *,
    size: tuple[int, int] = WIDE,
    scripts: bool = True,
    hash_: str = "",
    folded: bool = False,
    **options: Any,
) -> Iterator[Visit]:
    """Write the page and open it. folded: with its sections as they are, else all open. options: of a
    context, such as color_scheme."""
    path = folder / "report.html"
    path.write_text(html, encoding="utf-8")
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, offline=True, java_script_enabled=scripts, **options
    )
    try:
        page = context.new_page()
        found = Visit(page=page)
        page.on("console", lambda message: found.console.append(message.text))
        page.on("pageerror", lambda error: found.console.append(str(error)))
        page.on(
            "request",
            lambda request: (
                found.requests.append(request.url) if not request.url.startswith(path.as_uri()) else None
            ),
        )
        page.goto(path.as_uri() + hash_)
        if not folded:
            page.evaluate("for (const d of document.querySelectorAll('details.fold')) d.open = true")
        yield found
    finally:
        context.close()
