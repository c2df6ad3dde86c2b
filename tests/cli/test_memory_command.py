"""Memory snapshots through the real command: alone, beside a capture, in a run directory, and damaged."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

from perfdoc.results import from_json
from tests.analyzers.memory_planted import MIB, a_step
from tests.command import perfdoc
from tests.planted.capture import write_capture


def memory_of(output: Path) -> Any:
    text = (output / "diagnosis.json").read_bytes()
    from_json(text)
    return json.loads(text)["analyses"]["memory"]


def test_a_snapshot_alone_is_analysed(tmp_path: Path) -> None:
    """The planted step: 19 MiB at its peak, 13 above its start of 6."""
    snapshot = a_step().write(tmp_path / "snapshot.pickle")
    done = perfdoc("analyze", "--no-replay", snapshot, "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "19.0 MiB" in done.stdout
    (device,) = memory_of(tmp_path / "out")["devices"]
    assert device["peak_allocated_bytes"] == 19 * MIB
    assert device["peak_above_start_bytes"] == 13 * MIB
    assert sum(device["composition"]["category_bytes"].values()) == 19 * MIB
    diagnosis = json.loads((tmp_path / "out" / "diagnosis.json").read_text())
    assert diagnosis["inputs"][0]["format"] == "memory-snapshot"
    assert "Memory" in (tmp_path / "out" / "report.html").read_text()
    assert "19.0 MiB" in (tmp_path / "out" / "report.md").read_text()


def test_a_snapshot_beside_a_capture_and_one_in_a_run_directory(tmp_path: Path) -> None:
    capture = write_capture(tmp_path)
    snapshot = a_step().write(tmp_path / "snapshot.pickle")
    done = perfdoc("analyze", capture, snapshot, "-o", tmp_path / "beside")
    assert done.returncode == 0, done.stderr
    assert memory_of(tmp_path / "beside")["devices"][0]["rank"] is None
    run = tmp_path / "run"
    (run / "traces").mkdir(parents=True)
    (run / "memory").mkdir()
    shutil.copy(capture, run / "traces" / "rank3.sqlite")
    shutil.copy(snapshot, run / "memory" / "rank3.pickle")
    done = perfdoc("analyze", run, "-o", tmp_path / "inside")
    assert done.returncode == 0, done.stderr
    (device,) = memory_of(tmp_path / "inside")["devices"]
    assert (device["rank"], device["peak_allocated_bytes"]) == (3, 19 * MIB)


def test_without_a_snapshot_the_reason_and_the_remedy_stand(tmp_path: Path) -> None:
    done = perfdoc("analyze", "--no-replay", write_capture(tmp_path), "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    memory = memory_of(tmp_path / "out")
    assert memory["state"] == "not_measured"
    assert "_dump_snapshot" in memory["remedy"]


class Command:
    """What a hostile pickle would run."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (print, ("executed",))


def test_a_snapshot_that_asks_for_code_is_refused_in_one_line(tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.pickle"
    hostile.write_bytes(pickle.dumps({"segments": [Command()]}))
    done = perfdoc("analyze", "--no-replay", hostile, "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "executed" not in done.stdout
    assert done.stderr.startswith("perfdoc: ")
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()
