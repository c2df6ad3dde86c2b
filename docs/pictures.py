"""The pictures of README and docs: `make pictures`, or `python docs/pictures.py [NAME...]`.

Two jobs are simulated and analysed with the real command; the terminal's text is what it writes to one of
80 columns, the pages are report.html in a headless Chromium. Needs playwright and a Chromium, as tests do.
"""

from __future__ import annotations

import argparse
import html
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS / "report"
MAX_BYTES = 300_000
DEMO = ("demo", "-o", "demo")
JOB = (
    *("simulate", "llama3-8b", "--layout", "tp=2,pp=2,dp=4,vpp=2,micro_batches=8,sp=on", "-o", "job"),
    *("--fault", "gc", "--fault", "slow_data", "--fault", "norm_spin"),
)
TERMINAL = """<meta charset="utf-8"><style>
body { margin: 0; background: #16181d; color: #e6e6e6; width: max-content }
pre { margin: 0; padding: 14px 18px; font: 13px/1.35 "DejaVu Sans Mono", monospace }
i { color: #8ab4f8; font-style: normal }
.m1, .m33 { font-weight: bold } .m2 { color: #9aa0a6 } .m31 { color: #ff8a80 } .m34 { color: #8ab4f8 }
</style><pre><i>$ %s</i>
%s</pre>"""


def analysed(make: tuple[str, ...], folder: str, where: Path) -> str:
    """Make the captures of a job and analyse them; what the terminal shows."""
    perfdoc = [sys.executable, "-m", "perfdoc"]
    subprocess.run([*perfdoc, *make], cwd=where, check=True, capture_output=True)
    words = ["analyze", f"{folder}/traces", "--config", f"{folder}/job.yaml", "-o", f"{folder}-report"]
    return in_a_terminal([*perfdoc, *words], where)


def in_a_terminal(command: list[str], where: Path) -> str:
    """What a command writes to a terminal of 80 columns; its words about progress go elsewhere."""
    ours, its = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", "LINES": "50"}
    with subprocess.Popen(command, cwd=where, stdout=its, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(its)
        written = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # Linux's end of file of a terminal
                break
            if not part:
                break
            written += part
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}")
    return written.decode().replace("\r\n", "\n")


def as_html(text: str) -> str:
    """A terminal's text with its colours: what ESC [ 1 m begins and ESC [ 0 m ends is a span of class m1."""
    begun = re.sub(
        "\x1b\\[([1-9][0-9;]*)m", lambda m: f'<span class="m{m[1].split(";")[0]}">', html.escape(text)
    )
    return re.sub("\x1b\\[0?m", "</span>", begun)


@contextmanager
def opened(browser: Browser, file: Path, size: tuple[int, int], **options: Any) -> Iterator[Page]:
    """A page of that size, without a network."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, offline=True, device_scale_factor=1, **options
    )
    page = context.new_page()
    page.goto(file.as_uri())
    page.wait_for_timeout(300)
    yield page
    context.close()


def head(size: tuple[int, int], **options: Any) -> Callable[[Browser, Path, Path], None]:
    """The first pixels of a page."""

    def take(browser: Browser, page: Path, to: Path) -> None:
        with opened(browser, page, size, **options) as shown:
            shown.screenshot(path=to)

    return take


def printed(browser: Browser, page: Path, to: Path) -> None:
    """The first sheet, from Where the time goes."""
    with opened(browser, page, (794, 1400)) as shown:
        shown.emulate_media(media="print")
        shown.screenshot(path=to)


def opportunity(browser: Browser, page: Path, to: Path) -> None:
    """The table of what to do, with one row open."""
    with opened(browser, page, (1180, 900)) as shown:
        shown.goto(f"{page.as_uri()}#PD203")
        shown.wait_for_timeout(300)
        shown.locator("#opportunities").screenshot(path=to)


def terminal(browser: Browser, page: Path, to: Path) -> None:
    """The first screen, as a terminal shows it."""
    with opened(browser, page, (720, 400)) as shown:
        shown.screenshot(path=to, full_page=True)


PICTURES: dict[str, tuple[str, Callable[[Browser, Path, Path], None]]] = {
    "first": ("demo-report/report.html", head((1000, 690), color_scheme="light")),
    "terminal": ("terminal.html", terminal),
    "light": ("job-report/report.html", head((1180, 1250), color_scheme="light")),
    "dark": ("job-report/report.html", head((1180, 1250), color_scheme="dark")),
    "narrow": ("job-report/report.html", head((420, 1500), color_scheme="light")),
    "print": ("job-report/report.html", printed),
    "opportunities": ("job-report/report.html", opportunity),
}
"""Name → the page in the working folder, and what takes the picture."""


def main() -> None:
    """Take the pictures that were named, or all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(PICTURES))
    names = parser.parse_args().names or list(PICTURES)
    if unknown := set(names) - set(PICTURES):
        parser.error(f"no picture {sorted(unknown)}; there are {', '.join(PICTURES)}")
    from playwright.sync_api import sync_playwright

    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with tempfile.TemporaryDirectory() as made, sync_playwright() as started:
        where = Path(made)
        pages = {PICTURES[name][0] for name in names}
        if pages - {"job-report/report.html"}:
            text = analysed(DEMO, "demo", where).replace("demo-report/", "perfdoc-report/")
            typed = "perfdoc analyze demo/traces --config demo/job.yaml"
            (where / "terminal.html").write_text(TERMINAL % (typed, as_html(text.rstrip())))
        if "job-report/report.html" in pages:
            analysed(JOB, "job", where)
        chromium = started.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        for name in names:
            page, take = PICTURES[name]
            to = FOLDER / f"{name}.png"
            take(chromium, where / page, to)
            size = to.stat().st_size
            sys.stdout.write(f"{to.relative_to(DOCS.parent)}: {size:,} bytes\n")
            if size > MAX_BYTES:
                raise SystemExit(f"{to}: more than {MAX_BYTES:,} bytes; take less of the page.")
        chromium.close()


if __name__ == "__main__":
    main()
