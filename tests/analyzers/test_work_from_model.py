"""FLOPs of GEMMs and attention by the model's shape, where ranges name the parts and where none does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.work.operator_work import DTYPES, SOURCES, KernelWork
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.model_plan import (
    ADD,
    FACTS,
    FLASH,
    FLASH_BACKWARD,
    GEMM,
    SMALL_GEMM,
    SPLIT_K,
    TOKENS,
    ModelPlan,
    facts,
    flops,
    named,
)

QKV = 2 * TOKENS * 8 * (16 + 2 * 8)
PROJ = 2 * TOKENS * 16 * 8
FC1 = FC2 = 2 * TOKENS * 8 * 24
LOGITS = 2 * TOKENS * 8 * 32
CORE = 3 * 4 * 10 * 10 * (4 + 4)
"""Causal: 3 sequences, 4 heads, half of 2 x 10 x 10 x (4 + 4)."""
CORE_BACKWARD = 3 * 4 * 10 * 10 * (3 * 4 + 2 * 4)

LAYER = [QKV, CORE, PROJ, FC1, FC2]


def two_layers(qkv: int = 1, mlp: int = 2, attention: str = FLASH, gemm: str = GEMM) -> ModelPlan:
    """Forward; in so many GEMMs."""
    plan = ModelPlan()
    for _ in range(2):
        plan.run(*[gemm] * qkv, attention, gemm, *[gemm] * mlp)
    return plan


def test_two_layers_forward(tmp_path: Path) -> None:
    plan = ModelPlan()
    for _ in range(2):
        plan.run(ADD, GEMM, ADD, FLASH, GEMM, GEMM, ADD, GEMM)
    found = plan.work(tmp_path)
    assert flops(found) == [-1, QKV, -1, CORE, PROJ, FC1, -1, FC2] * 2
    assert named(found)[:8] == [
        *("", "linear_qkv forward", "", "causal attention forward", "linear_proj forward"),
        *("linear_fc1 forward", "", "linear_fc2 forward"),
    ]
    # BF16: the inputs of 30 x 8 and 8 x 32 are read, 30 x 32 written.
    assert found.bytes[1] == 2 * (30 * 8 + 8 * 32 + 30 * 32)
    # Queries and output of 30 x 16, keys and values of 30 x 8.
    assert found.bytes[3] == 2 * (2 * 30 * 16 + 2 * 30 * 8)
    assert [SOURCES[i] for i in found.source.tolist()[:8]] == [
        *("none", "model", "none", "model", "model", "model", "none", "model")
    ]
    assert found.operators[found.operator[1]].shapes == "[[30, 8], [8, 32]]"
    assert len({*found.call.tolist()} - {-1}) == 10
    assert (found.reason, found.notes) == ("", ())


def test_grouped_queries_under_tensor_parallelism(tmp_path: Path) -> None:
    """TP 2: 2 of 4 heads and 1 of 2 groups a rank; the sequence is whole in every GEMM."""
    found = two_layers().work(tmp_path, facts(tp=2, sequence_parallel=True))
    layer = [2 * 30 * 8 * (8 + 2 * 4), CORE // 2, 2 * 30 * 8 * 8, FC1 // 2, FC2 // 2]
    assert flops(found) == layer * 2


def test_more_ranks_than_groups_leave_their_projection_unknown(tmp_path: Path) -> None:
    found = two_layers().work(tmp_path, facts(tp=4))
    assert flops(found) == [-1, CORE // 4, PROJ // 4, FC1 // 4, FC2 // 4] * 2
    # Three ranks cannot share four heads.
    assert set(flops(two_layers().work(tmp_path, facts(tp=3, ffn_hidden_size=24)))) == {-1}


def test_three_projections_of_unequal_width(tmp_path: Path) -> None:
    """Queries 8 x 16, keys and values 8 x 8. Where the first is not the longest the order is another."""
    q, k = 2 * TOKENS * 8 * 16, 2 * TOKENS * 8 * 8
    plan, other = ModelPlan(), ModelPlan()
    for one, lengths in ((plan, [2000, 1000, 1000]), (other, [1000, 1000, 2000])):
        for _ in range(2):
            one.run(GEMM, GEMM, GEMM, FLASH, *[GEMM] * 3, ns=[*lengths, *[1000] * 4])
    rest = [CORE, PROJ, FC1, FC2]
    assert flops(plan.work(tmp_path)) == [q, k, k, *rest] * 2
    assert flops(other.work(tmp_path)) == [-1, -1, -1, *rest] * 2


def test_latent_attention_has_a_core_and_a_projection(tmp_path: Path) -> None:
    """Heads of 3 + 1 for queries and keys, 2 for values; down and up projections are not told apart."""
    latent = facts(kv_lora_rank=4, qk_head_dim=3, qk_rope_head_dim=1, v_head_dim=2)
    found = two_layers(qkv=3).work(tmp_path, latent)
    assert flops(found) == [-1, -1, -1, 3 * 4 * 10 * 10 * (4 + 2), 2 * 30 * (4 * 2) * 8, FC1, FC2] * 2


def test_context_parallel_ranks_have_equal_shares(tmp_path: Path) -> None:
    """CP 2: half of the tokens, and half of the causal scores in two kernels."""
    plan = ModelPlan()
    for _ in range(2):
        plan.run(GEMM, FLASH, FLASH, GEMM, GEMM, GEMM)
    layer = [QKV // 2, CORE // 4, CORE // 4, PROJ // 2, FC1 // 2, FC2 // 2]
    assert flops(plan.work(tmp_path, facts(cp=2))) == layer * 2


@pytest.mark.parametrize(
    ("known", "missing"),
    [
        (JobFacts(), "model, mbs, seq not given"),
        (JobFacts(model=FACTS.model, sequence_length=10), "mbs not given"),
        (facts(micro_batch_sequences=10**15), "beyond any device"),
        (facts(micro_batch_sequences=-1), "below 1"),
    ],
)
def test_without_the_models_shape(tmp_path: Path, known: JobFacts, missing: str) -> None:
    found = two_layers().work(tmp_path, known)
    assert np.isnan(found.flops).all()
    assert missing in found.reason
    assert "--model-config" in found.reason


def test_more_flops_than_the_model_has(tmp_path: Path) -> None:
    """A step of one micro-batch that shows two layers' forward three times over."""
    plan = ModelPlan()
    with plan.range("perfdoc.step 0"):
        for _ in range(6):
            plan.run(GEMM, FLASH, GEMM, GEMM, GEMM)
    # Of 2 layers' forward and backward and the output layer, two thirds of which are missing.
    most = 3 * (2 * sum(LAYER) + LOGITS)
    assert 6 * sum(LAYER) > 0.6 * most
    found = plan.work(tmp_path, facts(micro_batches=1, recompute="none", vocabulary=32))
    assert flops(found)[:5] == LAYER
    fewer = plan.work(tmp_path, facts(micro_batches=1, recompute="none", layers=1, vocabulary=8))
    assert np.isnan(fewer.flops).all()
    assert "times the FLOPs of the steps" in fewer.reason


