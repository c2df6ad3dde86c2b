"""`perfdoc export` as a user types it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.simulator.demo import write_demo
from tests.export.perfetto_file import read


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "perfdoc", "export", *words], capture_output=True, text=True, timeout=120
    )


def test_a_capture_becomes_a_file(tmp_path: Path) -> None:
    trace, _ = write_demo(tmp_path / "demo")
    target = tmp_path / "demo.pftrace"
    done = command("--perfetto", str(trace), "-o", str(target))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert "ui.perfetto.dev" in done.stderr
    found = read(target)
    assert found.all_of("ledger")
    again = command("--perfetto", str(trace), "-o", str(target))
    assert again.returncode == 2
    assert "is there already" in again.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.sqlite", "-o", "x"), "--perfetto"),
        (("--perfetto", "none.sqlite", "-o", "x"), "does not exist"),
        (("--perfetto", "none.sqlite", "-o", "x", "--set", "tp=many"), "tp"),
        (("--perfetto", "none.sqlite", "-o", "x", "--step-range", "("), "regular expression"),
    ],
)
def test_a_mistake_is_one_line(words: tuple[str, ...], said: str) -> None:
    done = command(*words)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, done.stderr
    assert said in done.stderr
    assert not Path("x").exists()
