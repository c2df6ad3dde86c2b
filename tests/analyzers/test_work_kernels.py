"""Which operator a kernel belongs to, and how kernels of one call share its work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.work.operator_work import DTYPES, SOURCES, KernelWork
from tests.analyzers.shape_plan import (
    BF16,
    FILL,
    FLASH,
    FP32,
    GAMMA_BETA,
    GEMM,
    NORM_GRADIENT,
    SPLIT_K,
    ShapePlan,
)

MM = {"dims": [[8, 16], [16, 32]], "dtypes": [BF16, BF16]}
MM_FLOPS = 2 * 8 * 16 * 32
MM_BYTES = 2 * (8 * 16 + 16 * 32 + 8 * 32)


ODD = [
    [],
    [[]],
    [[8, 16]],
    [[8, 16], [16, -32]],
    [[8, 16], [16, 2**70]],
    [[8, 16], [2**40, 2**40]],
    [[8, 16], "16x32"],
    [[8, 16], [16, 32.5]],
    [[[8, 16]], [[16, 32]]],
    [[8, 16], None],
    [[8, 16], [17, 32]],
    [[8, 16, 1], [16, 32]],
    "rubbish",
    7,
    {"a": 1},
]


def names(work: KernelWork) -> list[str]:
    return [work.operators[i].name if i >= 0 else "" for i in work.operator.tolist()]


def test_the_innermost_operator_with_a_formula_owns_the_kernel(tmp_path: Path) -> None:
    """linear calls t (no formula) and addmm; the kernel is addmm's: 2·8·16·32 and 8·32 for the bias."""
    plan = ShapePlan()
    plan.operator("aten::linear", 10, 50, dims=[[8, 16], [32, 16], [32]], dtypes=[BF16] * 3)
    plan.operator("aten::t", 11, 14, dims=[[32, 16]], dtypes=[BF16])
    dims = [[32], [8, 16], [16, 32], [], []]
    plan.operator(
        "aten::addmm", 20, 40, dims=dims, dtypes=[BF16] * 3 + ["Scalar"] * 2, values=["", "", "", "1", "1"]
    )
    plan.kernel(GEMM, 5, 30)
    found = plan.work(tmp_path)
    assert names(found) == ["aten::addmm"]
    assert found.flops.tolist() == [MM_FLOPS + 8 * 32]
    assert found.bytes.tolist() == [MM_BYTES + 2 * 32]
    assert [SOURCES[i] for i in found.source.tolist()] == ["shapes"]
    assert [DTYPES[i] for i in found.dtype.tolist()] == ["bf16"]
    assert found.reason == ""


def test_kernels_of_a_call_share_its_work_by_their_durations(tmp_path: Path) -> None:
    """Split-K of 30 µs and its sum of 10 µs: three quarters and one. A second call has its own."""
    plan = ShapePlan()
    plan.operator("aten::mm", 10, 20, **MM)
    plan.kernel(GEMM, 30, 11)
    plan.kernel(SPLIT_K, 10, 13)
    plan.operator("aten::mm", 30, 40, **MM)
    plan.kernel(GEMM, 7, 31)
    found = plan.work(tmp_path)
    assert found.flops.tolist() == [MM_FLOPS * 0.75, MM_FLOPS * 0.25, MM_FLOPS]
    assert found.bytes.tolist() == [MM_BYTES * 0.75, MM_BYTES * 0.25, MM_BYTES]
    assert len(found.operators) == 1
    assert found.operators[0].flops == MM_FLOPS
    assert found.call[0] == found.call[1] != found.call[2]


