"""Idle time by cause over ranks: what a capture cannot show is no zero."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import CaptureMeasurement, measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from tests.analyzers.tiny import GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import one_gpu


def capture(folder: Path, name: str, *, pause: str = "", step: str = "step 0") -> CaptureMeasurement:
    """Kernels [100, 200) and [500, 600) in a step [0, 600); the second is launched at 500."""
    builder, thread, device = one_gpu()
    thread.range(step, 0, 600)
    device.kernel(GEMM, 100, 200, launch=(thread, 10, 20))
    device.kernel(GEMM, 500, 600, launch=(thread, 500, 500))
    if pause:
        thread.range(pause, 250, 400)
    path = write_nsys_sqlite(builder.build(), folder / f"{name}.sqlite", force=True)
    return measure_capture(path, WindowRequest())


def test_a_cause_that_no_range_names_is_unknown(tmp_path: Path) -> None:
    found = diagnose([capture(tmp_path, "a")]).analyses.host_gaps
    assert (found.state, found.causes["host"], found.host_frac) == ("measured", 300, 300 / 500)
    assert (found.causes["gc"], found.causes["data"]) == (None, None)
    assert "No range in the capture names a garbage collection" in found.causes_reasons["gc"]
    assert set(found.causes_reasons) == {"gc", "data"}


def test_perfdoc_names_every_pause_so_none_is_a_zero(tmp_path: Path) -> None:
    found = diagnose([capture(tmp_path, "a", step="perfdoc.step 0")]).analyses.host_gaps
    assert (found.causes["gc"], found.causes["data"], found.causes_reasons) == (0, 0, {})


def test_ranks_that_show_nothing_are_left_out_and_said(tmp_path: Path) -> None:
    captures = [capture(tmp_path, "a", pause="gc"), capture(tmp_path, "b")]
    found = diagnose(captures).analyses.host_gaps
    assert (found.causes["gc"], found.causes["host"], found.causes["data"]) == (150, 450, None)
    assert found.causes_reasons["gc"].startswith("1 of 2 ranks are left out.")
    assert found.host_frac == 600 / 1000