@pytest.mark.parametrize(
    ("name", "job", "expected"),
    [
        ("nvjet_tst_128x128", "fp8", "bf16"),
        ("nvjet_qqtst_128x128", "bf16", "fp8"),
        ("cutlass_gemm_kernel", "fp8", "fp8"),
        ("cutlass_gemm_kernel", "fp16", "fp16"),
        ("cutlass_gemm_kernel", None, "unknown"),
        ("ampere_bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nt", "fp32", "bf16"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "fp32", "fp16"),
        ("cutlass_80_tensorop_s1688gemm_128x128_16x5_tn_align4", "bf16", "tf32"),
    ],
)
def test_the_dtype_is_the_kernels_else_the_jobs(
    tmp_path: Path, name: str, job: str | None, expected: str
) -> None:
    found = two_layers(gemm=name).work(tmp_path, facts(dtype=job))
    gemms = np.array([n.startswith("linear") for n in named(found)])
    assert {DTYPES[i] for i in found.dtype[gemms].tolist()} == {expected}
    assert np.isnan(found.bytes[gemms]).all() == (expected == "unknown")


@pytest.mark.parametrize(
    ("blocks", "known"), [((96, 24, 24), True), ((96, 8, 24), False)], ids=["projections", "adapter"]
)
def test_a_fused_projection_and_its_adapter_are_no_keys_and_values(
    blocks: tuple[int, int, int], known: bool, tmp_path: Path
) -> None:
    """Forward only, grouped queries: keys and values are of one shape, 30 x 8 by 8 x 8, and so of as many
    thread blocks; an adapter's two GEMMs are not."""
    plan = ModelPlan()
    for _ in range(4):
        plan.run(GEMM, SMALL_GEMM, SMALL_GEMM, ns=[3000, 700, 700], blocks=blocks)
        plan.run(FLASH, GEMM, GEMM, GEMM)
    q, k = 2 * TOKENS * 8 * 16, 2 * TOKENS * 8 * 8
    three = [q, k, k] if known else [-1] * 3
    assert flops(plan.work(tmp_path))[:5] == [*three, CORE, PROJ]


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
