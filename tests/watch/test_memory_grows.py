"""Memory of real processes that grows, and that does not; growth in lumps, as of a heap, by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perfdoc.watch.follow import FollowedRun
from perfdoc.watch.memory import _onset

MIB = 1 << 20
LEAKS = """
import sys, time
from perfdoc.profiling import record, steps
record(sys.argv[1], log=[])
kept, onset = [], int(sys.argv[2])
for number, batch in enumerate(steps([0] * 240)):
    work = bytearray(8 << 20)
    work[::4096] = b"x" * len(work[::4096])
    if number >= onset:
        kept.append(bytearray(b"x") * (1 << 20))
    time.sleep(0.002)
"""


def lumps(onset: int, *, steps: int = 240, lump: int = 8) -> np.ndarray:
    """1 MiB a step from a step on, of which the system sees every eighth, all at once."""
    kept = np.maximum(np.arange(steps) - onset, 0)
    return 30.0 * MIB + kept // lump * lump * MIB


@pytest.mark.parametrize("onset", [0, 40, 80, 150])
def test_growth_in_lumps_is_told_from_the_first_of_them(onset: int) -> None:
    found = _onset(lumps(onset), np.arange(240))
    assert found is not None
    assert onset <= found <= onset + 8


def test_noise_is_no_bend_of_what_grows_from_the_beginning() -> None:
    random = np.random.default_rng(1)
    for _ in range(50):
        values = 1e9 + MIB * np.arange(300) + random.normal(0, 3 * MIB, 300)
        assert _onset(values, np.arange(300)) == 0


def test_one_jump_is_no_growth() -> None:
    jump = np.where(np.arange(240) < 120, 30.0, 200.0) * MIB
    assert _onset(jump, np.arange(240)) is None
    fills = 30.0 * MIB + MIB * np.minimum(np.arange(240), 120)
    assert _onset(fills, np.arange(240)) is None


@pytest.mark.parametrize(("onset", "cause"), [(80, ["memory_growth"]), (9999, [])])
def test_a_real_process(tmp_path: Path, onset: int, cause: list[str]) -> None:
    line = [sys.executable, "-c", LEAKS, str(tmp_path / "run"), str(onset)]
    subprocess.run(line, check=True, capture_output=True, timeout=120)
    findings = [one for one in FollowedRun(tmp_path / "run").look().findings if "memory" in one.cause]
    assert [one.cause for one in findings] == cause
    # The heap takes memory eight MiB at a time.
    assert all(one.onset_step is not None and 80 <= one.onset_step <= 90 for one in findings)
