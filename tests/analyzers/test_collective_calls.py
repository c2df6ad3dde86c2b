"""Columns of a device's communication that ranks are compared by: steps, and what lies in the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.simulator.timeline import TimelineBuilder
from tests.analyzers.calls_of import calls_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM, trace_of


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (("perfdoc.step 7", "perfdoc.step 8"), [-1, 7, 7, 8, -1]),
        # Numbers that begin again with every epoch name no step.
        (("perfdoc.step 7", "perfdoc.step 7"), [-1] * 5),
        (("train step", "train step"), [-1] * 5),
    ],
)
def test_a_call_is_of_the_step_that_launched_it(
    tmp_path: Path, names: tuple[str, str], steps: list[int]
) -> None:
    """Step ranges [100, 200) and [200, 300) on the host; the device is 1000 behind. One call is launched
    before them, and one after them that runs while the device is still busy with the last step."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    for start, name in zip((100, 200), names, strict=True):
        thread.range(name, start, start + 100)
    for launched in (50, 100, 199, 200, 310):
        device.kernel(
            ALL_REDUCE, 1000 + launched, 1001 + launched, stream=20, launch=(thread, launched, launched)
        )
    device.kernel(GEMM, 1290, 1400, launch=(thread, 290, 295))
    (calls,) = calls_of(trace_of(builder, tmp_path))
    assert calls.step.tolist() == steps
    # The window begins with what the first step launched, and ends with the last of the second.
    assert calls.in_window.tolist() == [False, True, True, True, True]
    assert calls.compute_before_ns.tolist() == [0, 0, 0, 0, 20]
