"""Operations and bytes of every formula, worked out by hand beside it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.work.attention import twice_the_scores
from perfdoc.analyzers.work.from_shapes import FORMULAS, operator_work
from perfdoc.analyzers.work.inputs import parse_inputs
from perfdoc.analyzers.work.operator_work import OperatorWork

BF16, FP32, FP8, INT8, LONG = "c10::BFloat16", "float", "c10::Float8_e4m3fn", "signed char", "long int"


BSHD = [2, 8, 4, 16]


def _efficient(mask: str) -> list[str]:
    """(q, k, v, bias, cu_q, cu_k, max_q, max_k, dropout, mask type, …)."""
    return ["", "", "", "", "", "", "8", "8", "0.", mask, "True", "", "", ""]


def work(
    name: str, dims: Any, dtypes: Any = None, values: Any = None, strides: Any = None, element: str = ""
) -> OperatorWork | None:
    texts = ["" if part is None else json.dumps(part) for part in (dims, dtypes, values, strides)]
    return operator_work(parse_inputs(f"aten::{name}" if "::" not in name else name, *texts, element))


def figures(*args: Any, **more: Any) -> tuple[int | None, int | None, str, str]:
    found = work(*args, **more)
    assert found is not None
    return found.flops, found.bytes, found.dtype, found.kind


def same(count: int, dtype: str = BF16, scalars: int = 0) -> list[str]:
    return [dtype] * count + ["Scalar"] * scalars


def test_products() -> None:
    assert figures("mm", [[3, 5], [5, 7]], same(2)) == (2 * 105, 2 * (15 + 35 + 21), "bf16", "gemm")
    assert figures("bmm", [[2, 3, 5], [2, 5, 7]], same(2, FP32)) == (420, 4 * (30 + 70 + 42), "fp32", "gemm")
    # Whole numbers of 8 bits are summed in 32.
    assert figures("_int_mm", [[3, 5], [5, 7]], same(2, INT8)) == (210, 15 + 35 + 84, "int8", "gemm")
    assert figures("linear", [[2, 3, 5], [7, 5], [7]], same(3)) == (
        *(2 * 6 * 7 * 5 + 42, 2 * (30 + 35 + 7 + 42)),
        *("bf16", "gemm"),
    )


def test_a_matrix_that_is_added() -> None:
    """One operation for every output more, unless beta is 0; then it is not read either."""
    dims, types = [[7], [3, 5], [5, 7], [], []], same(3, scalars=2)
    assert figures("addmm", dims, types, ["", "", "", "1", "1"])[:2] == (210 + 21, 2 * (7 + 15 + 35 + 21))
    assert figures("addmm", dims, types, ["", "", "", "0", "1"])[:2] == (210, 2 * (15 + 35 + 21))
    dims = [[2, 3, 7], [2, 3, 5], [2, 5, 7], [], []]
    assert figures("baddbmm", dims, types, ["", "", "", "0.", "0.125"])[:2] == (420, 2 * (30 + 70 + 42))
    assert figures("baddbmm", dims, types, ["", "", "", "1", "1"])[:2] == (462, 2 * (42 + 30 + 70 + 42))


def test_an_expanded_batch_is_read_once() -> None:
    """b is one matrix that stands for two: its stride along the batch is 0."""
    found = figures("bmm", [[2, 3, 5], [2, 5, 7]], same(2), None, [[15, 5, 1], [0, 7, 1]])
    assert found[:2] == (420, 2 * (30 + 35 + 42))


def test_products_of_8_bits() -> None:
    """_scaled_mm(a, b, scale_a, scale_b, bias, scale_result, out_dtype 15, use_fast_accum)."""
    dims = [[16, 32], [32, 64], [], [], [64], [], [], []]
    types = [FP8, FP8, FP32, FP32, BF16, "", "Scalar", "Scalar"]
    values = ["", "", "", "", "", "", "15", "True"]
    flops = 2 * 16 * 32 * 64 + 16 * 64
    moved = 512 + 2048 + 4 + 4 + 128 + 2 * 1024
    assert figures("_scaled_mm", dims, types, values) == (flops, moved, "fp8", "gemm")
    # Until PyTorch 2.4: (a, b, bias, out_dtype, scale_a, scale_b, scale_result, use_fast_accum).
    dims = [[16, 32], [32, 64], [], [], [], [], [], []]
    types = [FP8, FP8, "", "Scalar", FP32, FP32, "", "Scalar"]
    values = ["", "", "", "15", "", "", "", "True"]
    assert figures("_scaled_mm", dims, types, values)[:2] == (2 * 16 * 32 * 64, 512 + 2048 + 8 + 2048)
    assert work("_scaled_mm", dims, ["c10::Float4_e2m1fn_x2", *types[1:]], values) is None


def test_grouped_products() -> None:
    """_grouped_mm(a, b, offs, bias, out_dtype): 10 rows of 4 experts; then the gradient of their weights."""
    types, values = [BF16, BF16, "int", "", ""], ["", "", "", "", ""]
    found = figures("_grouped_mm", [[10, 6], [4, 6, 8], [4], [], []], types, values)
    assert found == (2 * 10 * 6 * 8, 2 * (60 + 192 + 80) + 16, "bf16", "grouped_gemm")
    found = figures("_grouped_mm", [[6, 10], [10, 8], [4], [], []], types, values)
    assert found[:2] == (2 * 10 * 6 * 8, 2 * (60 + 80 + 4 * 6 * 8) + 16)
    found = figures("_grouped_mm", [[4, 5, 6], [4, 6, 8], [], [], []], [BF16, BF16, "", "", ""], values)
    assert found[:2] == (2 * 4 * 5 * 6 * 8, 2 * (120 + 192 + 160))


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("mm", [[3, 5], [6, 7]]),
        ("mm", [[3, 5]]),
        ("bmm", [[2, 3, 5], [3, 5, 7]]),
        ("bmm", [[3, 5], [2, 5, 7]]),
        ("linear", [[], [7, 5]]),
        ("addmm", [[], [3, 5], [5, 7]]),
        ("_grouped_mm", [[10, 6], [4, 7, 8], [4]]),
        ("matmul", [[3, 5], [5, 7]]),
    ],
)
def test_products_that_do_not_fit(name: str, dims: Any) -> None:
    assert work(name, dims) is None


Q = [2, 4, 8, 16]
"""Sequences, heads, positions, width."""


def flash(causal: str, q: Any = None, kv: Any = None) -> tuple[int | None, int | None]:
    dims = [q or Q, kv or Q, kv or Q, [], [], [], []]
    values = ["", "", "", "0.", causal, "False", ""]
    return figures("_scaled_dot_product_flash_attention", dims, same(3, scalars=4), values)[:2]


def test_attention_forward() -> None:
    """2·4·(8·8)·(16 + 16)·2 operations, half of them under the mask; four tensors of 1,024."""
    assert flash("False") == (2 * 8 * 64 * 32, 2 * 4 * 1024)
    assert flash("True") == (8 * 64 * 32, 2 * 4 * 1024)


def test_attention_of_groups() -> None:
    """Two heads of keys for four of queries: the operations of four, the bytes of two."""
    assert flash("False", kv=[2, 2, 8, 16]) == (2 * 8 * 64 * 32, 2 * (2 * 1024 + 2 * 512))
    assert work("_scaled_dot_product_flash_attention", [Q, [2, 3, 8, 16], [2, 3, 8, 16]]) is None


def test_attention_without_a_known_mask() -> None:
    assert work("_scaled_dot_product_flash_attention", [Q] * 3, same(3)) is None


def test_scores_under_a_diagonal() -> None:
    """Counted cell by cell, a diagonal's own cells as half."""
    for queries in range(1, 7):
        for keys in range(1, 7):
            square = min(queries, keys)
            top = sum(min(i, keys) for i in range(queries)) + square / 2
            bottom = sum(min(max(keys - queries + i, 0), keys) for i in range(queries)) + square / 2
            assert twice_the_scores(queries, keys, "") == 2 * queries * keys
            assert twice_the_scores(queries, keys, "top") == 2 * top
            assert twice_the_scores(queries, keys, "bottom") == 2 * bottom


