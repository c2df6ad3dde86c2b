"""`perfdoc run --profiler nsys` with a real Nsight Systems: what is captured, what a broken run leaves."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from perfdoc.profiling import vocabulary as words
from perfdoc.profiling.nsys.collect import check_capture
from perfdoc.profiling.nsys.command import Nsys, find_nsys, nvtx_trouble
from perfdoc.profiling.run_directory import RunDirectory
from tests.cli.running import ENDLESS, SMALL, Running, needs_training
from tests.cli.test_analyze import leaves
from tests.command import perfdoc

pytestmark = pytest.mark.slow

WINDOW = ("--profiler", "nsys", "--profile-start", "3", "--profile-steps", "2")
EVERY_RUN = {
    words.STEP,
    words.MICRO_BATCH,
    words.FORWARD,
    words.BACKWARD,
    words.OPTIMIZER,
    words.DATA,
    words.COLLECTIVE_ISSUE,
    words.COLLECTIVE_WAIT,
    words.COLLECTIVE_RUN,
    words.GROUP_MARK,
    words.RANK_MARK,
}
"""Prefixes of the vocabulary that a window of DP 2 holds; no collection of garbage falls into it."""


@pytest.fixture(autouse=True)
def nsys() -> Nsys:
    needs_training()
    found = find_nsys()
    if found is None:
        pytest.skip("nsys is neither named by PERFDOC_NSYS nor on PATH")
    if (trouble := nvtx_trouble(found)) is not None:
        pytest.skip(trouble)
    return found


def traces(folder: Path) -> list[str]:
    """Everything in `traces/`, hidden or not."""
    return sorted(str(path.relative_to(folder / "out")) for path in (folder / "out" / "traces").rglob("*"))


BOTH = [f"traces/rank{rank}.{suffix}" for rank in (0, 1) for suffix in ("nsys-rep", "sqlite")]


def test_a_run_is_captured_and_analysed(tmp_path: Path) -> None:
    ended = Running.start(tmp_path, *SMALL, "train_iters=7", *WINDOW).end()
    assert ended.code == 0, ended.lines
    assert traces(tmp_path) == BOTH
    assert "Generat" not in ended.output  # nsys's own words,
    assert "Generat" in (tmp_path / "out" / "logs" / "rank1.txt").read_text()  # which are here.
    diagnosis = json.loads((tmp_path / "out" / "report" / "diagnosis.json").read_text())
    assert [rank["rank"] for rank in diagnosis["ranks"]] == [0, 1]
    for rank in diagnosis["ranks"]:
        check = check_capture(tmp_path / "out" / "traces" / f"rank{rank['rank']}.sqlite")
        assert set(check.ranges) >= EVERY_RUN
        assert check.ranges[words.STEP] == 2
        # 32 sequences over two ranks in micro-batches of 4: each goes forward and backward.
        assert check.ranges[words.BACKWARD] >= 2 * 4
        assert (rank["window"]["kind"], rank["window"]["steps"]) == ("steps", 2)
        assert sum(leaves(rank).values()) == rank["window"]["duration_ns"]
        assert rank["ledger_ns"]["compute"] > 0
        assert rank["ledger_ns"]["exposed_comm"]["dp"] > 0
        assert rank["ledger_ns"]["idle"]["data"] > 0
        steps = tmp_path / "out" / "steps" / f"rank{rank['rank']}.jsonl"
        logged = [json.loads(line) for line in steps.read_text().splitlines()]
        timed = [step["duration_ns"] for step in logged if step.get("profiled")]
        measured = [step["duration_ns"] for step in rank["window"]["step_list"]]
        assert [step["step"] for step in logged if step.get("profiled")] == [3, 4]
        assert sum(measured) == pytest.approx(sum(timed), rel=0.1)


def test_a_killed_rank_leaves_both_reports(tmp_path: Path) -> None:
    run = Running.start(tmp_path, *ENDLESS, *WINDOW)
    run.wait_for_steps(10)
    os.kill(run.rank_pid(1), signal.SIGKILL)
    assert run.survivors() == []  # nor nsys's agents
    ended = run.end()
    assert ended.code == 1
    assert ended.lines[1:] == [
        "perfdoc: rank 1 was killed (SIGKILL); often by the system, out of memory",
        "perfdoc: training failed: no checkpoint; what was captured: perfdoc analyze out",
    ]
    assert traces(tmp_path) == BOTH
    assert RunDirectory.open(tmp_path / "out").manifest().status == "failed"
    done = perfdoc("analyze", "out", "-o", "report", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for rank in json.loads((tmp_path / "report" / "diagnosis.json").read_text())["ranks"]:
        assert rank["window"]["steps"] == 2
        # nsys loses what came last of a killed process; the last step ends where it ended all the same.
        logged = (tmp_path / "out" / "steps" / f"rank{rank['rank']}.jsonl").read_text().splitlines()
        timed = sum(json.loads(line)["duration_ns"] for line in logged[2:4])
        assert rank["window"]["duration_ns"] == pytest.approx(timed, rel=0.2)
