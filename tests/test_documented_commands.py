"""The command lines of README and docs: commands, options and settings that exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfdoc.trainer.config.resolve import resolve
from perfdoc.trainer.constraints import PACKAGES
from perfdoc.trainer.layout import default_world_size, plan

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_FENCE = re.compile(r"^```\w*\n(.*?)^```", re.MULTILINE | re.DOTALL)


def written_commands(text: str) -> Iterator[list[str]]:
    """Words of every command line of perfdoc in blocks and in back quotes, without the first."""
    inline = re.findall(r"`([^`\n]+)`", _FENCE.sub("", text))
    blocks = [line for block in _FENCE.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    for line in [*inline, *blocks]:
        for part in line.split(";"):
            part = part.replace("(as perfdoc names it)", "")  # of a setting on a first screen
            if not re.search(r"\bperfdoc [a-z]", part) or '"' in part.partition("perfdoc ")[0]:
                continue
            words = shlex.split(part.removeprefix("- run:").replace("…", ""), comments=True, posix=True)
            if "perfdoc" in words[:3]:
                yield words[words.index("perfdoc") + 1 :]


@cache
def _whole_command() -> Any:
    import typer.main

    from perfdoc.cli.application import app

    return typer.main.get_command(app)


def options_of(words: list[str]) -> set[str] | None:
    """The options of the command that the words name; None where there is no such command."""
    command = _whole_command()
    for word in words:
        inner = getattr(command, "commands", {})
        if not inner:
            break
        if word not in inner:
            return None
        command = inner[word]
    return {opt for p in command.params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}


def test_command_lines_are_found() -> None:
    found = [" ".join(words) for words in written_commands((ROOT / "README.md").read_text(encoding="utf-8"))]
    assert len(found) > 20
    assert "knobs bucket_size" in found


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_options_exist(page: Path) -> None:
    for words in written_commands(page.read_text(encoding="utf-8")):
        if not words or words[0].startswith("-"):
            continue
        known = options_of(words)
        assert known is not None, f"{page.name}: perfdoc {' '.join(words)}: there is no such command"
        own = words[: words.index("--")] if "--" in words else words
        used = {word.partition("=")[0] for word in own if re.fullmatch(r"-[a-z]|--[a-z].*", word)}
        assert used <= known, f"{page.name}: perfdoc {' '.join(words)}: no option {used - known}"


def test_what_was_not_run_can_be_run_as_it_is_written() -> None:
    """On CUDA: the settings of each row go together, as far as can be told before a process starts."""
    page = (ROOT / "docs" / "trainer.md").read_text(encoding="utf-8")
    section = page.split("## What has not been run")[1].split("\n## ")[0]
    cells = re.findall(r"^\| [^|]+ \| ([^|]+) \|$", section, re.MULTILINE)
    lines = [code for cell in cells for code in re.findall(r"`([^`]+)`", cell) if "=" in code]
    assert len(lines) > 10
    for line in lines:
        words = line.removeprefix("perfdoc run ").split()
        name = words.pop(0) if "=" not in words[0] else "llama3_8b"
        config = resolve(name, words).config
        try:
            plan(config, default_world_size(config), "cuda", PACKAGES)
        except ValueError as error:
            pytest.fail(f"{line}: {error}")
