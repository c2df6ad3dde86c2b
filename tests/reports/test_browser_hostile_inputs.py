"""Markup in every string of a trace, a snapshot, a configuration and their names, through the whole command:
it is shown, and it never runs."""

from __future__ import annotations

import json
import pickle
import re
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.analyzers.memory_planted import a_step
from tests.command import perfdoc
from tests.planted.capture import write_capture
from tests.reports.browser import visit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
MARKUP = (
    '<img src=x onerror=window.pwned=1>"><svg onload=window.pwned=1>'
    "'</script><script>window.pwned=1</script>{{7*7}}</style></title>"
)
IN_A_FILE_NAME = "<img src=x onerror=window.pwned=1>{{7*7}}"
_WORDS_OF_THE_FORMAT = ("META_DATA", "ENUM_", "sqlite_")
"""Tables that say what the file is: with anything else in them it is no capture."""


def _marked(value: Any) -> Any:
    """A structure with the markup behind every string value; keys stay."""
    if isinstance(value, str):
        return value + MARKUP
    if isinstance(value, dict):
        return {key: _marked(each) for key, each in value.items()}
    return [_marked(each) for each in value] if isinstance(value, list) else value


def _mark_trace(path: Path) -> int:
    """Mark all texts of an Nsight export; how many there were."""
    marked = 0
    with sqlite3.connect(path) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in (t for t in tables if not t.startswith(_WORDS_OF_THE_FORMAT)):
            columns = [row[1] for row in db.execute(f'PRAGMA table_info("{table}")')]
            for column in columns:
                query = f'SELECT rowid, "{column}" FROM "{table}" WHERE typeof("{column}") = \'text\''
                for row, text in db.execute(query).fetchall():
                    plain = column != "jsonText"
                    new = _marked(text) if plain else json.dumps(_marked(json.loads(text)))
                    db.execute(f'UPDATE "{table}" SET "{column}" = ? WHERE rowid = ?', (new, row))
                    marked += 1
    return marked


def _mark_snapshot(path: Path) -> None:
    """Mark the frames' functions and files, and the names of annotations."""
    snapshot = pickle.loads(path.read_bytes())

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                if key in ("name", "filename", "category", "stage") and isinstance(each, str):
                    if not each.endswith(MARKUP) and each not in ("START", "END"):
                        value[key] = each + MARKUP
                else:
                    walk(each)
        elif isinstance(value, list):
            for each in value:
                walk(each)

    walk(snapshot)
    path.write_bytes(pickle.dumps(snapshot))


@pytest.mark.slow
def test_markup_in_every_string_is_shown_and_never_runs(browser: Browser, tmp_path: Path) -> None:
    trace = write_capture(tmp_path / "demo")
    trace = trace.rename(tmp_path / f"{IN_A_FILE_NAME}.sqlite")
    assert _mark_trace(trace) > 100
    snapshot = a_step().write(tmp_path / f"{IN_A_FILE_NAME}.pickle")
    _mark_snapshot(snapshot)
    config = tmp_path / f"{IN_A_FILE_NAME}.yaml"
    config.write_text(
        json.dumps({"tp": 2, "gbs": 8, "seq": 4096, MARKUP: MARKUP, "dtype": "bf16", "manual_gc": MARKUP})
    )
    out = tmp_path / "out"
    done = perfdoc("analyze", trace, snapshot, "--config", config, "-o", out, "--step-range", "step")
    assert done.returncode == 0, done.stderr
    html = (out / "report.html").read_text(encoding="utf-8")
    # Not trivially: names of kernels, ranges, devices, functions and files are on the page.
    assert html.count("&lt;img src=x onerror=window.pwned=1&gt;") > 5
    for place in ("top", "memory", "inputs", "facts", "opportunities"):
        assert f'id="{place}"' in html
    for page in (html, POLICY.sub("", html)):
        with visit(browser, tmp_path, page) as seen:
            seen.page.evaluate("for (const d of document.querySelectorAll('details')) d.open = true")
            for button in seen.page.locator(".sort:visible").all()[:8]:
                button.click()
            seen.page.locator("#timeline-still .track").first.click()
            seen.page.wait_for_selector("#timeline-chart[data-ready]", timeout=20_000)
            assert seen.page.evaluate("window.pwned") is None
            assert "onerror=window.pwned=1" in seen.page.locator("#top").inner_text()
            assert "49" not in seen.page.locator("#inputs").inner_text().split()
            seen.assert_quiet()
