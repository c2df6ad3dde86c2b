"""What every command has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import typer.main

from perfdoc.cli.application import app
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
