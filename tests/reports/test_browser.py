"""The page in a real browser: nothing runs, nothing is fetched, nothing overflows."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import escape
from pathlib import Path

import pytest

from perfdoc.reports.html import render_html
from tests.reports import build, hostile

NAMES = ("chromium", "chromium-browser", "google-chrome")
BROWSER = next((found for name in NAMES if (found := shutil.which(name))), None)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed (" + ", ".join(NAMES) + ")")

# With the policy of the page in force a planted script could not run even where escaping failed, so
# the escaping is tried on a copy without the policy.
POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
MEASURE = """<script>
const wide = s => Array.from(document.querySelectorAll(s));
const out = {
  page: document.documentElement.scrollWidth, screen: document.documentElement.clientWidth,
  bars: wide('svg.bar').map(bar => [bar.getBoundingClientRect().width,
    Array.from(bar.querySelectorAll('rect')).reduce((sum, r) => sum + r.width.baseVal.value, 0)]),
  background: getComputedStyle(document.body).backgroundColor,
  ink: getComputedStyle(document.body).color,
};
document.documentElement.setAttribute('data-measured', JSON.stringify(out));
</script>"""


def browse(folder: Path, html: str, *options: str) -> tuple[str, str]:
    """Open a page; its document as HTML afterwards, and what the browser logged."""
    assert BROWSER is not None
    page = folder / "page.html"
    page.write_text(html, encoding="utf-8")
    done = subprocess.run(
        [
            BROWSER,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--enable-logging=stderr",
            "--v=0",
            f"--user-data-dir={folder / 'profile'}",
            *options,
            page.as_uri(),
        ],
        capture_output=True,
        timeout=90,
        check=True,
    )
    return done.stdout.decode(), done.stderr.decode(errors="replace")


def _console(log: str) -> list[str]:
    return [line for line in log.splitlines() if ":CONSOLE" in line]


def _title(document: str) -> str:
    found = re.search(r"<title>(.*?)</title>", document, re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_check_for_console_messages_and_planted_scripts_works(tmp_path: Path) -> None:
    bad = (
        "<!doctype html><title>a</title><img src=x onerror=\"document.title='pwned';console.error('seen')\">"
    )
    document, log = browse(tmp_path, bad, "--dump-dom")
    assert _title(document) == "pwned"
    assert any("seen" in line for line in _console(log))


def test_hostile_names_run_nothing_even_without_the_policy(tmp_path: Path) -> None:
    short = [text for text in hostile.HOSTILE if len(text) < 1000]
    html = "".join(short)
    made = hostile.hostile(html)
    document, log = browse(tmp_path, POLICY.sub("", render_html(made)), "--dump-dom")
    assert _title(document).startswith("perfdoc: ")
    assert _console(log) == []
    assert "</html>" in document
    for text in short:
        document, log = browse(tmp_path, POLICY.sub("", render_html(hostile.hostile(text))), "--dump-dom")
        assert _title(document).startswith("perfdoc: ")
        assert _console(log) == []


@pytest.mark.parametrize("name", ["one", "thousand"])
def test_the_page_logs_nothing_with_its_policy(tmp_path: Path, name: str) -> None:
    made = build.one_rank() if name == "one" else build.many_ranks(1000)
    document, log = browse(tmp_path, render_html(made), "--dump-dom")
    assert _console(log) == []
    assert 'id="ledger-sum"' in document


def test_the_policy_stops_a_script_that_got_in(tmp_path: Path) -> None:
    html = render_html(build.one_rank()).replace("</main>", "<script>document.title='pwned'</script></main>")
    document, log = browse(tmp_path, html, "--dump-dom")
    assert _title(document).startswith("perfdoc: ")
    assert _console(log)


def _measured(folder: Path, html: str, *options: str) -> dict[str, object]:
    measured = POLICY.sub("", html).replace("</body>", MEASURE + "</body>")
    document, _ = browse(folder, measured, "--dump-dom", *options)
    found = re.search(r'data-measured="([^"]*)"', document)
    assert found is not None
    result: dict[str, object] = json.loads(found.group(1).replace("&quot;", '"'))
    return result


@pytest.mark.parametrize("size", ["500,900", "1400,900"])
@pytest.mark.parametrize(("name", "drawn"), [("eight", 9), ("analysed", 3), ("hostile", 1)])
def test_bars_are_full_and_the_page_does_not_scroll_sideways(
    tmp_path: Path, name: str, drawn: int, size: str
) -> None:
    made = {
        "eight": lambda: build.many_ranks(8),
        "analysed": lambda: build.analysed(build.two_ranks()),
        "hostile": lambda: hostile.hostile("W" * 3000),
    }[name]()
    result = _measured(tmp_path, render_html(made), f"--window-size={size}")
    assert result["page"] == result["screen"]
    bars = result["bars"]
    assert isinstance(bars, list)
    assert len(bars) == drawn
    for width, filled in bars:
        assert width > 150
        assert filled == pytest.approx(width, abs=0.05)


def _luminance(colour: object) -> float:
    red, green, blue = (
        (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for c in (int(x) / 255 for x in re.findall(r"\d+", str(colour))[:3])
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_follow_the_reader(tmp_path: Path, dark: bool) -> None:
    options = ["--blink-settings=preferredColorScheme=0"] if dark else []
    result = _measured(tmp_path, render_html(build.one_rank()), *options)
    behind, ink = _luminance(result["background"]), _luminance(result["ink"])
    assert (behind < ink) is dark
    assert (max(behind, ink) + 0.05) / (min(behind, ink) + 0.05) > 7  # WCAG AAA for text


def _picture(folder: Path, html: str, scripts: bool) -> bytes:
    """A screenshot; JavaScript is off in a frame that is not allowed scripts."""
    folder.mkdir()
    allowed = "allow-scripts" if scripts else ""
    style = "width:1200px;height:2300px;border:0"
    frame = f'<iframe sandbox="{allowed}" style="{style}" srcdoc="{escape(html)}">'
    picture = folder / "page.png"
    browse(
        folder,
        f"<!doctype html><title>frame</title>{frame}</iframe>",
        f"--screenshot={picture}",
        "--window-size=1240,2400",
        "--hide-scrollbars",
        # Else a frame that is not allowed scripts is drawn by another process, after the picture.
        "--disable-features=IsolateSandboxedIframes",
    )
    return picture.read_bytes()


def test_without_javascript_the_page_looks_the_same(tmp_path: Path) -> None:
    html = render_html(build.one_rank())
    with_scripts = _picture(tmp_path / "on", html, scripts=True)
    assert len(with_scripts) > 50_000
    assert _picture(tmp_path / "off", html, scripts=False) == with_scripts
    # A page that does need JavaScript looks different, so the comparison can fail.
    needs = POLICY.sub("", html).replace("</main>", "<script>document.body.textContent='x'</script></main>")
    assert _picture(tmp_path / "needs", needs, scripts=True) != with_scripts


def test_it_prints(tmp_path: Path) -> None:
    paper = tmp_path / "page.pdf"
    browse(tmp_path, render_html(build.one_rank()), f"--print-to-pdf={paper}")
    assert paper.read_bytes().startswith(b"%PDF")
