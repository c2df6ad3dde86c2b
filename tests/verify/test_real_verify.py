"""Real runs: advice that is followed, and a stop in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfdoc.compare.verify.record import read_record
from tests.cli.running import SMALL, needs_training
from tests.verify.planted import WORKERS, fires, replayed, run_directory, setting

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]


def environment(folder: Path, **more: str) -> dict[str, str]:
    slow = str(ROOT / "benchmarks" / "slow_data")
    path = os.pathsep.join([slow, os.environ.get("PYTHONPATH", "")])
    own = {"PERFDOC_STATE": str(folder / "state"), "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    return {**os.environ, **own, **more}


def test_loading_processes_take_a_slow_disk_out_of_the_step(tmp_path: Path) -> None:
    # 8 ms a sample, 16 samples a rank and step: about 128 ms of every step, which two processes nearly hide.
    needs_training()
    env = environment(tmp_path, PERFDOC_DATA_DELAY_MS="8")
    words = [*SMALL, "train_iters=20", "manual_gc_interval=0", "--profiler", "torch", "-o", "run"]
    commands = (
        ["run", *words],
        ["verify", "run", "--apply", "PD203", "--steps", "16", "--statistic", "quickest", "-o", "out"],
        ["explain", "PD203"],
    )
    said = ""
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "perfdoc", *command],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said = done.stdout
    found = read_record(tmp_path / "out" / "verify.json")
    assert found.measured is not None
    assert (found.complete, found.measured.samples) == (True, 3)
    assert [r.arm for r in found.runs] == ["before", "after", "after", "before", "before", "after"]
    assert [(s.knob, s.before) for s in found.settings] == [(WORKERS, "0")]
    assert found.measured.gain_ms > 30
    assert found.verdict in ("confirmed", "smaller", "larger")
    assert found.facts["device"] == "cpu"
    assert "Track record: 1" in said


def test_a_stop_keeps_what_was_measured(tmp_path: Path) -> None:
    needs_training()
    rules = [fires("PD203", setting(WORKERS, "1", now="0"), gain=replayed(8, 10, 12))]
    run_directory(tmp_path / "run", 100, *SMALL[1:], rules=rules)
    command = ["verify", "run", "--apply", "PD203", "--steps", "16", "-o", "out"]
    with (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "perfdoc", *command],
            cwd=tmp_path,
            env=environment(tmp_path),
            stdout=subprocess.PIPE,
            stderr=err,
            text=True,
        )
    record = tmp_path / "out" / "verify.json"
    give_up = time.monotonic() + 120
    while not record.exists():
        assert process.poll() is None, (tmp_path / "err").read_text()
        assert time.monotonic() < give_up
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130, (tmp_path / "err").read_text()
    found = read_record(record)
    assert (found.complete, found.verdict) == (False, "inconclusive")
    assert len(found.runs) >= 1
    assert "stopped after" in out
    assert not (tmp_path / "state").exists()
