"""Where edits stop: what ends a stretch of launches, and norms that take no longer beside communication."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.pipeline.passes import NO_PASSES
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.edits.host import without_launches
from perfdoc.simulator.replay.edits.kernels import in_16_bits, norms_alone
from perfdoc.simulator.replay.edits.overlap import overlapped
from perfdoc.simulator.replay.edits.pipeline import without_recompute
from perfdoc.simulator.replay.predict import predict
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.simulator.replay.unedited import replay
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import GEMM, trace_of
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.simulator.rebuilt_of import length
from tests.simulator.scaled import scaled_kernels
from tests.simulator.simulated import replayed, simulated

US = 1_000


@pytest.mark.parametrize("between", ["nothing", "data", "step", "allocation", "collection"])
def test_what_ends_a_stretch_of_launches(between: str, tmp_path: Path) -> None:
    """Launches [0, 10), [60, 70), [120, 130); a kernel starts 8 us after its call began and runs for 5; the
    window begins at 8. Together: [0, 10) and then two at 10, kernels 1.2 us behind one another until 25.4.
    Where the third begins a stretch of its own, 50 us after the second: at 60, its kernel [68, 73). No graph
    collects the garbage: of the 50 us 40 stay, and the third is launched at 50."""
    builder, thread, device = one_gpu()
    if between == "step":
        thread.range("perfdoc.step 0", 0, 100 * US)
        thread.range("perfdoc.step 1", 100 * US, 200 * US)
    for i in range(3):
        at = i * 60 * US
        if i == 2 and between == "data":
            thread.range("perfdoc.data", 75 * US, 115 * US)
        if i == 2 and between == "collection":
            thread.range("perfdoc.gc generation=2", 75 * US, 115 * US)
        if i == 2 and between == "allocation":
            thread.api("cudaMalloc", 80 * US, 110 * US)
        device.kernel(GEMM, at + 8 * US, at + 13 * US, stream=7, launch=(thread, at, at + 10 * US))
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    assert length(rebuilt) == 125 * US
    edited = length(without_launches().apply(rebuilt))
    assert edited == {"nothing": 17.4, "collection": 47}.get(between, 65) * US


@pytest.mark.parametrize(("pause_us", "gone_us"), [(20_000, 0), (8_000, 8_000)])
def test_a_long_pause_is_none_that_a_graph_takes_away(tmp_path: Path, pause_us: int, gone_us: int) -> None:
    """Four launches 100 us apart, and one so long after them."""
    builder, thread, device = one_gpu()
    for at in (0, 100, 200, 300, 300 + pause_us):
        launch = (thread, at * US, (at + 10) * US)
        device.kernel(GEMM, (at + 8) * US, (at + 13) * US, stream=7, launch=launch)
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    gain = predict(rebuilt, replay(rebuilt), [without_launches()])
    assert gain.mid_ms == pytest.approx((300 + gone_us) / 1_000, abs=0.1)


def test_where_no_range_shows_passes_all_may_be_overlapped_already(tmp_path: Path) -> None:
    """A job that overlaps, of which only its steps are known: what is exposed may be the last bucket."""
    found, rebuilt = replayed(simulated("dp=2"), tmp_path)
    bare = tuple(replace(r, passes=NO_PASSES, optimizer_starts_ns=np.empty(0, int)) for r in rebuilt.ranks)
    gain = predict(replace(rebuilt, ranks=bare), found, [overlapped("dp")])
    assert gain.mid_ms is not None
    assert gain.low_ms is not None
    assert gain.low_ms <= 0 < gain.mid_ms


def test_norms_that_take_longer_alone_are_left(tmp_path: Path) -> None:
    """Two kernels of 100 us; of one it is known that it takes 150 alone, of the other 40: 60 us less."""
    builder, thread, device = one_gpu()
    for i in range(2):
        at = 5 + 100 * i
        device.kernel(GEMM, at * US, (at + 100) * US, stream=7, launch=(thread, i * US, (i + 1) * US))
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    alone = np.full(len(rebuilt.start_ns), -1, np.int64)
    alone[rebuilt.graph.kind == TaskKind.COMPUTE] = (150 * US, 40 * US)
    assert length(rebuilt) == 200 * US
    assert length(norms_alone().apply(replace(rebuilt, alone_ns=alone))) == 140 * US
    with pytest.raises(ValueError, match="no norm kernel ran both"):
        norms_alone().apply(rebuilt)


def test_fp32_on_16_bit_tensor_cores(tmp_path: Path) -> None:
    """Kernels of 160 us side by side on an A100, whose 16-bit tensor cores are 16 times as fast as FP32 and
    twice as fast as TF32; of FP32 they reach 0.65 of the share of the peak. FP32 GEMM and attention: 160 /
    (16 x 0.65) = 15.385 us each; TF32: 80; a GEMM in 16 bits and a norm stay."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device(gpu_name="NVIDIA A100-SXM4-80GB")
    names = (
        *("ampere_sgemm_128x64_tn", "fmha_cutlassF_f32_aligned_64x64_rf_sm80"),
        *("cutlass_80_tensorop_s1688gemm_128x256_16x3_nn_align4", GEMM, "layer_norm_kernel"),
    )
    for i, name in enumerate(names):
        at = 10 + 160 * i
        device.kernel(name, at * US, (at + 160) * US, stream=7, launch=(thread, i * US, (i + 1) * US))
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    assert length(rebuilt) == 5 * 160 * US
    wanted = 2 * 15_385 + (80 + 2 * 160) * US
    assert length(in_16_bits().apply(rebuilt)) == pytest.approx(wanted, abs=3)
    whole = replace(rebuilt, narrow_ns=np.full_like(rebuilt.narrow_ns, -1))
    with pytest.raises(ValueError, match="FP32"):
        in_16_bits().apply(whole)


