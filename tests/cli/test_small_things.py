"""What every command has."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from perfdoc.cli import messages, streams
from perfdoc.cli.application import app
from perfdoc.cli.messages import require_free, unwritten_words
from tests.command import perfdoc


def commands(command: object, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*words, name))


ALL = list(commands(typer.main.get_command(app)))


def test_there_are_commands_in_commands() -> None:
    assert ("gate", "check") in ALL
    assert len(ALL) > 25


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_h_is_help(words: tuple[str, ...]) -> None:
    done = perfdoc(*words, "-h")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: ")
    assert "-h, --help" in done.stdout


def test_a_file_in_place_of_a_command_is_one_to_analyse(tmp_path: Path) -> None:
    (tmp_path / "my.sqlite").touch()
    done = perfdoc("my.sqlite", cwd=tmp_path)
    assert done.returncode == 2
    assert "analyze my.sqlite?" in done.stderr
    assert "analyze" not in perfdoc("yours.sqlite", cwd=tmp_path).stderr


def test_signs_that_the_encoding_lacks_are_written_plainly() -> None:
    """LANG=C: no backslashes in place of perfdoc's own signs; what is not its own is escaped."""
    guarded = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors=streams._ERRORS)
    codecs.register_error(streams._ERRORS, streams._plain)
    guarded.write("a · b \u2212 3 µs → c… \u4e2d")
    guarded.flush()
    assert guarded.buffer.getvalue() == b"a - b - 3 us -> c... \\u4e2d"  # type: ignore[attr-defined]


def test_a_folder_that_may_not_be_written_is_told_before_any_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    require_free(tmp_path / "new" / "deep", ["a"], force=False)
    monkeypatch.setattr(messages.os, "access", lambda place, mode: place != tmp_path)  # root may all
    with pytest.raises(ValueError, match=r"deep: cannot be written: Permission denied\. Choose another -o\."):
        require_free(tmp_path / "new" / "deep", ["a"], force=False)


def test_what_cannot_be_written_has_the_name_that_the_user_gave() -> None:
    error = PermissionError(13, "Permission denied", "/x/.part-y-1/z")
    said = unwritten_words(error, Path("c.sqlite"))
    assert said.startswith("c.sqlite: cannot be written: Permission denied. ")
    assert "-o" not in said, "gate has --baselines"
    full = OSError(28, "No space left on device", "out/report.html")
    assert unwritten_words(full) == "out/report.html: cannot be written: No space left on device."
