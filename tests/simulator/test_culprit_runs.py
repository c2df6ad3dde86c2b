"""Real processes with a planted cause, captured and analysed: the benchmark's cases of two and four ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "culprit_runs.py"


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ranks are pinned to two cores")
def test_a_rank_of_a_real_job_that_is_slow_is_named(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    line = [sys.executable, str(BENCHMARK), "--repeats", "1", "--case", "DP2, a slow rank"]
    # Others share the cores: without a priority it is their load that is measured.
    line += ["--nice", "-15"] if os.geteuid() == 0 else []
    ran = subprocess.run(
        line,
        check=False,
        capture_output=True,
        text=True,
        timeout=400,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    named = [said for said in ran.stdout.splitlines() if "named in 1 of 1" in said]
    assert (ran.returncode, len(named)) == (0, 2), ran.stdout + ran.stderr
