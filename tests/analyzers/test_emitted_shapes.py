"""Sizes that emit_nvtx writes into the names of ranges."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.work.operator_work import DTYPES, SOURCES, KernelWork
from tests.analyzers.device_views import view_of
from tests.analyzers.shape_plan import work_of
from tests.captures.timeline import TimelineBuilder

US = 1_000
BF16_GEMM = "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn"
NAMELESS = "Cijk_Ailk_Bljk_MT64x64"
MM = "aten::mm, seq = 3, op_id = 12, sizes = [[64, 32], [32, 16]], input_op_ids = [(1,0), (2,0)]"
SPLIT = "void cublasLt::splitKreduce_kernel<32, 16, int>(x)"


def work(folder: Path, *calls: tuple[tuple[str, ...], tuple[str, ...]]) -> KernelWork:
    """Nested ranges of these names, and the kernels that each launches in its innermost range, 10 us each."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device(gpu_name="NVIDIA H100 80GB HBM3")
    at = 0
    for names, kernels in calls:
        for depth, name in enumerate(names):
            thread.range(name, at + depth, at + 100 * US - depth)
        for i, kernel in enumerate(kernels):
            call = at + 10 * US + i * US
            begin = at + (20 + 10 * i) * US
            device.kernel(kernel, begin, begin + 10 * US, full_name=kernel, launch=(thread, call, call + 500))
        at += 100 * US
    return work_of(view_of(builder, folder))


def test_a_product_with_sizes_has_work(tmp_path: Path) -> None:
    """2 x 64 x 32 x 16 FLOPs in BF16, whose three matrices are 2 x (2,048 + 512 + 1,024) bytes; the linear
    layer around an addmm, which adds a bias of 16, has the addmm's: a forward and its gradients."""
    outer = "aten::linear, seq = 5, op_id = 20, sizes = [[4, 16, 32], [16, 32], [16]]"
    added = "aten::addmm, op_id = 21, sizes = [[16], [64, 32], [32, 16], [], []], input_op_ids = [(5,0)]"
    found = work(tmp_path, ((MM,), (BF16_GEMM,)), ((outer, added), (BF16_GEMM, SPLIT)))
    assert [SOURCES[i] for i in found.source.tolist()][:2] == ["shapes", "shapes"]
    assert found.flops[0] == 2 * 64 * 32 * 16
    assert found.bytes[0] == 2 * (64 * 32 + 32 * 16 + 64 * 16)
    assert DTYPES[found.dtype[0]] == "bf16"
    assert [o.name for o in found.operators] == ["aten::mm", "aten::addmm"]
    assert found.operators[0].shapes == "[[64, 32], [32, 16]]"
    assert np.nansum(found.flops[1:]) == pytest.approx(2 * 64 * 32 * 16, rel=0.04)  # and the bias


def test_a_batch_and_what_is_not_told(tmp_path: Path) -> None:
    """3 products of [8, 4] x [4, 2] in FP16; a kernel whose name tells no format has FLOPs of an unknown
    kind, and no bytes."""
    bmm = "aten::bmm, sizes = [[3, 8, 4], [3, 4, 2]]"
    found = work(tmp_path, ((bmm,), ("volta_fp16_s884gemm_fp16_128x64_tn",)), ((MM,), (NAMELESS,)))
    assert found.flops[0] == 2 * 3 * 8 * 4 * 2
    assert [DTYPES[i] for i in found.dtype.tolist()] == ["fp16", "unknown"]
    assert np.isnan(found.bytes[1])


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm",
        "aten::mm, op_id = 12, sizes = [[64, 32], [32, 16]",
        "aten::mm, op_id = 12, sizes = [[64, 32], [16, 32]]",
        "aten::mm, op_id = 12, sizes = [[64, -32], [-32, 16]]",
        "aten::mm, op_id = 12, sizes = [[9999999999999999999999, 32], [32, 16]]",
        "aten::mm, op_id = 12, sizes = [" + ", ".join(["[64, 32]"] * 500) + "]",
        "aten::mm, op_id = 12, sizes = " + "[" * 1500,
        "aten::mm, sizes = [[٦٤, 32], [32, 16]]",
        "MmBackward0, op_id = 12, sizes = [[64, 32], [32, 16]]",
        "aten::cat, op_id = 12, sizes = [[64, 32], [32, 16], []]",
    ],
)
def test_whatever_is_not_written_by_pytorch_is_unknown(name: str, tmp_path: Path) -> None:
    found = work(tmp_path, ((name,), (BF16_GEMM,)))
    assert np.isnan(found.flops).all()
    assert not found.operators
