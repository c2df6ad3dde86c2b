"""Text is as wide as the terminal, within limits, and as wide as ever where there is none."""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.amount import some
from tests.command import perfdoc
from tests.planted.capture import write_capture


def shown(width: int, *words: str | Path, code: int = 0, **env: str) -> list[str]:
    """The lines of perfdoc's output on a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    env = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | (env or {"NO_COLOR": "1"})
    command = [sys.executable, "-m", "perfdoc", *map(str, words)]
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(theirs)
        read = b""
        try:
            while more := os.read(ours, 65536):
                read += more
        except OSError:  # how Linux tells that nobody writes any more
            pass
        os.close(ours)
    assert process.returncode == code
    return read.decode().splitlines()


WIDTHS = [(200, 90, 100), (60, 50, 60), (10, 30, 40)]


@pytest.mark.parametrize(("width", "least", "most"), some(WIDTHS, WIDTHS[1:2]))
def test_a_rule_is_explained_in_the_terminals_width(width: int, least: int, most: int) -> None:
    assert least <= max(map(len, shown(width, "explain", "PD101"))) <= most


def test_what_lint_finds_is_broken_on_a_terminal_and_whole_in_a_pipe(tmp_path: Path) -> None:
    """What to write stays whole; programs read a finding from one line."""
    job = tmp_path / "job.sh"
    job.write_text(
        "python pretrain_gpt.py --num-layers 80 --pipeline-model-parallel-size 16 "
        "--num-layers-per-virtual-pipeline-stage 2 --tensor-model-parallel-size 8\n"
    )
    lines, piped = shown(80, "lint", job, code=1), perfdoc("lint", job).stdout.splitlines()
    long = [line for line in lines if len(line) > 80 and not line.startswith(("    write: ", str(tmp_path)))]
    assert not long
    assert " ".join(" ".join(lines).split()) == " ".join(" ".join(piped).split())
    assert sum(line.startswith(str(job)) for line in lines) == sum("PL" in line for line in piped) > 0
    assert any("--pipeline-model-parallel-size=16" in line for line in piped)  # the user's own word


@pytest.mark.parametrize(("width", "wide"), some([(60, 60), (300, 100)], []))
def test_the_report_follows_the_terminal(tmp_path: Path, width: int, wide: int) -> None:
    """Sentences break there and bars end there; tables of many columns may need more."""
    path = write_capture(tmp_path)
    lines = shown(width, "analyze", path, "-o", tmp_path / "out", "--no-replay", "--full")
    bars = [len(line) for line in lines if line.startswith("  [")]
    assert bars
    assert set(bars) == {wide}
    begin = lines.index("What could not be measured")
    sentences = lines[begin : lines.index("", begin)]
    assert wide - 20 <= max(map(len, sentences)) <= wide


def test_without_a_terminal_it_is_100_columns() -> None:
    shown = perfdoc("explain", "PD101").stdout
    assert 90 <= max(map(len, shown.splitlines())) <= 100


@pytest.mark.parametrize(
    ("term", "no_color", "colours"), [("xterm", "", True), ("xterm", "1", False), ("dumb", "", False)]
)
def test_colours_are_for_terminals_that_show_them(
    tmp_path: Path, term: str, no_color: str, colours: bool
) -> None:
    """Of a screen and of a table; an empty NO_COLOR asks for nothing (no-color.org)."""
    capture, env = write_capture(tmp_path / "demo"), {"TERM": term, "NO_COLOR": no_color}
    for words in (["analyze", capture, "-o", tmp_path / "out"], ["doctor"]):
        assert ("\x1b[" in "".join(shown(80, *words, **env))) is colours, words
