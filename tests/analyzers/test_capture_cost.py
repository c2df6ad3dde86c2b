"""What a capture adds to the time of the host that it measures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.results.ranking import AS_SLOW
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.capture import slowed_by
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.rules.cases import case_of, result, step_with_gap


def with_ranges(folder: Path, name: str, count: int) -> Case:
    """Steps of 1 ms that idle for 0.4 ms, and so many ranges of 1 ns."""
    builder = step_with_gap(400)
    thread = builder.process(pid=1001).thread()
    for i in range(count):
        thread.range(name.format(i), 1_000 + 2 * i, 1_001 + 2 * i)
    path = write_nsys_sqlite(builder.build(), folder / "x.sqlite", force=True)
    return Case.of([measure_capture(path, WindowRequest())])


@pytest.mark.parametrize(
    ("name", "count", "told"),
    [
        ("aten::addmm, seq = {}, sizes = [[8]]", 1_000, True),
        ("autograd::engine::evaluate_function: AddmmBackward0, op_id = {}", 1_000, True),
        ("aten::addmm, seq = {}", 999, False),
        ("layer {}", 1_000, False),
    ],
)
def test_a_range_around_every_operator(tmp_path: Path, name: str, count: int, told: bool) -> None:
    case = with_ranges(tmp_path, name, count)
    assert ["1,000 ranges" in words for words in slowed_by(case)] == [True] * told
    found = result("PD201", case)
    assert ("the capture itself slows the host" in found.reason) is told
    assert found.gain is not None
    assert any(c.startswith(AS_SLOW) for c in found.gain.assumptions) is told


def test_a_step_log_tells_how_much(tmp_path: Path) -> None:
    case = case_of(tmp_path, step_with_gap(400))
    times = case.job.step_times
    logged = replace(times, overhead=replace(times.overhead, state="measured", frac=0.177))
    known = replace(case, job=replace(case.job, step_times=logged))
    assert "17.7 %" in [e.value for e in result("PD201", known).evidence]
    assert "17.7 %" not in [e.value for e in result("PD201", case).evidence]
