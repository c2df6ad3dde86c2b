"""What README and the tutorial show of commands is what these print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.command import perfdoc

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")


def shown(text: str) -> list[tuple[list[str], str]]:
    """Each command behind a `$` at the begin of a block, and the rest of its block."""
    blocks = re.findall(r"^```\n\$ perfdoc ([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [(line.split(), printed) for line, printed in blocks]


def without_blanks(text: str) -> list[str]:
    return [line for line in text.splitlines() if line]


def test_the_first_screen_has_what_a_reader_looks_for_in_this_order() -> None:
    found = [README.index(word) for word in ("docs/report/first.png", "pip install", "$ perfdoc", "make run")]
    assert found == sorted(found)
    assert README[: found[1]].count("\n\n") <= 4, "a title, a sentence, a picture"
    assert (ROOT / "docs/report/first.png").stat().st_size < 150_000


@pytest.mark.slow
def test_samples_are_what_commands_print(tmp_path: Path) -> None:
    samples = shown(README)
    assert [words[0] for words, _ in samples] == ["demo", "analyze", "knobs"]
    printed = {}
    for words, sample in samples:
        done = perfdoc(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert sample.rstrip() == done.stdout.rstrip(), words
        printed[words[0]] = done.stdout
    first, *screen = re.findall(r"^```(?:text|console)\n(.*?)^```$", TUTORIAL, re.MULTILINE | re.DOTALL)
    assert first == printed["demo"]
    assert without_blanks("".join(screen)) == without_blanks(printed["analyze"])
    for words, _ in samples[:2]:
        assert f"```\nperfdoc {' '.join(words)}\n```" in TUTORIAL
