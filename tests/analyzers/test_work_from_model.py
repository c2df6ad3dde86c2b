"""FLOPs of GEMMs and attention by the model's shape, in captures without shapes of operators."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.work.operator_work import DTYPES, SOURCES
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.model_plan import (
    ADD,
    FACTS,
    FLASH,
    FLASH_BACKWARD,
    GEMM,
    SMALL_GEMM,
    SOFTMAX,
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

ATTENTION = "perfdoc.forward layer=0 module=self_attention"
ATTENTION_BACKWARD = "perfdoc.backward layer=0 module=self_attention"
MLP = "perfdoc.forward layer=0 module=mlp"
MLP_BACKWARD = "perfdoc.backward layer=0 module=mlp"


def test_a_layer_forward(tmp_path: Path) -> None:
    plan = ModelPlan()
    with plan.range(ATTENTION):
        plan.run(ADD, GEMM, ADD, FLASH, GEMM)
    with plan.range(MLP):
        plan.run(GEMM, ADD, GEMM)
    found = plan.work(tmp_path)
    assert flops(found) == [-1, QKV, -1, CORE, PROJ, FC1, -1, FC2]
    assert named(found) == [
        *("", "linear_qkv forward", "", "causal attention forward", "linear_proj forward"),
        *("linear_fc1 forward", "", "linear_fc2 forward"),
    ]
    # BF16: the inputs of 30 x 8 and 8 x 32 are read, 30 x 32 written.
    assert found.bytes[1] == 2 * (30 * 8 + 8 * 32 + 30 * 32)
    # Queries and output of 30 x 16, keys and values of 30 x 8.
    assert found.bytes[3] == 2 * (2 * 30 * 16 + 2 * 30 * 8)
    assert [SOURCES[i] for i in found.source.tolist()] == [
        *("none", "model", "none", "model", "model", "model", "none", "model")
    ]
    assert found.operators[found.operator[1]].shapes == "[[30, 8], [8, 32]]"
    assert len({*found.call.tolist()} - {-1}) == 5
    assert (found.reason, found.notes) == ("", ())


def test_a_layer_backward_on_autograds_thread(tmp_path: Path) -> None:
    """Every GEMM twice, the last layer first; two kernels of attention share its five products."""
    plan = ModelPlan()
    with plan.range("perfdoc.backward"):
        plan.on_autograd = True
        with plan.range(MLP_BACKWARD):
            plan.run(GEMM, GEMM, ADD, GEMM, GEMM)
        with plan.range(ATTENTION_BACKWARD):
            plan.run(
                GEMM,
                GEMM,
                "flash_bwd_dot_do_o_kernel",
                FLASH_BACKWARD,
                GEMM,
                GEMM,
                ns=[1000] * 2 + [250, 750] + [1000] * 2,
            )
        plan.on_autograd = False
    found = plan.work(tmp_path)
    assert flops(found) == [
        *(FC2, FC2, -1, FC1, FC1, PROJ, PROJ),
        *(CORE_BACKWARD // 4, CORE_BACKWARD * 3 // 4, QKV, QKV),
    ]
    assert found.call[7] == found.call[8]
    assert found.call[5] != found.call[6]


def test_a_pass_with_another_number_of_gemms_is_left_alone(tmp_path: Path) -> None:
    """An adapter adds two GEMMs to the second of three feed-forward networks."""
    plan = ModelPlan()
    for gemms in (2, 4, 2):
        with plan.range(ATTENTION):
            plan.run(GEMM, FLASH, GEMM)
        with plan.range(MLP):
            plan.run(*[GEMM] * gemms)
    found = plan.work(tmp_path)
    one = [QKV, CORE, PROJ]
    assert flops(found) == [*one, FC1, FC2, *one, -1, -1, -1, -1, *one, FC1, FC2]
    assert "1 of 6 passes" in found.notes[0]


@pytest.mark.parametrize(
    ("gemms", "expected"), [(2, [2 * FC1, FC2]), (3, [FC1, FC1, FC2])], ids=["fused", "apart"]
)
def test_gate_and_up(tmp_path: Path, gemms: int, expected: list[int]) -> None:
    plan = ModelPlan()
    with plan.range(MLP):
        plan.run(*[GEMM] * gemms)
    with plan.range(MLP_BACKWARD):
        plan.run(*[GEMM] * 2 * gemms)
    found = plan.work(tmp_path, facts(gated_mlp=True))
    assert flops(found) == expected + [f for f in reversed(expected) for _ in range(2)]


def test_grouped_queries_under_tensor_parallelism(tmp_path: Path) -> None:
    """TP 2: 2 of 4 heads and 1 of 2 groups a rank; the sequence is whole in every GEMM."""
    plan = ModelPlan()
    with plan.range(ATTENTION):
        plan.run(GEMM, FLASH, GEMM)
    with plan.range(MLP):
        plan.run(GEMM, GEMM)
    found = plan.work(tmp_path, facts(tp=2, sequence_parallel=True))
    assert flops(found) == [2 * 30 * 8 * (8 + 2 * 4), CORE // 2, 2 * 30 * 8 * 8, FC1 // 2, FC2 // 2]


def test_more_ranks_than_groups_leave_their_projection_unknown(tmp_path: Path) -> None:
    plan = ModelPlan()
    with plan.range(ATTENTION):
        plan.run(GEMM, FLASH, GEMM)
    assert flops(plan.work(tmp_path, facts(tp=4))) == [-1, CORE // 4, PROJ // 4]
    # Three ranks cannot share four heads.
    assert flops(plan.work(tmp_path, facts(tp=3, ffn_hidden_size=24))) == [-1, -1, -1]


def test_three_projections_of_unequal_width(tmp_path: Path) -> None:
    """Queries 8 x 16, keys and values 8 x 8. Where the first is not the longest the order is another."""
    q, k = 2 * TOKENS * 8 * 16, 2 * TOKENS * 8 * 8
    plan, other = ModelPlan(), ModelPlan()
    for one, lengths in ((plan, [2000, 1000, 1000]), (other, [1000, 1000, 2000])):
        with one.range(ATTENTION):
            one.run(GEMM, GEMM, GEMM, ns=lengths)
            one.run(FLASH, GEMM)
    assert flops(plan.work(tmp_path)) == [q, k, k, CORE, PROJ]
    assert flops(other.work(tmp_path)) == [-1, -1, -1, CORE, PROJ]


def test_attention_that_is_not_fused(tmp_path: Path) -> None:
    """Two batched GEMMs around a softmax, each of all scores: 12 x 10 x 10 x 4."""
    plan = ModelPlan()
    with plan.range(ATTENTION):
        plan.run(GEMM, GEMM, SOFTMAX, GEMM, GEMM)
    with plan.range(ATTENTION_BACKWARD):
        plan.run(*[GEMM] * 4, "softmax_warp_backward", *[GEMM] * 4)
    core = 2 * 12 * 10 * 10 * 4
    forward = [QKV, core, -1, core, PROJ]
    back = [PROJ, PROJ, core, core, -1, core, core, QKV, QKV]
    assert flops(plan.work(tmp_path)) == forward + back


def test_four_gemms_that_may_be_either(tmp_path: Path) -> None:
    """Without a kernel of attention or a softmax: three projections, or attention's own two."""
    plan = ModelPlan()
    with plan.range(ATTENTION):
        plan.run(*[GEMM] * 4)
    found = plan.work(tmp_path)
    assert flops(found) == [-1] * 4
    assert "none of 1 passes" in found.reason