def test_attention_backward() -> None:
    """Five products: 2·(3·16 + 2·16) for each score; q, k, v, out, dout read and three gradients written."""
    dims = [Q, Q, Q, Q, Q, [2, 4, 8], [], [], [], [], [], [], [], [], []]
    types = [*same(5), FP32, "", "", *["Scalar"] * 7]
    values = ["", "", "", "", "", "", "", "", "8", "8", "0.", "False", "", "", ""]
    found = figures("_scaled_dot_product_flash_attention_backward", dims, types, values)
    assert found[:2] == (5 * 2 * 8 * 64 * 16, 2 * 8 * 1024)
    forward = flash("False")[0]
    assert forward is not None
    assert found[0] == 2.5 * forward


def test_attention_with_wider_values() -> None:
    """Multi-latent attention: queries and keys of 24, values of 16."""
    q, v = [2, 4, 8, 24], Q
    dims = [q, q, v, [], [], [], [], [], []]
    values = ["", "", "", "", "True", "0.", "False", "False", ""]
    types = [*same(3), "", *["Scalar"] * 5]
    found = figures("_scaled_dot_product_cudnn_attention", dims, types, values)
    assert found[:2] == (2 * 8 * 64 * (24 + 16), 2 * (2 * 1536 + 2 * 1024))