def test_two_halves_of_a_norms_gradient(tmp_path: Path) -> None:
    plan = ShapePlan()
    dims = [[4, 8], [4, 8], [], [4, 1], [4, 1], [8], [8], []]
    types = [FP32, FP32, "ScalarList", FP32, FP32, FP32, FP32, "ScalarList"]
    plan.operator("aten::native_layer_norm_backward", 10, 20, dims=dims, dtypes=types)
    plan.kernel(NORM_GRADIENT, 6, 11)
    plan.kernel(GAMMA_BETA, 2, 12)
    found = plan.work(tmp_path)
    # 9 operations each; dy, x and weight read, dx and the gradients of weight and bias written.
    assert found.flops.tolist() == [9 * 32 * 0.75, 9 * 32 * 0.25]
    assert found.bytes.sum() == 4 * (3 * 32 + 3 * 8)


def test_kernels_of_another_class_have_none_of_a_product(tmp_path: Path) -> None:
    """A fill inside mm, then mm that launched nothing but a fill."""
    plan = ShapePlan()
    plan.operator("aten::mm", 10, 20, **MM)
    plan.kernel(FILL, 10, 11)
    plan.kernel(GEMM, 30, 13)
    plan.operator("aten::mm", 30, 40, **MM)
    plan.kernel(FILL, 7, 31)
    found = plan.work(tmp_path)
    assert np.isnan(found.flops[[0, 2]]).all()
    assert found.flops[1] == MM_FLOPS
    assert [SOURCES[i] for i in found.source.tolist()] == ["none", "shapes", "none"]


def test_products_of_sparse_operands_are_unknown(tmp_path: Path) -> None:
    """Their shapes are those of dense ones, and the operator is the same."""
    plan = ShapePlan()
    for at, name in ((0, GEMM), (10, "void cusparse::csrmm_v2_kernel<cusparse::CsrMMPolicy<float>>(x)")):
        plan.operator("aten::addmm", at, at + 5, dims=[[64, 64]] * 3, dtypes=[BF16] * 3)
        plan.kernel(name, 5, at + 1)
    assert np.isnan(plan.work(tmp_path).flops).tolist() == [False, True]


def test_an_operator_around_one_of_its_kind_claims_nothing(tmp_path: Path) -> None:
    """A backend launches one kernel in linear and one in the mm inside it: the product is there once."""
    plan = ShapePlan()
    plan.operator("aten::linear", 10, 50, dims=[[8, 16], [32, 16]], dtypes=[BF16, BF16])
    plan.kernel(GEMM, 5, 12)
    plan.operator("aten::mm", 20, 40, **MM)
    plan.kernel(GEMM, 5, 30)
    found = plan.work(tmp_path)
    assert np.nansum(found.flops) == MM_FLOPS
    assert names(found) == ["", "aten::mm"]


def test_kernels_of_cuda_graphs_have_no_operator(tmp_path: Path) -> None:
    """Whatever is open around the launch of the whole graph; PyTorch of old named no nodes."""
    plan = ShapePlan()
    plan.operator("aten::mm", 10, 20, **MM)
    plan.kernel(GEMM, 5, 11, call="cudaGraphLaunch")
    plan.kernel(GEMM, 5, 13, call="cudaGraphLaunch", node=3)
    plan.operator("aten::mm", 30, 40, **MM)
    plan.kernel(GEMM, 5, 31)
    assert names(plan.work(tmp_path)) == ["", "", "aten::mm"]


def test_compiled_kernels_are_unknown(tmp_path: Path) -> None:
    plan = ShapePlan()
    plan.operator("Torch-Compiled Region: 0/0", 10, 90, dims=[[8, 16]], dtypes=[BF16])
    plan.operator(
        "triton_poi_fused_add_0", 20, 30, dims=[[8, 16], [8, 16], []], dtypes=[BF16, BF16, "Scalar"]
    )
    plan.kernel("triton_poi_fused_add_0", 5, 21)
    plan.operator("aten::mm", 40, 50, **MM)
    plan.kernel(GEMM, 5, 41)
    assert names(plan.work(tmp_path)) == ["", "aten::mm"]


