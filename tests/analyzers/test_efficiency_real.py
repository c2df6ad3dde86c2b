"""The partition of compute on real captures: it sums to the ledger, and rates stay below the roofline."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.results.efficiency import KernelEfficiency
from perfdoc.traces import TraceError


def devices(path: Path) -> list[tuple[KernelEfficiency, int]]:
    """Each device's partition and the ledger's compute."""
    return [(r.efficiency, r.ledger.compute) for r in measure_capture(path, WindowRequest()).ranks]


@pytest.mark.slow
def test_compute_is_parted_to_the_nanosecond(shared_traces: Path) -> None:
    parted = 0
    for path in sorted(shared_traces.glob("*/*")):
        if not path.name.endswith((".sqlite", ".json.gz")) or "dlrm_8gpu" in path.name:
            continue
        try:
            ranks = devices(path)
        except TraceError:
            continue
        for found, compute_ns in ranks:
            if found.state == "measured":
                parted += 1
                lost = sum(row.total_ns for row in found.losses)
                assert found.compute_ns == found.at_peak_ns + lost + found.unknown_ns == compute_ns, path
                for rows in (found.by_class, found.by_part):
                    assert sum(row.time_ns for row in rows) == compute_ns, path
                    for row in rows:
                        assert row.roofline_ns <= row.known_ns + row.kernels, path
    assert parted > 15


def test_a_forward_pass_on_an_h100(shared_traces: Path) -> None:
    """qwen: its GEMMs run at 623 TFLOP/s, 63 % of 989; a sixth of compute is FLOPs at the peak."""
    ((found, _),) = devices(shared_traces / "shapes" / "qwen15_05b_forward_h100.json.gz")
    assert found.known_frac is not None
    assert found.known_frac > 0.99
    assert found.at_peak_ns / found.compute_ns == pytest.approx(0.183, abs=0.002)
    gemm = next(row for row in found.by_class if row.kernel_class == "gemm")
    assert gemm.achieved_tflops == pytest.approx(623, rel=0.01)
    assert gemm.roofline_frac == pytest.approx(623 / 989, rel=0.01)
