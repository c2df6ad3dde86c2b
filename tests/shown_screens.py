"""What README, the tutorial and the page of first screens show of commands, made from what these print.

`python -m tests.shown_screens`, a part of `make docs`, writes them. The tutorial shows one screen in pieces
with words between them: where a piece changes, read the words anew. First screens are of the shared captures;
where these are not beside the repository the page stays as it is.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.command import perfdoc

ROOT = Path(__file__).resolve().parents[1]
README, TUTORIAL = ROOT / "README.md", ROOT / "docs" / "tutorial.md"
FIRST, SHARED = ROOT / "docs" / "first_screens.md", ROOT.parent / "shared"
_SHOWN = re.compile(r"(^```\n\$ perfdoc ([^\n]*)\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
_PIECE = re.compile(r"(^```(?:text|console)\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)


def printed() -> dict[str, str]:
    """Each command that README shows, and what it prints, one after another in one folder."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for _, line, _, _ in _SHOWN.findall(README.read_text(encoding="utf-8")):
            done = perfdoc(*line.split(), cwd=Path(folder))
            assert done.returncode == 0, done.stderr
            found[line] = done.stdout
    return found


def readme(said: Mapping[str, str]) -> str:
    """README as it is to be."""
    text = README.read_text(encoding="utf-8")
    return _SHOWN.sub(lambda m: f"{m[1]}{said[m[2]].rstrip()}\n{m[4]}", text)


def commands(page: Path) -> list[str]:
    """The commands that a page shows, as they follow `perfdoc`."""
    return [line for _, line, _, _ in _SHOWN.findall(page.read_text(encoding="utf-8"))]


def screen(line: str) -> str:
    """What a command of the page of first screens prints, in a folder in which the shared captures lie."""
    with tempfile.TemporaryDirectory() as folder:
        for name, shared in (("captures", "traces"), ("cases", "cases")):
            (Path(folder) / name).symlink_to(SHARED / shared)
        done = perfdoc(*line.split(), cwd=Path(folder))
        assert done.returncode == 0, done.stderr
        return done.stdout


def first_screens() -> str:
    """The page of first screens as it is to be."""
    text = FIRST.read_text(encoding="utf-8")
    return _SHOWN.sub(lambda m: f"{m[1]}{screen(m[2]).rstrip()}\n{m[4]}", text)


def tutorial(said: Mapping[str, str]) -> str:
    """The tutorial as it is to be. A piece begins as it did: with a number, or with its first word."""
    text = TUTORIAL.read_text(encoding="utf-8")
    demo, screen = list(said.values())[:2]
    pieces = [piece for _, piece, _ in _PIECE.findall(text)][1:]
    starts = [re.escape(piece.split()[0]) for piece in pieces]
    ahead = "".join(rf"(?P<p{i}>^ *{start}[ \n].*?)" for i, start in enumerate(starts))
    found = re.fullmatch(ahead, screen, re.MULTILINE | re.DOTALL)
    assert found is not None, f"the screen no longer has pieces that begin with {starts}: docs/tutorial.md"
    new = iter([demo, *(f"{piece.strip(chr(10))}\n" for piece in found.groups())])
    return _PIECE.sub(lambda m: f"{m[1]}{next(new)}{m[3]}", text)


def write() -> None:
    """Write them, and say which pages to read anew."""
    said = printed()
    for page, made in ((README, readme), (TUTORIAL, tutorial)):
        text = made(said)
        if text != page.read_text(encoding="utf-8"):
            page.write_text(text, encoding="utf-8")
            sys.stderr.write(f"{page.name}: another screen; read the words around it\n")
    if SHARED.is_dir():
        FIRST.write_text(first_screens(), encoding="utf-8")


if __name__ == "__main__":
    write()
