"""How long a report takes to open in Chromium, and to draw its interactive timeline.

    python benchmarks/page.py REPORT.html [--rounds 7]

Each round opens the page from disk in a browser of its own, with the network off. `open` is from the request
to the load event; `content` to the first paint of text; `chart` from when the timeline is scrolled to until
it can be zoomed; `work` is the processor time of the page's main thread until half a second after the
load. Needs playwright and a Chromium, as the tests of the page do.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
MAX_OPEN_S = 2.0
"""The page of 2 million kernels opens in less."""
MAX_BYTES = 6_000_000
_WAIT_MS = 60_000
_TIMES = """() => {
  const [page] = performance.getEntriesByType('navigation');
  const [paint] = performance.getEntriesByName('first-contentful-paint');
  return [page.loadEventEnd - page.startTime, paint ? paint.startTime : NaN];
}"""


def one_round(path: Path, browser: str) -> tuple[float, float, float, float]:
    """(open, content, chart, work) in seconds."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=browser, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_context(offline=True, viewport={"width": 1280, "height": 900}).new_page()
        session = page.context.new_cdp_session(page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        page.goto(path.resolve().as_uri(), wait_until="load")
        page.wait_for_timeout(500)  # the first paint is told after it
        told = {row["name"]: row["value"] for row in session.send("Performance.getMetrics")["metrics"]}
        opened, content = page.evaluate(_TIMES)
        begin = time.perf_counter()
        page.locator("#timeline-still .track").first.click()
        page.wait_for_selector("#timeline-chart[data-ready]", timeout=_WAIT_MS)
        chart = time.perf_counter() - begin
        chromium.close()
    return opened / 1e3, content / 1e3, chart, told["TaskDuration"]


def main() -> int:
    """Print medians and ranges; 1 where the page is larger, or opens later, than it may."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    browser = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if browser is None:
        parser.error("no Chromium is installed")
    rounds = [one_round(given.report, browser) for _ in range(given.rounds)]
    for name, column in zip(("open", "content", "chart", "work"), zip(*rounds, strict=True), strict=True):
        print(f"{name:8} {statistics.median(column):.2f} s ({min(column):.2f} to {max(column):.2f})")
    size = given.report.stat().st_size
    print(f"size     {size / 1e6:.2f} MB")
    late = statistics.median(r[0] for r in rounds) > MAX_OPEN_S
    return int(late or size > MAX_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