def test_attention_with_the_heads_last() -> None:
    dims = [BSHD, BSHD, BSHD, *[[]] * 8]
    values = ["", "", "", "0.", "0.25", "True", "-1", "-1", "0.", "", "False"]
    types = same(3, scalars=8)
    assert figures("flash_attn::_flash_attn_forward", dims, types, values)[:2] == (8 * 64 * 32, 8192)
    values[6] = "4"  # a sliding window
    assert work("flash_attn::_flash_attn_forward", dims, types, values) is None


def test_xformers_masks_are_numbers() -> None:
    """_efficient_attention_forward: 0 none, 1 causal from the top left, 2 from the bottom right."""
    dims = [BSHD, BSHD, BSHD, *[[]] * 10]
    types = [*same(3), "", "", "", *["Scalar"] * 7]
    for mask, flops in (("0", 2 * 8 * 64 * 32), ("1", 8 * 64 * 32), ("2", 8 * 64 * 32), ("9", None)):
        found = work("_efficient_attention_forward", dims, types, _efficient(mask))
        assert (None if found is None else found.flops) == flops, mask


def test_packed_sequences() -> None:
    """Known for one sequence, and where all are as long as the longest."""
    name, q = "flash_attn::_flash_attn_varlen_forward", [16, 4, 16]
    types = [*same(3), "int", "int", *["Scalar"] * 9]

    def flops(ends: int, longest: int) -> int | None:
        dims = [q, q, q, [ends], [ends], *[[]] * 9]
        values = ["", "", "", "", "", str(longest), str(longest), "0.", "0.25", "True", "-1", "-1", "0.", ""]
        found = work(name, dims, types, values)
        return None if found is None else found.flops

    assert flops(2, 16) == 4 * 16 * 16 * 32
    assert flops(3, 8) == 2 * 4 * 8 * 8 * 32
    assert flops(3, 9) is None
    assert flops(1, 16) is None


