"""Results are written over nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfdoc.compare.gate.render import check_targets
from tests.gate.commands import MakeRun, gate, record


def test_paths_that_are_read_or_taken(tmp_path: Path) -> None:
    run, baselines = tmp_path / "run", tmp_path / "baselines"
    run.mkdir()
    baselines.mkdir()
    (log := tmp_path / "a.log").write_text("x")
    (linked := tmp_path / "linked.log").symlink_to(log)
    os.link(log, hard := tmp_path / "hard.log")
    free = tmp_path / "gate.json"
    inputs = [run, log, baselines]
    check_targets([free, tmp_path / "gate.xml"], inputs=inputs, force=False)
    for path in (log, linked, hard, run / "run.json", run, baselines / "new.json"):
        for force in (False, True):
            with pytest.raises(ValueError, match="which is read"):
                check_targets([path], inputs=inputs, force=force)
    with pytest.raises(ValueError, match="two results"):
        check_targets([free, tmp_path / "run" / ".." / "gate.json"], inputs=inputs, force=True)
    free.write_text("here")
    with pytest.raises(ValueError, match="--force"):
        check_targets([free], inputs=inputs, force=False)
    check_targets([free], inputs=inputs, force=True)
    check_targets([Path("/dev/null")], inputs=inputs, force=False)


def everything(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_command_overwrites_nothing(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = record(tmp_path, make_run)
    new = make_run("new", 100.1)
    before = everything(tmp_path)
    for words in (
        ("--json", baseline),
        ("--junit", new / "run.json", "--force"),
        ("--json", "out", "--junit", "out"),
        ("--json", "out", "--junit", tmp_path / "out"),
    ):
        code, out, err = gate(tmp_path, "check", new, *words)
        assert (code, out, err.count("\n")) == (2, "", 1), (words, err)
    assert everything(tmp_path) == before
    assert gate(tmp_path, "check", new, "--json", "out")[0] == 0
    assert gate(tmp_path, "check", new, "--json", "out")[0] == 2
    assert gate(tmp_path, "check", new, "--json", "out", "--force")[0] == 0
