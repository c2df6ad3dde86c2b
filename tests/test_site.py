"""The pages as a site: each has its place, and no link leads nowhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.test_documented_paths import tracked

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
GENERATED = {"changelog.md", "contributing.md"}
"""Files from outside docs/, which docs/site_hooks.py adds."""
_HREF = re.compile(r'(?:href|src)="([^"]+)"')


def places(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        if isinstance(value, list):
            yield from places(value)
        else:
            yield value


def test_every_page_has_its_place_in_the_navigation() -> None:
    listed = list(places(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    pages = {file.relative_to(DOCS).as_posix() for file in tracked("docs/*.md")}
    pages = {page for page in pages if not re.fullmatch(r"rules/PD\d+\.md", page)}
    assert set(listed) == pages | GENERATED, "name each page once in mkdocs.yml"
    assert len(listed) == len(set(listed))


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_is_whole(tmp_path: Path) -> None:
    if find_spec("mkdocs") is None or find_spec("material") is None:
        pytest.skip("MkDocs Material is not installed (pip install 'perfdoc[docs]')")
    site = tmp_path / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    for file in tracked("docs/*.md"):  # a block whose first line MkDocs does not know swallows what follows
        text = re.sub(r"^```.*?^```$", "", file.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        name = file.relative_to(DOCS).with_suffix(".html").as_posix().replace("README", "index")
        made = (site / name).read_text(encoding="utf-8")
        assert made.count("<h2 id=") == len(re.findall(r"^## ", text, re.MULTILINE)), file.name
    lost = set()
    for page in pages:
        for link in _HREF.findall(page.read_text(encoding="utf-8")):
            path = link.partition("#")[0].partition("?")[0]
            if path and "://" not in link and not link.startswith(("data:", "mailto:", "/")):
                target = (page.parent / path).resolve()
                lost |= set() if target.exists() else {f"{page.relative_to(site)}: {link}"}
    assert not lost
