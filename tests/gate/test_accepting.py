"""What is accepted: one run counts once, nothing is written over, and one process writes at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.compare.figures import digest_of
from perfdoc.compare.gate.render import check_targets
from tests.gate.commands import MS, MakeRun, files, gate, megatron_log, record


def test_a_digest_tells_times_numbers_and_beginnings_apart() -> None:
    one = digest_of([1, 2], [10, 11], None)
    others = [([1, 2], [10, 12], None), ([1, 3], [10, 11], None), ([1, 2], [10, 11], "2026-11-21T00:00:00Z")]
    assert len({one, *(digest_of(*o) for o in others)}) == 4


def test_a_copy_is_the_same_run(tmp_path: Path) -> None:
    logs = [megatron_log(tmp_path / f"b{i}.log", 1000 + i) for i in range(5)]
    copy = Path(shutil.copy(logs[0], tmp_path / "copy.log"))
    code, out, err = gate(tmp_path, "record", logs[0], copy)
    assert (code, out) == (2, "")
    assert "b0.log and copy.log are one run" in err
    assert gate(tmp_path, "record", *logs)[0] == 0
    before = files(tmp_path / "perfdoc-baselines")
    for command, runs, said in (
        ("check", [logs[0]], "not compared with itself"),
        ("check", [copy], "holds copy.log already, as b0.log: a run is not compared with itself"),
        ("record", [copy], "one run counts once"),
        ("promote", [copy, "--reason", "x", "--few"], "promoted from new runs"),
    ):
        code, out, err = gate(tmp_path, command, *runs)
        assert (code, out, err.count("\n")) == (2, "", 1), (command, out, err)
        assert said in err
    assert files(tmp_path / "perfdoc-baselines") == before


def test_another_level_does_not_join_a_baseline(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = record(tmp_path, make_run)
    before = baseline.read_bytes()
    for name, ms, how in (("slow", 130, "30.0 % slower"), ("fast", 70, "30.0 % faster")):
        code, _, err = gate(tmp_path, "record", make_run(name, ms))
        assert (code, err.count("\n")) == (2, 1)
        assert f"{how} than its own" in err
        assert "perfdoc gate promote" in err
        assert baseline.read_bytes() == before
    assert gate(tmp_path, "record", make_run("same", 100.2))[0] == 0
    assert len(json.loads(baseline.read_bytes())["runs"]) == 6


def test_promotion_over_ignored_facts_is_filed_under_the_new_ones(tmp_path: Path, make_run: MakeRun) -> None:
    old = record(tmp_path, make_run)
    before = old.read_bytes()
    fast = [make_run(f"fast{i}", 90, bucket_size=2000) for i in range(3)]
    words = ("--reason", "larger buckets", "--ignore", "config.bucket_size")
    code, _, err = gate(tmp_path, "promote", *fast, *words)
    assert code == 0, err
    assert f"{old.name} stays for the old ones" in err
    assert old.read_bytes() == before
    (new,) = [p for p in old.parent.iterdir() if p != old]
    found = json.loads(new.read_text())
    assert found["facts"]["config.bucket_size"] == 2000
    assert found["fingerprint"] == new.stem != old.stem
    assert found["promotions"][0]["before_step_ns"] == 100 * MS
    # Either configuration now has a level of its own.
    assert gate(tmp_path, "check", make_run("new", 90.1, bucket_size=2000))[1].startswith("PASS")
    assert gate(tmp_path, "check", make_run("back", 100.1))[1].startswith("PASS")


def test_few_runs_are_promoted_only_when_asked(tmp_path: Path, make_run: MakeRun) -> None:
    baseline = record(tmp_path, make_run)
    two = [make_run(f"fast{i}", 90) for i in range(2)]
    code, _, err = gate(tmp_path, "promote", *two, "--reason", "x")
    assert (code, "2 of the 3 runs that a new level needs" in err) == (2, True)
    assert gate(tmp_path, "promote", *two, "--reason", "x", "--few")[0] == 0
    code, _, err = gate(tmp_path, "record", two[0], "--baselines", "elsewhere")
    assert (code, err.rstrip().endswith(": 1 run, 1 of them new")) == (0, True)
    assert len(json.loads(baseline.read_text())["runs"]) == 2
    assert "low history: 2 baseline runs show no spread" in gate(tmp_path, "check", make_run("n", 90))[1]


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


@pytest.mark.slow
def test_none_of_many_is_lost(tmp_path: Path, make_run: MakeRun) -> None:
    command = [sys.executable, "-m", "perfdoc", "gate", "record"]
    running = [
        subprocess.Popen([*command, make_run(f"run{i}", 100 + i / 10)], cwd=tmp_path) for i in range(6)
    ]
    assert [process.wait(timeout=120) for process in running] == [0] * 6
    (baseline,) = (tmp_path / "perfdoc-baselines").iterdir()
    assert len(json.loads(baseline.read_bytes())["runs"]) == 6