def test_norms() -> None:
    """4 rows of 8: 5 operations for each element and 6 for each row."""
    dims, types = [[4, 8], [], [8], [8], []], [FP32, "ScalarList", FP32, FP32, "Scalar"]
    assert figures("native_layer_norm", dims, types) == (160 + 24, 4 * (32 + 8 + 8 + 32), "fp32", "norm")
    types[0] = types[2] = types[3] = BF16
    assert figures("native_layer_norm", dims, types) == (184, 2 * (32 + 8 + 8 + 32), "fp32", "norm")
    # Without weights the shape is a scalar list.
    plain = figures(
        "native_layer_norm", [[4, 8], [], [], [], []], [FP32, "ScalarList", "", "", ""], ["", "[8]"]
    )
    assert plain[:2] == (184, 4 * 64)
    rms = figures("_fused_rms_norm", [[4, 8], [], [8], []], [FP32, "ScalarList", FP32, "Scalar"])
    assert rms[:2] == (4 * 32 + 2 * 4, 4 * (32 + 8 + 32))
    dims, types = [[4, 8], [4, 8], [], [4, 1], [8], []], [FP32, FP32, "ScalarList", FP32, FP32, "ScalarList"]
    assert figures("_fused_rms_norm_backward", dims, types)[:2] == (320, 4 * (3 * 32 + 2 * 8))
    types[4] = ""
    assert figures("_fused_rms_norm_backward", dims, types)[:2] == (256, 4 * 3 * 32)
    # 2 samples of 4 channels of 3 in 2 groups: 4 pairs of statistics.
    dims = [[2, 4, 3], [4], [4], [], [], [], [], []]
    found = figures("native_group_norm", dims, same(3, FP32, 5), ["", "", "", "2", "4", "3", "2", "1e-05"])
    assert found[:2] == (5 * 24 + 6 * 4, 4 * (24 + 8 + 24))


def test_batch_norm() -> None:
    """Training reads and writes the running statistics; else one multiply-add is left."""
    dims, types = [[2, 4, 3], [4], [4], [4], [4], [], [], []], same(5, FP32, 3)
    trains = figures("native_batch_norm", dims, types, ["", "", "", "", "", "True", "0.1", "1e-05"])
    assert trains[:2] == (5 * 24 + 6 * 4, 4 * (24 + 16 + 24 + 8))
    infers = figures("native_batch_norm", dims, types, ["", "", "", "", "", "False", "0.1", "1e-05"])
    assert infers[:2] == (2 * 24, 4 * (24 + 16 + 24))
    dims, types = [[2, 4, 3], [2, 4, 3], [4], [4], [4], [4], [4], [], [], []], same(7, FP32, 3)
    assert figures("native_batch_norm_backward", dims, types)[:2] == (9 * 24, 4 * (3 * 24 + 3 * 4))


def test_softmax_and_cross_entropy() -> None:
    dims, types = [[4, 8], [], []], [BF16, "Scalar", "Scalar"]
    assert figures("_softmax", dims, types, ["", "-1", "False"]) == (160, 2 * 64, "fp32", "softmax")
    assert figures("_log_softmax", dims, types, ["", "-1", "True"])[:2] == (160, 2 * 32 + 4 * 32)
    dims, types = [[4, 8], [4, 8], [], []], [FP32, FP32, "Scalar", "Scalar"]
    assert figures("_softmax_backward_data", dims, types, ["", "", "-1", "15"])[:2] == (128, 4 * 64 + 2 * 32)
    loss = figures("nll_loss_forward", [[4, 8], [4], [], [], []], [FP32, LONG, "", "Scalar", "Scalar"])
    assert loss == (4, 4 * 4 + 8 * 4, "fp32", "loss")


def test_embeddings() -> None:
    """5 indices into a table of 3 rows read each row at least once."""
    types = [BF16, LONG, "Scalar", "Scalar", "Scalar"]
    assert figures("embedding", [[100, 8], [5], [], [], []], types)[:2] == (0, 2 * 40 + 40 + 2 * 40)
    assert figures("embedding", [[3, 8], [5], [], [], []], types)[:2] == (0, 2 * 24 + 40 + 2 * 40)
    found = figures(
        "embedding_dense_backward", [[5, 8], [5], [], [], []], types, ["", "", "100", "-1", "False"]
    )
    assert found[:2] == (40, 2 * 40 + 40 + 2 * 800)


