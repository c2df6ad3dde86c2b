"""The first screen of a capture without CUDA calls: idle time has no cause; what to capture is named."""

from __future__ import annotations

import json
from pathlib import Path

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.reports.screen import render_screen


def test_what_to_capture_next_is_named_and_nothing_is_left_empty(tmp_path: Path) -> None:
    """Fifty kernels of 100 us, 100 us apart: 4.9 of 9.9 ms idle."""
    args = {"device": 0, "stream": 7}
    row = {"ph": "X", "cat": "kernel", "name": "gemm", "dur": 100, "args": args}
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": [{**row, "ts": 1000 + 200 * i} for i in range(50)]}))
    lines = render_screen(diagnose([measure_capture(path, WindowRequest())]), report=None).splitlines()
    assert lines[0].startswith("4.9 ms of the 9.9 ms window, 49.5 %")
    assert any(line.startswith("Next: Capture the CUDA API too") for line in lines)
    assert "Why:" not in lines
