"""FLOPs by the model's shape: attention marks the layers."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.work.operator_work import KernelWork
from tests.analyzers.model_plan import (
    ADD,
    FLASH,
    FLASH_BACKWARD,
    GEMM,
    SPLIT_K,
    ModelPlan,
    facts,
    flops,
    named,
)
from tests.analyzers.test_work_from_model import CORE, CORE_BACKWARD, FC1, FC2, LOGITS, PROJ, QKV

BACKWARD = ("flash_bwd_dot_do_o_kernel", FLASH_BACKWARD)
FORWARD_LAYER = [QKV, CORE, PROJ, FC1, FC2]
BACKWARD_LAYER = [FC2, FC2, FC1, FC1, PROJ, PROJ, CORE_BACKWARD // 2, CORE_BACKWARD // 2, QKV, QKV]


def forward(plan: ModelPlan, layers: int) -> None:
    for _ in range(layers):
        plan.run(GEMM, FLASH, GEMM, ADD, GEMM, GEMM)


def backward(plan: ModelPlan, layers: int) -> None:
    for _ in range(layers):
        plan.run(*[GEMM] * 4, ADD, *[GEMM] * 2, *BACKWARD, *[GEMM] * 2)


def known(work: KernelWork) -> list[int]:
    """FLOPs of the kernels whose work is known."""
    return [f for f in flops(work) if f >= 0]


def test_a_step_without_ranges(tmp_path: Path) -> None:
    """Two layers, the output layer between forward and backward, two micro-batches."""
    plan = ModelPlan()
    for _ in range(2):
        forward(plan, 2)
        plan.run(GEMM, GEMM, GEMM)
        backward(plan, 2)
    found = plan.work(tmp_path)
    assert found.notes == ()
    assert known(found) == ((FORWARD_LAYER * 2 + [LOGITS] * 3 + BACKWARD_LAYER * 2) * 2)
    assert named(found).count("output_layer backward") == 4


def test_forward_alone_with_three_projections(tmp_path: Path) -> None:
    """With split-K's sum, which is no GEMM of its own."""
    q, k = PROJ, PROJ // 2
    plan = ModelPlan()
    for _ in range(3):
        plan.run(GEMM, GEMM, GEMM, FLASH, GEMM, GEMM, SPLIT_K, GEMM, ns=[2000, *[1000] * 7])
    found = plan.work(tmp_path)
    assert flops(found) == [q, k, k, CORE, PROJ, FC1 // 2, FC1 // 2, FC2] * 3


def test_layers_that_are_computed_again(tmp_path: Path) -> None:
    """Each forward runs right before its backward; in the second step attention alone does."""
    plan, selective = ModelPlan(), ModelPlan()
    forward(plan, 3)
    for _ in range(3):
        forward(plan, 1)
        backward(plan, 1)
    found = plan.work(tmp_path)
    assert known(found) == FORWARD_LAYER * 3 + (FORWARD_LAYER + BACKWARD_LAYER) * 3

    for one in (True, False):
        if one:
            forward(selective, 2)
        else:
            for _ in range(2):
                selective.run(*[GEMM] * 6, FLASH, *BACKWARD, *[GEMM] * 2)
    again = BACKWARD_LAYER[:6] + [CORE] + BACKWARD_LAYER[6:]
    found = selective.work(tmp_path)
    assert known(found) == FORWARD_LAYER * 2 + again * 2


def test_a_layer_with_other_gemms_is_left_alone(tmp_path: Path) -> None:
    """The third of four runs one GEMM more: what lies between its attention and the next is unknown."""
    plan = ModelPlan()
    forward(plan, 2)
    plan.run(GEMM, FLASH, GEMM, GEMM, GEMM, GEMM)
    forward(plan, 1)
    found = plan.work(tmp_path)
    assert known(found) == FORWARD_LAYER * 2 + [QKV, CORE] + [CORE, PROJ, FC1, FC2]
    assert "1 of 5 stretches" in found.notes[0]


def test_a_gate_needs_one_gemm_more(tmp_path: Path) -> None:
    plan = ModelPlan()
    for _ in range(3):
        plan.run(GEMM, FLASH, GEMM, GEMM)
    found = plan.work(tmp_path, facts(ffn_hidden_size=16, gated_mlp=True))
    assert set(flops(found)) == {-1}
    assert "none of 4 stretches" in found.reason


def test_beside_experts_the_projections_are_known(tmp_path: Path) -> None:
    """A router and three experts' GEMMs in each layer; the first layer of each micro-batch says that queries,
    keys and values are one GEMM."""
    plan = ModelPlan()
    for _ in range(2):
        for _ in range(2):
            plan.run(GEMM, FLASH, GEMM, *[GEMM] * 4)
        for _ in range(2):
            plan.run(*[GEMM] * 8, GEMM, GEMM, *BACKWARD, GEMM, GEMM)
    found = plan.work(tmp_path, facts(experts=4, experts_per_token=2))
    step = [QKV, CORE, PROJ] * 2 + [PROJ, PROJ, CORE_BACKWARD // 2, CORE_BACKWARD // 2, QKV, QKV] * 2
    assert known(found) == step * 2


def test_frozen_layers_are_left_alone(tmp_path: Path) -> None:
    """Backward has the gradients of the inputs alone, half as many GEMMs: no such model is known."""
    plan = ModelPlan()
    forward(plan, 3)
    for _ in range(3):
        plan.run(GEMM, GEMM, GEMM, *BACKWARD, GEMM)
    assert known(plan.work(tmp_path)) == []


def test_rates_that_no_model_has(tmp_path: Path) -> None:
    """The second of four GEMMs takes twenty times as long as the larger ones: it is none of this model."""
    plan = ModelPlan()
    for _ in range(3):
        plan.run(GEMM, FLASH, GEMM, GEMM, GEMM, ns=[1_000, 1_000, 20_000, 1_000, 1_000])
    assert set(flops(plan.work(tmp_path))) == {-1}


CUDNN = "cudnn_generated_fort_native_sdpa_sm90_flash_{}_wgmma_f16_knob_7_64x128x128_4x1x1_kernel0_0"
FLASH_3 = "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttn{}Sm90<int>>>(T1::Params)"


@pytest.mark.parametrize(
    ("ahead", "back"),
    [
        ([CUDNN.format("fprop")], ["cudnn::fusion::compute_dot_do_o_specialized", CUDNN.format("bprop")]),
        ([FLASH_3.format("Fwd")], [FLASH_3.format("Bwd"), "cudnn::fusion::lean_reduction_kernel"]),
    ],
    ids=["cuDNN", "flash-attn 3"],
)
def test_attention_whose_function_does_not_say_its_direction(
    tmp_path: Path, ahead: list[str], back: list[str]
) -> None:
    """Template arguments say it, and a helper is of the direction of what runs beside it."""
    plan = ModelPlan()
    for _ in range(2):
        plan.run(GEMM, *ahead, GEMM, GEMM, GEMM)
    for _ in range(2):
        plan.run(*[GEMM] * 6, *back, *[GEMM] * 2)
    assert known(plan.work(tmp_path)) == FORWARD_LAYER * 2 + BACKWARD_LAYER * 2


def test_masked_softmax_is_no_fused_attention(tmp_path: Path) -> None:
    """Between two of them lie 6 GEMMs, as between two fused attentions with three projections."""
    plan = ModelPlan()
    for _ in range(4):
        plan.run(GEMM, GEMM, "scaled_upper_triang_masked_softmax_warp_forward", *[GEMM] * 4)
    assert known(plan.work(tmp_path)) == []
