"""The fastest quarter of a run's steps, for a machine that others use."""

from __future__ import annotations

import json
from pathlib import Path

from perfdoc.compare.figures import steady
from tests.gate.commands import MS, MakeRun, gate, record


def test_the_quickest_quarter_by_hand() -> None:
    # Of sixteen steps more than half met a slow stretch; the quickest four are 10, 10, 11 and 11.
    times = [14, 14, 14, 14, 14, 14, 10, 11, 10, 11, 12, 12, 12, 14, 14, 14]
    found = steady([1000 * t for t in times])
    assert (found["median_step_ns"], found["quickest_step_ns"], found["steps"]) == (14_000, 10_500, 16)
    assert steady([10] * 8)["quickest_step_ns"] == 10


def test_it_is_recorded_and_compared(tmp_path: Path, make_run: MakeRun) -> None:
    path = record(tmp_path, make_run)
    baseline = json.loads(path.read_text())
    # 15 steady steps that wobble between 0.99 and 1.01: the quickest three are 99 ms.
    assert baseline["runs"][0]["quickest_step_ns"] == 99 * MS
    slow = make_run("slow", 110)
    code, out, _ = gate(tmp_path, "check", slow, "--statistic", "quickest")
    assert (code, "A step of the fastest quarter takes 108.900 ms, 10.0 % slower" in out) == (1, True), out
    assert gate(tmp_path, "record", slow, "--statistic", "quickest")[0] == 2
