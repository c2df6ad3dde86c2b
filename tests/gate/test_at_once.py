"""Baselines that several processes write at once."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdoc.compare.gate import accept
from perfdoc.profiling.folder_lock import alone_in
from tests.gate.commands import MakeRun, gate


def is_free(folder: Path) -> bool:
    """Whether nobody holds the lock on a folder."""
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(held)
    return True


def test_a_folder_that_does_not_exist_is_locked_and_not_made(tmp_path: Path) -> None:
    with alone_in(tmp_path / "a" / "b"):
        assert not is_free(tmp_path)
    assert is_free(tmp_path)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("name", "arguments"), [("recorded", ["record"]), ("replaced", ["promote", "--reason", "a"])]
)
def test_what_is_read_is_written_back_before_another_reads(
    tmp_path: Path, make_run: MakeRun, monkeypatch: pytest.MonkeyPatch, name: str, arguments: list[str]
) -> None:
    assert gate(tmp_path, "record", *(make_run(f"old{i}", 100 + i) for i in range(3)))[0] == 0
    free, really = [], getattr(accept, name)

    def watched(*given: Any, **named: Any) -> Any:
        free.append(is_free(tmp_path))
        return really(*given, **named)

    monkeypatch.setattr(accept, name, watched)
    runs = [make_run(f"new{i}", 101 + i) for i in range(3)]
    assert gate(tmp_path, arguments[0], *runs, *arguments[1:])[0] == 0
    assert free == [False]


@pytest.mark.slow
def test_none_of_many_is_lost(tmp_path: Path, make_run: MakeRun) -> None:
    command = [sys.executable, "-m", "perfdoc", "gate", "record"]
    running = [
        subprocess.Popen([*command, make_run(f"run{i}", 100 + i / 10)], cwd=tmp_path) for i in range(6)
    ]
    assert [process.wait(timeout=120) for process in running] == [0] * 6
    (baseline,) = (tmp_path / "perfdoc-baselines").iterdir()
    assert len(json.loads(baseline.read_bytes())["runs"]) == 6
