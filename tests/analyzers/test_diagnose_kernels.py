"""Linear layers and matrix products are two figures in the diagnosis, each with one meaning."""

from __future__ import annotations

from pathlib import Path

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder


def test_linear_layers_are_not_all_matrix_products(tmp_path: Path) -> None:
    # 300 ns of products, of which 100 in attention's core; 100 of communication; 400 in all.
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    thread.range("perfdoc.forward layer=0", 0, 50)
    device.kernel(GEMM, 100, 300, launch=(thread, 10, 12))
    thread.range("core_attention", 20, 40)
    device.kernel(GEMM, 300, 400, launch=(thread, 25, 30))
    device.kernel(ALL_REDUCE, 400, 500, stream=9, launch=(thread, 60, 70))
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite", force=True)
    found = diagnose([measure_capture(path, WindowRequest())])
    kernels, (rank,) = found.analyses.kernels, found.ranks
    assert kernels.gemm_frac == 300 / 400
    assert kernels.linear_frac == rank.kernel_parts.linear_frac == 200 / 400
    assert (kernels.linear_reason, rank.kernel_parts.attention_ns) == ("", 100)
