"""Baselines that several processes write at once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.profiling import folder_lock
from perfdoc.profiling.folder_lock import alone_in
from tests.gate.commands import MakeRun


def is_free(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether nobody holds a folder."""
    with monkeypatch.context() as patch:
        patch.setattr(folder_lock, "WAIT_S", 0)
        try:
            with alone_in(folder):
                return True
        except ValueError:
            return False


def test_a_folder_is_held_by_its_real_path_whether_it_exists_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with alone_in(tmp_path / "a" / "b"):
        assert not is_free(tmp_path / "link" / "b", monkeypatch)
        assert is_free(tmp_path / "a", monkeypatch)
        (tmp_path / "a" / "b").mkdir(parents=True)  # as the first write does
        assert not is_free(tmp_path / "a" / "b", monkeypatch)
    assert is_free(tmp_path / "a" / "b", monkeypatch)
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_who_waits_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_lock, "WAIT_S", 0.2)
    said: list[str] = []
    with (
        alone_in(tmp_path),
        pytest.raises(ValueError, match="another process has held it"),
        alone_in(tmp_path, said.append),
    ):
        pass
    assert said == [f"{tmp_path}: waiting for another process"]


@pytest.mark.slow
def test_none_of_many_is_lost(tmp_path: Path, make_run: MakeRun) -> None:
    command = [sys.executable, "-m", "perfdoc", "gate", "record"]
    running = [
        subprocess.Popen([*command, make_run(f"run{i}", 100 + i / 10)], cwd=tmp_path) for i in range(6)
    ]
    assert [process.wait(timeout=120) for process in running] == [0] * 6
    (baseline,) = (tmp_path / "perfdoc-baselines").iterdir()
    assert len(json.loads(baseline.read_bytes())["runs"]) == 6