@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        ("sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_execute_kernel__5x_cublas", "tf32"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4>(Params)", "tf32"),
        ("ampere_sgemm_128x64_tn", "fp32"),
    ],
)
def test_fp32_inputs_that_are_multiplied_in_tf32(tmp_path: Path, kernel: str, dtype: str) -> None:
    plan = ShapePlan()
    plan.operator("aten::mm", 10, 20, dims=[[8, 16], [16, 32]], dtypes=[FP32, FP32])
    plan.kernel(kernel, 5, 11)
    assert [DTYPES[i] for i in plan.work(tmp_path).dtype.tolist()] == [dtype]


def test_a_call_whose_work_is_not_determined(tmp_path: Path) -> None:
    """Packed sequences: nothing is claimed, not even by the operator around it."""
    plan = ShapePlan()
    plan.operator(
        "flash_attn::_flash_attn_varlen_forward",
        10,
        20,
        dims=[[100, 8, 64], [100, 8, 64], [100, 8, 64], [4], [4], *[[]] * 9],
        dtypes=[BF16, BF16, BF16, "int", "int", *["Scalar"] * 9],
        values=["", "", "", "", "", "60", "60", "0.", "0.125", "True", "-1", "-1", "0.", ""],
    )
    plan.kernel(FLASH, 5, 11)
    plan.operator("aten::mm", 40, 50, **MM)
    plan.kernel(GEMM, 5, 41)
    assert names(plan.work(tmp_path)) == ["", "aten::mm"]


def test_lists_have_the_element_type_that_the_kernel_names(tmp_path: Path) -> None:
    """Two parameters of 10 and 6 in FP32: 14 operations each; 4 tensors read, 3 written."""
    plan = ShapePlan()
    tensors = [[10], [2, 3]]
    dims = [tensors, tensors, tensors, tensors, [], [[], []], *[[]] * 8]
    plan.operator("aten::_fused_adamw_", 10, 20, dims=dims, dtypes=["TensorList"] * 6 + ["Scalar"] * 8)
    kernel = (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<"
        "FusedOptimizerTensorListMetadata<4>, "
        "at::native::FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)1, false>, float>(int)"
    )
    plan.kernel(kernel, 5, 11)
    plan.kernel(kernel, 5, 12)
    found = plan.work(tmp_path)
    assert found.flops.sum() == 14 * 16
    assert found.bytes.sum() == 7 * 4 * 16


def test_without_shapes_the_remedy_is_named(tmp_path: Path) -> None:
    plan = ShapePlan()
    plan.operator("aten::mm", 10, 20)
    plan.kernel(GEMM, 5, 11)
    found = plan.work(tmp_path)
    assert "record_shapes=True" in found.reason
    assert np.isnan(found.flops).all()
    assert found.operators == ()
    assert found.call.tolist() == [-1]


@pytest.mark.parametrize("dims", ODD, ids=[json.dumps(d)[:30] for d in ODD])
def test_odd_shapes_are_unknown(tmp_path: Path, dims: object) -> None:
    plan = ShapePlan()
    plan.operator("aten::mm", 10, 20, dims=dims, dtypes=[BF16, BF16])
    plan.kernel(GEMM, 5, 11)
    plan.operator("aten::mm", 30, 40, **MM)
    plan.kernel(GEMM, 5, 31)
    found = plan.work(tmp_path)
    assert np.isnan(found.flops[0])
    assert found.flops[1] == MM_FLOPS


def test_types_that_are_missing_or_unknown(tmp_path: Path) -> None:
    """Operations follow from shapes alone; bytes do not."""
    plan = ShapePlan()
    plan.operator("aten::mm", 10, 20, dims=MM["dims"])
    plan.kernel(GEMM, 5, 11)
    plan.operator("aten::mm", 30, 40, dims=MM["dims"], dtypes=["c10::Float3", "c10::Float3"])
    plan.kernel(GEMM, 5, 31)
    found = plan.work(tmp_path)
    assert found.flops.tolist() == [MM_FLOPS] * 2
    assert np.isnan(found.bytes).all()
    assert {DTYPES[i] for i in found.dtype.tolist()} == {"unknown"}