def test_16_bits_have_a_floor_and_undo_no_edit_before(tmp_path: Path) -> None:
    """FP32 GEMMs of 1, 5 and 200 us on an A100: 1 and 2, which any kernel takes, and 200 / 10.4 = 19.231;
    bound by memory 1, 2.5 and 100. After all GEMMs take half: half of each."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device(gpu_name="NVIDIA A100-SXM4-80GB")
    for i, us in enumerate((1, 5, 200)):
        at = 10 + 10 * i
        name = "ampere_sgemm_32x32_tn"
        device.kernel(name, at * US, (at + us) * US, stream=7, launch=(thread, i * US, (i + 1) * US))
    rebuilt = rebuild_rank(view_of(builder, tmp_path))
    kernels = rebuilt.graph.kind == TaskKind.COMPUTE

    def takes(change: Callable[[Rebuilt], Rebuilt], of: Rebuilt = rebuilt) -> list[int]:
        found: list[int] = change(of).graph.duration_ns[kernels].tolist()
        return found

    edit = in_16_bits()
    assert takes(edit.apply) == [1000, 2000, 19_231]
    assert [takes(variant) for variant in edit.variants] == [[1000, 2500, 100_000]]
    half = scaled_kernels(KernelClass.GEMM, 0.5).apply(rebuilt)
    assert takes(edit.apply, half) == [500, 1000, 9616]


def test_the_host_does_not_launch_again_what_is_kept(tmp_path: Path) -> None:
    """Calls of 3 us at 25, 50 and 110; kernels start 2 us after and run for 5. The second is a layer's
    forward again, in [40, 100): of the host's time 10 us before its call, the call, and 47 behind it go. The
    third kernel ends at 117 - 60; the window begins at 27."""
    builder, thread, device = one_gpu()
    thread.range("perfdoc.backward", 20 * US, 200 * US)
    thread.range("perfdoc.forward layer=0", 40 * US, 100 * US)
    for at in (25, 50, 110):
        launch = (thread, at * US, (at + 3) * US)
        device.kernel(GEMM, (at + 2) * US, (at + 7) * US, stream=7, launch=launch)
    (view,) = views_of(trace_of(builder, tmp_path))
    rebuilt = rebuild_rank(view)
    assert length(rebuilt) == 90 * US
    assert length(without_recompute().apply(rebuilt)) == 30 * US