def test_convolution() -> None:
    """3 -> 8 channels, kernel 3x3, padding 1, stride 2 on 7x7: outputs of 4x4."""
    values = ["", "", "[1, 1]", "[2, 2]", "[1, 1]", "1", "False", "False", "True"]
    dims = [[2, 3, 7, 7], [8, 3, 3, 3], *[[]] * 7]
    found = figures("cudnn_convolution", dims, same(2, "c10::Half", 7), values)
    assert found == (2 * 256 * 27, 2 * (294 + 216 + 256), "fp16", "convolution")
    values = ["", "", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1", "[True, True, False]"]
    dims = [[2, 8, 4, 4], [2, 3, 7, 7], [8, 3, 3, 3], *[[]] * 8]
    found = figures("convolution_backward", dims, same(3, "c10::Half", 8), values)
    # Reads dy, w and x; writes the gradients of x and w.
    assert found[:2] == (2 * 2 * 256 * 27, 2 * (256 + 216 + 294 + 294 + 216))
    values[10] = "[False, True, False]"
    found = figures("convolution_backward", dims, same(3, "c10::Half", 8), values)
    assert found[:2] == (2 * 256 * 27, 2 * (256 + 294 + 216))
    # Of groups: 4 channels in 4 groups see one channel each.
    values = ["", "", "[0]", "[1]", "[1]", "4", "False", "False", "True"]
    found = figures("cudnn_convolution", [[1, 4, 5], [4, 1, 3], *[[]] * 7], same(2, FP32, 7), values)
    assert found[:2] == (2 * 12 * 3, 4 * (20 + 12 + 12))
    # Lists may stand in parentheses, and inputs after the weights have no entry.
    values = ["", "", "", "(1,1)", "(2, 2)", "(2,2)", "False", "(0,0)", "1"]
    found = figures("convolution", [[1, 4, 5, 5], [6, 4, 3, 3]], ["Float", "Float"], values)
    assert found == (2 * 6 * 25 * 36, 4 * (100 + 216 + 150), "fp32", "convolution")


def test_transposed_convolution() -> None:
    """6 -> 8 channels in 2 groups, kernel 3x3, padding 1, stride 2, 1 more at the end: outputs of
    (4 - 1) x 2 - 2 + 2 + 1 + 1 = 8x8. Each of 2 x 6 x 16 inputs goes into 4 channels of 9 places."""
    dims = [[2, 6, 4, 4], [6, 4, 3, 3], *[[]] * 8]
    settings = "[1, 1]", "[1, 1]", "[2, 2]", "[1, 1]", "2", "False", "False"
    of_miopen = "miopen_convolution_transpose", dims, same(2, "c10::Half", 8), ["", "", "", *settings]
    expected = 2 * 192 * 36, 2 * (192 + 216 + 2 * 8 * 64), "fp16", "convolution"
    assert figures(*of_miopen) == expected
    of_cudnn = "cudnn_convolution_transpose", dims, same(2, "c10::Half", 8), ["", "", *settings, "True"]
    assert figures(*of_cudnn) == expected
    values = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "True", "[1, 1]", "2"]
    plain = ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    for name in ("convolution", "_convolution", "convolution_overrideable"):
        assert figures(name, dims, same(2, "c10::Half", 8), values) == expected
        found = figures(name, [[2, 3, 7, 7], [8, 3, 3, 3], *[[]] * 7], same(2, "c10::Half", 7), plain)
        assert found[0] == 2 * 256 * 27
    unknown = [*values[:8], ""]
    assert work("_convolution", dims, same(2, "c10::Half", 8), unknown) is None
    depthwise = ["", "", "", "[1]", "[1]", "[1]", "4", "False", "False"]
    found = figures(
        "miopen_depthwise_convolution", [[1, 4, 5], [4, 1, 3], *[[]] * 7], same(2, FP32, 7), depthwise
    )
    assert found[:2] == (2 * 20 * 3, 4 * (20 + 12 + 20))


