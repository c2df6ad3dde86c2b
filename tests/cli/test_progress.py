"""The bar of a terminal: there soon, gone at the end, and nowhere else."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.profiling import telling
from tests.command import in_a_process, perfdoc

ESCAPE = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def on_a_terminal(*words: str, cwd: Path, term: str = "xterm") -> tuple[int, bytes, bytes]:
    """Exit code, standard output (a pipe), and what a terminal got as standard error."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": term, "COLUMNS": "80"}
    command = [sys.executable, "-m", "perfdoc", *words]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=theirs, cwd=cwd, env=environment
    ) as process:
        os.close(theirs)
        assert process.stdout is not None
        drawn = b""
        while True:
            try:
                data = os.read(ours, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            drawn += data
        out = process.stdout.read()
    os.close(ours)
    return process.returncode, out, drawn


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    assert perfdoc("demo", cwd=folder).returncode == 0
    return folder


def test_one_bar_says_what_is_read_and_how_far_it_is(demo: Path) -> None:
    code, out, drawn = on_a_terminal("analyze", "demo/traces/rank0.sqlite", "--brief", cwd=demo)
    assert code == 0
    assert b"\x1b" not in out
    frames = [ESCAPE.sub(b"", f).decode() for f in re.split(rb"\r|\n", drawn) if b"perfdoc: " in f]
    shown = " ".join(frames)
    assert "starting" in frames[0]
    assert "reading rank0.sqlite" in shown
    assert re.search(r"measuring [\d,]+ kernels .* \d+ %", shown)
    assert max(map(len, frames)) <= 80
    assert drawn.count(b"\n") <= 3  # the report's place below the bar, no line per file
    assert drawn.rindex(b"\x1b[?25h") > drawn.rindex(b"\x1b[?25l")  # the cursor is back


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_a_mistake_leaves_one_line(demo: Path, term: str) -> None:
    code, out, drawn = on_a_terminal("analyze", "nowhere.sqlite", cwd=demo, term=term)
    assert (code, out) == (2, b"")
    assert b"perfdoc: nowhere.sqlite: " in drawn
    assert (b"\x1b" in drawn) is (term == "xterm")
    # Not behind the bar's last frame: its line is cleared before.
    before = drawn[: drawn.index(b"perfdoc: nowhere.sqlite: ")]
    assert ESCAPE.sub(b"", before[before.rfind(b"\x1b[2K") :]) == b""


def test_a_pipe_gets_no_bar(demo: Path) -> None:
    done = in_a_process("analyze", "demo/traces/rank0.sqlite", "--brief", cwd=demo)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr.count("\n") == 1


def test_stages_are_of_their_part_of_the_whole() -> None:
    seen: list[tuple[str, float]] = []
    with telling.shown_by(lambda what, frac: seen.append((what, frac))):
        telling.part(0.2, 0.6)
        telling.stage("a", 0.5)
        telling.Telling().say("b", 1.0)
    telling.stage("behind it")
    assert seen == [("a", pytest.approx(0.4)), ("b", pytest.approx(0.6))]
