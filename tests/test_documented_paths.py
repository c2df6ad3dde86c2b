"""Paths that documents and docstrings name are there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = "analyzers|benchmarks|docs|knobs|profiling|reports|results|rules|simulator|src|tests|traces|trainer"
PATH = re.compile(rf"(?<![\w./<*-])(?:{ROOMS})/[\w./*<>-]*[\w/]")
"""A file or folder of ours, by its path from the root. With a placeholder (`<format>`, `*`) it is a kind."""


def tracked(*patterns: str) -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no git checkout, so nothing says which files are ours")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def missing_in(text: str, beside: Path = ROOT) -> list[str]:
    """Paths that are neither below the root nor, as links of a page are, below the page's own folder."""
    named = {found.rstrip(".") for found in PATH.findall(text) if "." in found or found.endswith("/")}
    kinds = re.compile(r"[*<>]|NNN|\bx\.py")
    return sorted(
        name
        for name in named
        if not kinds.search(name) and not any((at / name).exists() for at in (ROOT, beside))
    )


def test_a_path_that_is_gone_is_found() -> None:
    assert missing_in("see `analyzers/gone.py` and tests/conftest.py, traces/<format>.py.") == [
        "analyzers/gone.py"
    ]


@pytest.mark.parametrize("file", tracked("*.md"), ids=lambda file: str(file.relative_to(ROOT)))
def test_documents_name_files_that_are_there(file: Path) -> None:
    assert missing_in(file.read_text(), file.parent) == []


@pytest.mark.parametrize("file", tracked("*.md"), ids=lambda file: str(file.relative_to(ROOT)))
def test_nothing_is_left_to_fill_in(file: Path) -> None:
    assert re.findall(r"@[A-Z][A-Z_]*@", file.read_text()) == []


def test_docstrings_and_comments_name_files_that_are_there() -> None:
    """Files of source alone: the run directory has folders of its own that are called as rooms are."""
    gone = {}
    for file in tracked("*.py", "Makefile", ".ci/*"):
        lost = [name for name in missing_in(file.read_text()) if name.endswith((".py", ".md"))]
        if lost and file != Path(__file__).resolve():
            gone[str(file.relative_to(ROOT))] = lost
    assert gone == {}