def test_element_wise() -> None:
    assert figures("mul", [[4, 8], [8]], same(2, FP32))[:2] == (32, 4 * (32 + 8 + 32))
    assert figures("mul_", [[4, 8], []], [FP32, "double"])[:2] == (32, 4 * 64)
    # FP32 and BF16 together give FP32; a number does not widen.
    assert figures("add", [[4, 8], [4, 8], []], [FP32, BF16, "Scalar"])[:2] == (32, 4 * 32 + 2 * 32 + 4 * 32)
    assert figures("add", [[4, 8], [], []], [BF16, "double", "Scalar"])[:2] == (32, 2 * 64)
    assert figures("silu", [[4, 8]], [BF16])[:2] == (128, 128)
    assert figures("eq", [[4, 8], []], [FP32, "Scalar"])[:2] == (32, 128 + 32)
    assert figures("copy_", [[4, 8], [4, 8], []], [FP32, BF16, "Scalar"]) == (0, 192, "unknown", "copy")
    assert (
        figures("copy_", [[4, 8], [4, 8], []], [FP32, BF16, "Scalar"], None, [[8, 1], [0, 1], []])[1] == 144
    )
    assert figures("zero_", [[4, 8]], [BF16])[:2] == (0, 64)
    assert figures("cat", [[[2, 3], [4, 3]], []], ["TensorList", "Scalar"], None, None, "short")[:2] == (
        0,
        72,
    )
    assert figures("cat", [[[2, 3], [4, 3]], []], ["TensorList", "Scalar"])[:2] == (0, None)
    assert work("add", [[4, 8], [3, 8]], same(2)) is None


def test_reductions() -> None:
    types = [FP32, "ScalarList", "Scalar", ""]
    assert figures("sum", [[4, 8], [], [], []], types, ["", "[-1]", "True", ""])[:2] == (32, 4 * (32 + 4))
    assert figures("sum", [[4, 8], [], [], []], types, ["", "[0, 1]", "False", ""])[:2] == (32, 4 * 33)
    assert figures("mean", [[4, 8], []], [FP32, ""], ["", ""])[:2] == (32, 4 * 33)
    assert figures("sum", [[4, 8], [], [], []], types)[:2] == (32, 4 * 32)


def test_lists() -> None:
    lists = [[[4], [2]], [[4], [2]], []]
    types = ["TensorList", "TensorList", "Scalar"]
    assert figures("_foreach_add_", lists, types, None, None, "float")[:2] == (6, 4 * 18)
    assert figures("_foreach_mul_", [[[4], [2]], []], ["TensorList", "Scalar"], None, None, "float")[:2] == (
        6,
        48,
    )
    assert figures("_foreach_norm", [[[4], [2]], []], ["TensorList", "Scalar"], None, None, "float")[:2] == (
        12,
        24,
    )
    assert work("_foreach_add_", [[[4], [2]], [[4]], []], types) is None
    assert work("_fused_adamw_", [[[4], [-2]], [[4], [2]]], types) is None
    sgd = figures("_fused_sgd_", [[[4]], [[4]], [[4]]], ["TensorList"] * 3, None, None, "float")
    assert sgd == (16, 4 * 20, "fp32", "optimizer")


@given(
    name=st.sampled_from(sorted(FORMULAS)),
    shapes=st.lists(st.lists(st.integers(0, 64), max_size=5), max_size=10),
    values=st.lists(st.sampled_from(["", "-5", "1", "True", "False", "[1, 1]"]), max_size=12),
)
def test_no_inputs_make_a_formula_fail(name: str, shapes: list[list[int]], values: list[str]) -> None:
    dims, dtypes = json.dumps(shapes), json.dumps(["c10::BFloat16"] * len(shapes))
    found = operator_work(parse_inputs(name, dims, dtypes, json.dumps(values), "", ""))
    if found is not None:
        assert (found.flops or 0) >= 0
        assert (found.bytes or 0) >= 0


