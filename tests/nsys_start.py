"""Start a real nsys as often as it takes: now and then it ends before it has started the program."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

STARTS = 4


def profile(
    line: Sequence[str | Path],
    report: Path,
    *,
    cwd: Path | None = None,
    timeout_s: float = 180,
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run an nsys line that writes `report`; an nsys that leaves none is started again, a few times.

    On a busy machine 5 of 50 starts of nsys 2022.4.2, and 1 of 30 of 2024.2.3, ended in an exception.
    """
    for _ in range(STARTS):
        done = subprocess.run(
            [str(word) for word in line],
            capture_output=True,
            text=True,
            cwd=cwd,
            timeout=timeout_s,
            env={**os.environ, **(env or {})},
            check=False,
        )
        if report.is_file():
            return done
    raise AssertionError(f"nsys left no {report.name}, {STARTS} times: {done.stderr[-2000:]}")