def test_recomputation(tmp_path: Path) -> None:
    """A layer's forward again inside its backward, and attention alone again."""
    plan = ModelPlan()
    with plan.range("perfdoc.backward layer=0"):
        with plan.range("perfdoc.forward layer=0 module=mlp"):
            plan.run(GEMM, GEMM)
        with plan.range(MLP_BACKWARD):
            plan.run(*[GEMM] * 4)
        with plan.range(ATTENTION_BACKWARD):
            plan.run(GEMM, GEMM, FLASH, FLASH_BACKWARD, GEMM, GEMM)
    found = plan.work(tmp_path)
    assert flops(found) == [
        *(FC1, FC2, FC2, FC2, FC1, FC1),
        *(PROJ, PROJ, CORE, CORE_BACKWARD, QKV, QKV),
    ]
    assert [named(found)[i] for i in (0, 8)] == ["linear_fc1 recompute", "causal attention recompute"]


def test_the_output_layer(tmp_path: Path) -> None:
    plan = ModelPlan()
    with plan.range("perfdoc.forward module=output_layer"):
        plan.run(GEMM)
    with plan.range("perfdoc.backward module=output_layer"):
        plan.run(GEMM, GEMM)
    assert flops(plan.work(tmp_path, facts(tp=2))) == [LOGITS // 2] * 3


def test_gemms_in_chunks(tmp_path: Path) -> None:
    """Communication cuts each GEMM in two, of which one is the faster: they share one product. In the next
    layer the kernels differ, so that nothing says what they are."""
    plan = ModelPlan()
    with plan.range(MLP):
        plan.run(*[GEMM] * 4, ns=[1000, 1100, 2000, 2000])
    with plan.range(MLP):
        plan.run(GEMM, SMALL_GEMM, GEMM, GEMM)
    with plan.range(MLP):
        plan.run(*[GEMM] * 4, ns=[1000, 1300, 1000, 1000])
    found = plan.work(tmp_path, facts(tp=2))
    assert found.flops[:4] == pytest.approx([FC1 / 2 * 10 / 21, FC1 / 2 * 11 / 21, FC2 / 4, FC2 / 4])
    assert flops(found)[4:] == [-1] * 8
    assert "2 of 3 passes" in found.notes[0]
    # One rank has nothing to communicate.
    assert flops(plan.work(tmp_path)) == [-1] * 12


def test_experts_are_unknown_and_their_attention_is_not(tmp_path: Path) -> None:
    plan = ModelPlan()
    with plan.range(ATTENTION):
        plan.run(GEMM, FLASH, GEMM)
    with plan.range(MLP):
        plan.run(GEMM, GEMM)
    found = plan.work(tmp_path, facts(experts=4, experts_per_token=2, expert_layers=1))
    assert flops(found) == [QKV, CORE, PROJ, -1, -1]


def test_latent_attention_has_a_core_and_a_projection(tmp_path: Path) -> None:
    """Heads of 3 + 1 for queries and keys, 2 for values; down and up projections are not told apart."""
    plan = ModelPlan()
    with plan.range(ATTENTION):
        plan.run(*[GEMM] * 3, FLASH, GEMM)
    latent = facts(kv_lora_rank=4, qk_head_dim=3, qk_rope_head_dim=1, v_head_dim=2)
    found = plan.work(tmp_path, latent)
    assert flops(found) == [-1, -1, -1, 3 * 4 * 10 * 10 * (4 + 2), 2 * 30 * (4 * 2) * 8]


def test_context_parallel_ranks_have_equal_shares(tmp_path: Path) -> None:
    """CP 2: half of the tokens, and half of the causal scores in two kernels."""
    plan = ModelPlan()
    with plan.range(ATTENTION):
        plan.run(GEMM, FLASH, FLASH, GEMM)
    assert flops(plan.work(tmp_path, facts(cp=2))) == [QKV // 2, CORE // 4, CORE // 4, PROJ // 2]


def test_ranges_smaller_than_a_part(tmp_path: Path) -> None:
    """megatron-core's, one a projection, without one around them."""
    plan = ModelPlan()
    for _ in range(2):
        for name, kernels in (
            ("megatron.core.transformer.attention.forward.qkv", [GEMM]),
            ("megatron.core.transformer.attention.forward.core_attention", [FLASH]),
            ("megatron.core.transformer.attention.forward.linear_proj", [GEMM]),
            ("megatron.core.transformer.mlp.forward.linear_fc1", [GEMM]),
            ("megatron.core.transformer.mlp.forward.linear_fc2", [GEMM]),
        ):
            with plan.range(name):
                plan.run(*kernels)
    assert flops(plan.work(tmp_path)) == [QKV, CORE, PROJ, FC1, FC2] * 2


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
    plan = ModelPlan()
    with plan.range(MLP):
        plan.run(GEMM, GEMM)
    found = plan.work(tmp_path, known)
    assert np.isnan(found.flops).all()
    assert missing in found.reason
    assert "--model-config" in found.reason


def test_more_flops_than_the_model_has(tmp_path: Path) -> None:
    """A step of one micro-batch that shows two layers' MLPs three times over."""
    plan = ModelPlan()
    with plan.range("perfdoc.step 0"):
        for _ in range(6):
            with plan.range(ATTENTION):
                plan.run(GEMM, FLASH, GEMM)
            with plan.range(MLP):
                plan.run(GEMM, GEMM)
    # Of 2 layers' forward and backward and the output layer, two thirds of which are missing.
    layer = QKV + PROJ + CORE + FC1 + FC2
    most = 3 * (2 * layer + LOGITS)
    assert 6 * layer > 0.6 * most
    found = plan.work(tmp_path, facts(micro_batches=1, recompute="none", vocabulary=32))
    assert flops(found)[:5] == [QKV, CORE, PROJ, FC1, FC2]
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
    plan = ModelPlan()
    with plan.range(MLP):
        plan.run(name, name)
    found = plan.work(tmp_path, facts(dtype=job))
    assert [DTYPES[i] for i in found.dtype.tolist()] == [expected] * 2
    assert np.isnan(found.bytes).all() == (expected == "unknown")


def test_a_forward_that_is_computed_again_without_a_range(tmp_path: Path) -> None:
    """Fused, gate and up are 2 GEMMs and backward 4; with the forward again 6, as if they were apart."""
    plan = ModelPlan()
    with plan.range(MLP):
        plan.run(GEMM, GEMM)
    for _ in range(2):
        with plan.range(MLP_BACKWARD):
            plan.run(*[GEMM] * 6)
        with plan.range(ATTENTION_BACKWARD):
            plan.run(GEMM, FLASH, GEMM, GEMM, GEMM, FLASH_BACKWARD, GEMM, GEMM)
    found = plan.work(tmp_path, facts(gated_mlp=True))
    assert [f for f in flops(found) if f >= 0] == [2 * FC1, FC2]
    assert "4 of 5 passes" in found.notes[0]


@pytest.mark.parametrize("groups", [4, 2])
def test_an_adapter_beside_fused_projections(tmp_path: Path, groups: int) -> None:
    """Four GEMMs, as queries, keys, values and output have them; trained, a frozen layer has six backward."""
    plan, alone = ModelPlan(), ModelPlan()
    for _ in range(4):
        for one in (plan, alone):
            with one.range(ATTENTION):
                one.run(GEMM, SMALL_GEMM, SMALL_GEMM, FLASH, GEMM, ns=[3000, 300, 300, 1000, 1000])
        with plan.range(ATTENTION_BACKWARD):
            plan.run(GEMM, FLASH_BACKWARD, *[SMALL_GEMM] * 4, GEMM)
    known = facts(query_groups=groups)
    assert {f for f in flops(plan.work(tmp_path, known)) if f >= 0} == set()
    if groups == 4:  # by the rates alone: 10 times apart
        assert {f for f in flops(alone.work(tmp_path, known)) if f >= 0} == set()


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
        with plan.range(ATTENTION):
            plan.run(GEMM, SMALL_GEMM, SMALL_GEMM, ns=[3000, 700, 700], blocks=blocks)
            plan.run(FLASH, GEMM)
    q, k = 2 * TOKENS * 8 * 16, 2 * TOKENS * 8 * 8
    three = [q, k, k] if known else [-1] * 3
    assert flops(plan.work(tmp_path))[:5] == [*three, CORE, PROJ]


def test_a_frozen_layer_that_is_computed_again_is_no_backward(tmp_path: Path) -> None:
    """fc1, fc2 and the gradients of their inputs: fc1 is twice as wide and twice as long."""
    back = [FC2, FC2, 2 * FC1, 2 * FC1]
    for lengths, expected in (([2000, 1000, 1000, 2000], [-1] * 4), ([1000, 1000, 2000, 2000], back)):
        plan = ModelPlan()
        with plan.range(MLP):
            plan.run(GEMM, GEMM, ns=[2000, 1000])
        for _ in range(2):
            with plan.range(MLP_BACKWARD):
                plan.run(*[GEMM] * 4, ns=lengths)
        found = plan.work(tmp_path, facts(gated_mlp=True))
        assert flops(found) == [2 * FC1, FC2, *expected * 2]


@pytest.mark.parametrize(("window", "core"), [(9, -1), (10, CORE)])
def test_a_sliding_window(tmp_path: Path, window: int, core: int) -> None:
    """Shorter than the sequence of 10, in layers that nothing names: GEMMs are known all the same."""
    plan, alone = ModelPlan(), ModelPlan()
    with plan.range(ATTENTION):
        plan.run(GEMM, FLASH, GEMM)
    known = facts(attention_window=window)
    assert flops(plan.work(tmp_path, known)) == [QKV, core, PROJ]
    for _ in range(3):
        alone.run(GEMM, FLASH, GEMM, GEMM, GEMM)
    assert flops(alone.work(tmp_path, known)) == [QKV, core, PROJ, FC1, FC2] * 3
