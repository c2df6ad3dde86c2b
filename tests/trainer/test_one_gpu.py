"""benchmarks/one_gpu as far as a CPU allows: its runs are valid, it keeps to its budget, and it ends here."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perfdoc.trainer.config import resolve
from perfdoc.trainer.layout import plan
from tests.trainer.launch import need_megatron

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "one_gpu"
WORDS = [sys.executable, str(FOLDER)]


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The programs' modules, by name; their names are not to stay taken."""
    import importlib

    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)

    def module(name: str) -> Any:
        return importlib.import_module(name)

    yield module
    for name in set(sys.modules) - before:
        if name in ("runs", "table", "bundles", "compare", "__main__", "one_gpu_main"):
            del sys.modules[name]


def test_every_run_is_valid_on_one_gpu_without_transformer_engine(ours: Any) -> None:
    runs = ours("runs")
    assert len({run.name for run in runs.RUNS}) == len(runs.RUNS)
    for run in runs.RUNS:
        config = resolve(run.config, run.words(on_cpu=False)).config
        assert plan(config, 1, "cuda", ()).world_size == 1, run.name
        assert config.training.train_iters == runs.STEPS
        if not run.needs_cuda:
            small = resolve(run.config, run.words(on_cpu=True)).config
            assert plan(small, 1, "cpu").world_size == 1, run.name
    # 4 x 218,103,808 and 2 x 128,256 x 4,096 parameters of 18 bytes: 34.6 of an H100's 85 GB.
    assert pytest.approx(34.6e9, rel=0.01) == 18 * (4 * 218_103_808 + 2 * 128_256 * 4096)


def test_clean_steps_are_before_the_profiler_and_others_apart(ours: Any, tmp_path: Path) -> None:
    """Step n takes n ms, profiled ones 1 s: clean 5 to 11, after 16 to 18 (15 remembers memory)."""
    table, folder = ours("table"), tmp_path / "steps"
    folder.mkdir()
    steps = [
        {"step": n, "duration_ns": (1000 if n in (13, 14) else n) * 10**6}
        | {"tokens": 4000, "loss": 2.5}
        | ({"profiled": True} if n in (13, 14) else {})  # as rows are written: without what is false
        for n in range(1, 19)
    ]
    lines = "\n".join(map(json.dumps, steps)) + '\n{"step": 19, "dura'
    (folder / "rank0.jsonl").write_text(lines)
    result = table.Result(name="base", state="ok")
    table.read(result, tmp_path)
    assert (result.clean_ms, result.spread_ms) == (8.0, 6.0)
    assert (result.profiled_ms, result.after_ms) == (1000.0, 17.0)
    assert (result.tokens_per_second, result.mfu) == (500_000.0, None)
    (row,) = [line for line in table.table([], [result]).splitlines() if line.startswith("| base ")]
    assert row.count("|") == len(table.COLUMNS) + 3


def test_what_comes_back_keeps_to_the_limits(
    ours: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the hundredth: a run with a snapshot of 200 kB and six of 120 kB of noise, in bundles of 150 kB."""
    bundles, back = ours("bundles"), tmp_path / "back"
    assert bundles.MOST_BYTES <= 16 << 20
    assert bundles.MOST_BUNDLES + len({"table.md", "results.json", "probe.json", "log.txt"}) <= 8
    monkeypatch.setattr(bundles, "MOST_BYTES", 150_000)
    back.mkdir()
    fill, said = random.Random(1), []
    kept = bundles.Bundles(back)
    for name, trace, snapshot in (("big", 10, 200), *((f"r{n}", 120, 0) for n in range(6))):
        run = tmp_path / name
        (run / "data").mkdir(parents=True)
        (run / "data" / "much").write_bytes(b"x" * 10**6)
        (run / "trace.json.gz").write_bytes(fill.randbytes(trace * 1000))
        (run / "rank0.pickle").write_bytes(fill.randbytes(snapshot * 1000))
        (run / "run.json").write_text("{}")
        said.append(kept.add(run, tmp_path / "no.log"))
    assert said[0] == "without .pickle"
    assert said[1:] == [""] * 3 + ["without .pickle, .json.gz"] * 3
    files = sorted(back.iterdir())
    assert len(files) <= 4
    assert all(file.stat().st_size <= 160_000 for file in files)
    bundles.unpack(back, tmp_path / "home")
    assert sorted(path.name for path in (tmp_path / "home" / "big").iterdir()) == [
        "run.json",
        "trace.json.gz",
    ]
    assert (tmp_path / "home" / "r5" / "run.json").exists()


def test_predicted_is_held_against_measured(ours: Any) -> None:
    """8 ms instead of 10: 20 % gained, within 15 to 30 %; nothing is said of what nobody predicted."""
    compare = ours("compare")
    said = compare.Predicted(settings=frozenset({"a=1"}), low=0.15, mid=0.25, high=0.3, by="tune")
    assert compare._cells(said, 0.2) == ["+25.0% (+15.0% to +30.0%)", "+20.0%", "+5.0%", "holds tune"]
    assert compare._cells(said, 0.4)[-1] == "**miss** tune"
    assert compare._cells(None, 0.2)[0] == "not predicted"


def test_without_a_device_it_says_so_in_a_line(tmp_path: Path) -> None:
    need_megatron()
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = subprocess.run([*WORDS, "-o", str(tmp_path / "out")], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "sees no CUDA device" in done.stderr


def test_a_run_that_does_not_fit_is_not_started(tmp_path: Path) -> None:
    need_megatron()
    words = [*WORDS, "-o", str(tmp_path), "--pretend", "--budget", "40", "--only", "base,graphs"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads((tmp_path / "results.json").read_text())["runs"]}
    assert rows["base"]["state"] == rows["graphs"]["state"] == "not started"
    assert "it may take 60 s" in rows["base"]["reason"]
    assert rows["graphs"]["reason"] == "needs CUDA"
    assert done.stdout == (tmp_path / "table.md").read_text()


@pytest.mark.slow
def test_it_runs_and_is_compared_here(tmp_path: Path) -> None:
    need_megatron()
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    words = [*WORDS, "-o", str(tmp_path), "--pretend", "--only", "base,mbs2,again"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=400)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "results.json").read_text())["runs"]
    assert [(row["name"], row["state"]) for row in rows] == [(n, "ok") for n in ("base", "mbs2", "again")]
    assert all(row["clean_ms"] > 0 and row["profiled_ms"] > 0 for row in rows)
    compared = [sys.executable, str(FOLDER / "compare.py"), str(tmp_path)]
    shown = subprocess.run(compared, capture_output=True, text=True, env=environment, timeout=300)
    assert shown.returncode == 0, shown.stderr
    (row,) = [line for line in shown.stdout.splitlines() if line.startswith("| mbs2 ")]
    assert "%" in row.split("|")[2]  # a prediction, by the search of configurations