def test_fused_experts() -> None:
    """4 tokens of 16 to 2 of 8 experts, gated 32 -> 2 x 24: 2 x 8 (up and gate 48 x 16, down 24 x 16).
    Even routing reaches 8 (1 - (3/4)^4) = 5.46875 of the experts, each 2 (48 x 16 + 16 x 24) bytes."""
    dims = [[4, 16], [8, 48, 16], [8, 16, 24], [4, 2], [4, 2]]
    types = [*same(3), FP32, "int"]
    flops, moved = 2 * 8 * 16 * (48 + 24), round(5.46875 * 2304) + 2 * 2 * 64
    for name in ("vllm::outplace_fused_experts", "vllm::rocm_aiter_fused_moe", "aiter::fused_moe_"):
        assert figures(name, dims, types) == (flops, moved, "bf16", "grouped_gemm")
    in_8_bits = figures("sglang::inplace_fused_experts", dims, [BF16, FP8, FP8, FP32, "int"])
    assert in_8_bits == (flops, round(5.46875 * 1152) + 256, "fp8", "grouped_gemm")
    # A map of experts that are elsewhere; weights of 4 bits, two to a byte; other inputs.
    assert work("vllm::rocm_aiter_fused_moe", [*dims, [16]], [*types, "int"]) is None
    packed = [[4, 16], [8, 48, 8], [8, 16, 12], *dims[3:]]
    assert work("vllm::outplace_fused_experts", packed, [BF16, INT8, INT8, FP32, "int"]) is None
    assert work("vllm::outplace_fused_experts", [[4, 16], [4, 8]], same(2)) is None


def test_products_of_serving_libraries() -> None:
    """3 x 16 by 16 x 5 in 8 bits, to 16: weights are [5, 16] or [16, 5]."""
    of_8_bits = (2 * 3 * 16 * 5, 48 + 80 + 2 * 15, "fp8", "gemm")
    assert figures("aiter::gemm_a8w8_blockscale", [[3, 16], [5, 16]], same(2, FP8)) == of_8_bits
    assert figures("sgl_kernel::fp8_scaled_mm", [[3, 16], [16, 5]], same(2, FP8)) == of_8_bits
    out_first = [BF16, FP8, FP8]
    assert figures("_C::cutlass_scaled_mm", [[3, 5], [3, 16], [16, 5]], out_first) == of_8_bits
    assert work("aiter::gemm_a8w8", [[3, 16], [5, 8]], same(2, INT8)) is None
    dims = [[3, 16], [5, 16], [], []]
    assert figures("aiter::gemm_a16w16", dims, [*same(2), "", "Scalar"])[:2] == (480, 2 * (48 + 80 + 15))


def test_norms_and_gates_of_serving_libraries() -> None:
    """2 rows of 8 in 16 bits: 32 bytes a tensor, weights 16."""
    row, weight = [2, 8], [8]
    assert figures("_C::rms_norm", [row, row, weight], same(3))[:2] == (4 * 16, 2 * 32 + 16)
    assert figures("aiter::add_rmsnorm", [row] * 4 + [weight], same(5))[:2] == (5 * 16, 4 * 32 + 16)
    assert figures("_C::fused_add_rms_norm", [row, row, weight], same(3))[:2] == (80, 4 * 32 + 16)
    assert figures("sgl_kernel::silu_and_mul", [row, [2, 16]], same(2))[:2] == (5 * 16, 32 + 64)


def test_attention_of_aiter_and_flash_attention_3() -> None:
    """As flash-attn's: 2 x 8 x 64 scores of 32, half with a mask; five products in the backward."""
    dims, types = [BSHD, BSHD, BSHD, *[[]] * 8], same(3, scalars=8)
    values = ["", "", "", "0.", "0.25", "False", "-1", "-1", "True", "False", "2"]
    assert figures("aiter::fmha_v3_fwd", dims, types, values)[:2] == (2 * 8 * 64 * 32, 8192)
    dims, types = [BSHD] * 5 + [[2, 4, 8]] + [[]] * 5, [*same(5), FP32, *["Scalar"] * 5]
    values = [*[""] * 6, "0.", "0.25", "True", "-1", "-1"]
    assert figures("aiter::mha_bwd", dims, types, values)[0] == 8 * 64 * 80
    dims, types = [BSHD, BSHD, BSHD, *[[]] * 24], [*same(3), *[""] * 20, *["Scalar"] * 4]
    values = [*[""] * 23, "0.25", "True", "-1", "-1"]
    assert figures("flash_attn_3::fwd", dims, types, values)[0] == 8 * 64 * 32
    types[3], dims[3] = BF16, BSHD  # keys that join a cache
    assert work("flash_attn_3::fwd", dims, types, values) is None
