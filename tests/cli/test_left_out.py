"""One capture of many that cannot be read: left out and told where figures are shown, refused elsewhere."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.amount import some
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder
from tests.command import perfdoc
from tests.planted.capture import capture_timeline

CODE = "capture-left-out"
BAD = {
    "empty": b"",
    "damaged": b"\x1f\x8b" + bytes(200),
    "cut": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "du',
}


def ranks(folder: Path) -> Path:
    """Two ranks that belong together."""
    folder.mkdir(exist_ok=True)
    timeline = capture_timeline()
    for process in timeline.processes:
        write_kineto(timeline, folder / f"rank{process.rank}.json", process.pid)
    return folder


def analysed(*words: str | Path) -> dict[str, Any]:
    done = perfdoc("analyze", "--no-replay", *words, "--json", "-")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("bad", some(BAD, ["empty"]))
def test_a_capture_that_cannot_be_read_is_told_and_changes_nothing_else(tmp_path: Path, bad: str) -> None:
    folder = ranks(tmp_path / "job")
    whole = analysed(folder)
    (folder / "rank2.json.gz").write_bytes(BAD[bad])
    done = perfdoc("analyze", "--no-replay", folder, "--json", "-")
    found = json.loads(done.stdout)
    first, *others = found.pop("quality")
    assert (first["code"], others) == (CODE, whole.pop("quality"))
    assert "rank2.json.gz" in first["message"]
    assert first["remedy"]
    assert done.stderr.count("rank2.json.gz") == 1
    assert (done.returncode, found) == (0, whole)


def test_a_rank_that_breaks_off_in_its_first_step_costs_the_others_none_of_theirs(tmp_path: Path) -> None:
    folder = ranks(tmp_path / "job")
    trace = json.loads((folder / "rank1.json").read_text())
    steps = [e for e in trace["traceEvents"] if "step" in e["name"] and e.get("cat") == "user_annotation"]
    middle = min(float(e["ts"]) + float(e["dur"]) / 2 for e in steps)
    broken_off(folder / "rank1.json", middle)
    found = analysed(folder)
    said = [q["message"] for q in found["quality"] if q["code"] == CODE]
    assert [words.split()[0] for words in said] == ["rank1.json"]
    assert [r["window"]["kind"] for r in found["ranks"]] == ["steps"]
    # Where no rank has steps, none is worse off with it.
    (folder / "rank0.json").unlink()
    assert [r["window"]["kind"] for r in analysed(folder)["ranks"]] == ["capture"]


def test_a_rank_whose_steps_have_lost_their_names_stays(tmp_path: Path) -> None:
    """Ranges stand behind kernels where a file is merged: it breaks off between, after all its steps ran."""
    folder = ranks(tmp_path / "job")
    broken_off(folder / "rank1.json")
    found = analysed(folder)
    assert [r["rank"] for r in found["ranks"]] == [0, 1]
    codes = [q["code"] for q in found["quality"]]
    assert ("names-no-step" in codes, CODE in codes) == (True, False)


def broken_off(file: Path, time_us: float = 1e30) -> None:
    """Before its ranges, which stand behind all others, and what begins at a time and later."""
    trace = json.loads(file.read_text())
    events = [e for e in trace.pop("traceEvents") if e.get("cat") != "user_annotation"]
    events = [e for e in events if float(e.get("ts", 0)) < time_us]
    file.write_text(json.dumps({**trace, "traceEvents": events})[:-3])


def test_a_link_to_nothing_and_a_pipe_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    builder = TimelineBuilder()
    builder.process(rank=0).device().kernel("gemm", 0, 100)
    write_nsys_sqlite(builder.build(), folder / "rank0.sqlite")
    (folder / "rank1.sqlite").symlink_to("gone.sqlite")
    os.mkfifo(folder / "rank2.sqlite")
    found = analysed(folder)
    said = [q["message"].split()[0] for q in found["quality"] if q["code"] == CODE]
    assert said == ["rank1.sqlite", "rank2.sqlite"]
    assert len(found["inputs"]) == 1


def test_the_first_error_where_all_fail_and_where_one_is_given(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        (tmp_path / name).write_bytes(BAD["cut"])
    for paths in ([tmp_path / "a.json", tmp_path / "b.json"], [tmp_path / "a.json"]):
        done = perfdoc("analyze", "--no-replay", *paths)
        assert (done.returncode, "a.json: " in done.stderr, "b.json" in done.stderr) == (2, True, False)


def test_ranks_at_hand_are_not_the_job_where_one_was_left_out(tmp_path: Path) -> None:
    """Two captures without communication are a job of two GPUs; with a third that is lost nobody knows."""
    for rank in range(2):
        builder = TimelineBuilder()
        process = builder.process(pid=rank + 1)
        process.thread().range("perfdoc.step 1", 0, 1_000)
        process.device(gpu_name="NVIDIA H100 80GB HBM3").kernel("gemm", 0, 900 + rank)
        write_nsys_sqlite(builder.build(), tmp_path / f"rank{rank}.sqlite")
    facts = ["--set", "flops_per_step=1000000", "dtype=bf16"]
    assert analysed(tmp_path, *facts)["mfu"]["gpus"] == 2
    (tmp_path / "rank2.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(200))
    mfu = analysed(tmp_path, *facts)["mfu"]
    assert (mfu["value"], mfu["gpus"], "left out" in mfu["reason"]) == (None, None, True)
    assert analysed(tmp_path, *facts, "world_size=3")["mfu"]["gpus"] == 3


def test_a_report_without_nsys_is_no_reason_to_leave_a_rank_out(tmp_path: Path) -> None:
    folder = ranks_of_nsys(tmp_path / "job", 1)
    (folder / "rank1.nsys-rep").write_bytes(b"a report")
    env = {name: value for name, value in os.environ.items() if name != "PERFDOC_NSYS"}
    for nsys in ({"PATH": str(tmp_path)}, {"PERFDOC_NSYS": str(tmp_path / "gone")}):
        done = perfdoc("analyze", "--no-replay", folder, "--json", "-", env={**env, **nsys})
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
        assert "rank1.nsys-rep" in done.stderr


def ranks_of_nsys(folder: Path, count: int) -> Path:
    folder.mkdir()
    for rank in range(count):
        builder = TimelineBuilder()
        builder.process(rank=rank).device().kernel("gemm", 0, 100)
        write_nsys_sqlite(builder.build(), folder / f"rank{rank}.sqlite")
    return folder


def test_summarize_goes_on_with_the_others(tmp_path: Path) -> None:
    folder = ranks_of_nsys(tmp_path / "job", 3)
    (folder / "rank1.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(200))
    done = perfdoc("summarize", folder)
    assert (done.returncode, done.stderr.count("rank1.sqlite: ")) == (2, 1), done.stderr
    assert sorted(p.name for p in folder.glob("*.perfdoc")) == ["rank0.perfdoc", "rank2.perfdoc"]
