"""Parts, shares and patterns of real traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.results.kernels import KernelPartsAnalysis
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.device_views import views_of
from tests.analyzers.step_plan import parts_of


def measured(path: Path) -> list[KernelPartsAnalysis]:
    return [parts_of(view) for view in views_of(read_trace(path))]


def total_ns(
    found: KernelPartsAnalysis, part: str, phase: str | None = None, evidence: str | None = None
) -> int:
    return sum(
        p.total_ns
        for p in found.parts
        if p.part == part and phase in (None, p.phase) and evidence in (None, p.evidence)
    )


@pytest.mark.parametrize(
    "name",
    some(
        [
            *(
                "nsys/ddp_2gpu_rtx3090.sqlite",
                "nsys/gpt_small_full_step_a100.sqlite",
                "nsys/sp_2gpu_before.sqlite",
            ),
            *("kineto/dlrm_layernorm_a100_rank3of8.json.gz", "kineto/vllm_moe_tp8_b200_rank0.json.gz"),
            *("kineto/ddp_nccl_metadata_a100_rank0of2.json.gz", "nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite"),
        ],
        lambda name: "gpt_small" not in name and "layernorm" not in name,
    ),
)
def test_the_parts_sum_to_all_kernel_time(shared_traces: Path, name: str) -> None:
    for found in measured(shared_traces / name):
        assert sum(p.total_ns for p in found.parts) == found.kernel_ns
        assert total_ns(found, "communication", evidence="kernel_name") == (
            found.kernel_ns - found.compute_kernel_ns
        )


def test_sequence_numbers_find_the_backward_of_attention(shared_traces: Path) -> None:
    # emit_nvtx beside ranges of the forward only.
    (found,) = measured(shared_traces / "nsys" / "gpt_small_full_step_a100.sqlite")
    forward = total_ns(found, "attention", "forward", "range")
    backward = total_ns(found, "attention", "backward", "sequence")
    assert (forward, backward) == (9_864_844, 18_531_373)
    # Two products of the backward for one of the forward.
    assert 1.5 < backward / forward < 2.5
    assert total_ns(found, "optimizer", "optimizer", "range") == 11_828_728
    assert found.linear_ns is not None
    assert found.attention_ns is not None
    assert found.attention_ns == 12_211_445
    patterns = {u.pattern: u.count for u in found.unfused}
    # 12 layers: two norms each and the last one; one softmax each.
    assert patterns == {"rms_norm_by_hand": 25, "masked_softmax": 12}


def test_autograds_thread_works_for_the_backward_pass(shared_traces: Path) -> None:
    for found in measured(shared_traces / "nsys" / "ddp_2gpu_rtx3090.sqlite"):
        # 111 all-reduces are launched inside the backward range, 119 before it.
        counts = {p.phase: p.count for p in found.parts if p.part == "communication"}
        assert counts == {"backward": 111, "unknown": 119}
        assert total_ns(found, "unknown", "unknown") < 0.001 * found.compute_kernel_ns
        assert {u.pattern: u.count for u in found.unfused} == {"rms_norm_by_hand": 25, "masked_softmax": 12}
        assert found.recompute_ns is None


def test_parts_by_operators_of_kineto(shared_traces: Path) -> None:
    (found,) = measured(shared_traces / "kineto" / "dlrm_layernorm_a100_rank3of8.json.gz")
    assert total_ns(found, "norm", "backward", "range") > 0
    assert total_ns(found, "optimizer", "optimizer", "range") == 7_642_000
    (accumulation,) = found.unfused
    assert (accumulation.pattern, accumulation.count) == ("gradient_accumulation", 996)
    assert (found.recompute_ns, found.recompute_frac) == (0, 0.0)


def test_products_of_experts_in_an_inference_trace(shared_traces: Path) -> None:
    (found,) = measured(shared_traces / "kineto" / "vllm_moe_tp8_b200_rank0.json.gz")
    assert found.grouped_linear_frac is not None
    assert found.linear_frac is not None
    assert (round(found.grouped_linear_frac, 3), round(found.linear_frac, 3)) == (0.48, 0.072)
    assert found.recompute_ns is None
