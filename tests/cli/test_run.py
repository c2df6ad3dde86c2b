"""`perfdoc run` and `perfdoc config`, with real training where PyTorch and megatron-core are installed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from perfdoc.profiling.nsys.command import find_nsys, nvtx_trouble
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.run.prepare import split_words
from perfdoc.trainer.config.resolve import named_configs
from tests.cli.running import SMALL, Running, needs_training
from tests.cli.test_analyze import leaves
from tests.command import perfdoc


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], ("tiny", [], [])),
        (["gpt_125m"], ("gpt_125m", [], [])),
        (["seed=3"], ("tiny", ["seed=3"], [])),
        (
            ["tiny", "a=1", "b=2", "--nproc-per-node", "4"],
            ("tiny", ["a=1", "b=2"], ["--nproc-per-node", "4"]),
        ),
    ],
)
def test_words(words: list[str], expected: tuple[str, list[str], list[str]]) -> None:
    assert split_words(words) == expected


def test_the_configurations_are_listed() -> None:
    listed = perfdoc("config", "list").stdout.splitlines()
    assert [line.split()[0] for line in listed] == named_configs()
    assert all(len(line.split()) > 4 for line in listed), "each says what it is"
    assert perfdoc("config", "-h").stdout == perfdoc("config", "--help").stdout != ""


def test_config_show_says_where_each_value_comes_from() -> None:
    done = perfdoc("config", "show", "tiny", "training.seed=77")
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["training.seed"] == ["77", "override"]
    assert rows["model.hidden_size"] == ["128", "file", "tiny"]
    wrong = perfdoc("config", "show", "tiny", "hiden_size=3")
    assert (wrong.returncode, "did you mean hidden_size" in wrong.stderr) == (2, True)


def test_dry_run_prints_the_command_and_makes_nothing(tmp_path: Path) -> None:
    needs_training()
    done = perfdoc("run", "tiny", "--dry-run", "-o", "out", "--profiler", "torch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "--nproc-per-node=2 -m perfdoc.trainer.main" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("nosuchconfig",),
        ("tiny", "hiden_size=3"),
        ("tiny", "tensor_model_parallel_size=3"),
        ("tiny", "--profiler", "perf"),
        ("tiny", "--", "--nproc-per-node", "3"),
        ("tiny", "--", "--nproc-per-node", "foo"),
        ("tiny", "--profile-start", "400"),
        ("tiny", "--profile-ranks", "2"),
        ("tiny", "--profile-ranks", "0,,1"),
        ("tiny", "--profile-ranks", "all"),
    ],
)
def test_mistakes_are_refused_before_any_process_starts(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    needs_training()
    done = perfdoc("run", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("perfdoc: ")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_real_run_is_trained_profiled_and_analysed(tmp_path: Path) -> None:
    needs_training()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    done = perfdoc(
        *("run", "tiny", "train_iters=8", "lr_warmup_iters=2", "-o", "out", "--profiler", "torch"),
        *("--profile-start", "4", "--profile-steps", "2"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    diagnosis = json.loads((tmp_path / "out" / "report" / "diagnosis.json").read_text())
    assert [r["rank"] for r in diagnosis["ranks"]] == [0, 1]
    for rank in diagnosis["ranks"]:
        assert (rank["window"]["kind"], rank["window"]["steps"]) == ("steps", 2)
        assert sum(leaves(rank).values()) == rank["window"]["duration_ns"]
        assert rank["ledger_ns"]["compute"] > 0
        assert rank["ledger_ns"]["idle"]["data"] > 0
        dimensions = {c["dimension"] for c in rank["communication"]}
        assert "dp" in dimensions
    # The window on the device and the step that the trainer timed by itself are the same steps.
    logged = [
        json.loads(line) for line in (tmp_path / "out" / "steps" / "rank0.jsonl").read_text().splitlines()
    ]
    timed = [s["duration_ns"] for s in logged if s.get("profiled")]
    measured = [s["duration_ns"] for s in diagnosis["ranks"][0]["window"]["step_list"]]
    assert sum(measured) == pytest.approx(sum(timed), rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("profiler", ["torch", "nsys"])
def test_one_rank_of_two_is_profiled(tmp_path: Path, profiler: str) -> None:
    """The other one has steps and nothing else, and nobody misses its trace."""
    needs_training()
    if profiler == "nsys":
        nsys = find_nsys()
        if nsys is None or nvtx_trouble(nsys):
            pytest.skip(
                "needs nsys (PERFDOC_NSYS or on PATH) and a version of the nvtx package that it reads"
            )
    profiled = ("--profiler", profiler, "--profile-start", "3", "--profile-ranks", "1")
    started = Running.start(tmp_path, *SMALL, "train_iters=8", *profiled)
    ended = started.end()
    assert ended.code == 0, ended.lines
    told = [line for line in ended.lines if "files analysed" not in line]  # said where that lasts
    assert len(told) == 2, told  # the profiler, and where the report is
    run = RunDirectory.open(tmp_path / "out")
    assert run.manifest().profile.ranks == (1,)
    assert set(run.files_by_rank("steps")) == {0, 1}
    assert all(set(run.files_by_rank(folder)) == {1} for folder in ("traces", "collectives", "memory"))
    diagnosis = json.loads((tmp_path / "out" / "report" / "diagnosis.json").read_text())
    assert [rank["rank"] for rank in diagnosis["ranks"]] == [1]
