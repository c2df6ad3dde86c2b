"""What README and the tutorial show of commands is what these print."""

from __future__ import annotations

import pytest

from tests import shown_screens
from tests.shown_screens import ROOT, TUTORIAL, printed, readme, tutorial

README = shown_screens.README.read_text(encoding="utf-8")


def test_the_first_screen_has_what_a_reader_looks_for_in_this_order() -> None:
    found = [README.index(word) for word in ("docs/report/first.png", "pip install", "$ perfdoc", "make run")]
    assert found == sorted(found)
    assert README[: found[1]].count("\n\n") <= 4, "a title, a sentence, a picture"
    assert (ROOT / "docs/report/first.png").stat().st_size < 150_000


@pytest.mark.slow
def test_samples_are_what_commands_print() -> None:
    said = printed()
    assert [line.split()[0] for line in said] == ["demo", "analyze", "knobs"]
    assert readme(said) == README, "make docs"
    text = TUTORIAL.read_text(encoding="utf-8")
    assert tutorial(said) == text, "make docs, then read the words between the pieces"
    for line in list(said)[:2]:
        assert f"```\nperfdoc {line}\n```" in text
