"""Contention on real traces and on the demonstration capture."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.contention.cost import norm_contention
from perfdoc.results.contention import DeviceContendedKernel, DeviceContention
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.device_views import views_of


def measured(path: Path) -> list[DeviceContention]:
    return [norm_contention(view)[0] for view in views_of(read_trace(path))]


def named(kernels: object, word: str) -> list[DeviceContendedKernel]:
    assert isinstance(kernels, list)
    return [k for k in kernels if word in k.kernel]


def test_layer_norms_beside_all_to_all(shared_traces: Path) -> None:
    (found,) = measured(shared_traces / "kineto" / "dlrm_layernorm_a100_rank3of8.json.gz")
    assert (found.state, found.norms) == ("measured", 486)
    (forward,) = named(found.signatures, "vectorized_layer_norm_kernel")
    # 162 runs: 54 alone, 106 wholly beside NCCL, 2 beside other compute. 6 us alone, 20 us beside.
    assert (forward.samples_alone, forward.samples_contended) == (54, 106)
    assert (forward.alone_ns, forward.contended_ns, forward.verdict) == (6_000, 20_500, "slower")
    (gamma, other_shape) = named(found.signatures, "GammaBetaBackward")
    assert (gamma.grid_blocks, gamma.samples_alone, gamma.samples_contended) == (32, 13, 77)
    assert (gamma.alone_ns, gamma.contended_ns, gamma.verdict) == (10_000, 17_000, "slower")
    assert (other_shape.grid_blocks, other_shape.verdict) == (64, "too_few_samples")
    # 5 to 11 us alone: not all of these do the same work, so nothing is claimed.
    (grad_input,) = named(found.signatures, "layer_norm_grad_input_kernel")
    assert (grad_input.samples_alone, grad_input.samples_contended) == (82, 80)
    assert (grad_input.verdict, grad_input.cost) == ("mixed_work", None)
    assert found.norm_cost is not None
    assert found.norm_cost.low_ns <= found.norm_cost.mid_ns == 1_711_000 + 619_000 <= found.norm_cost.high_ns
    # NCCL's grids of this trace are 24 blocks of 108 SMs.
    assert (found.occupied_blocks, found.typical_occupied_blocks) == (24, 24)
    # PyTorch's layer norms have no margin.
    assert found.suggested_sm_margin is None
    assert found.margin_reason.startswith("only Transformer Engine's norms have an SM margin")
    assert (found.stalled_starts, found.undecided_starts) == (0, 0)


def test_products_beside_gradient_all_reduces(shared_traces: Path) -> None:
    for found in measured(shared_traces / "nsys" / "ddp_2gpu_rtx3090.sqlite"):
        assert (found.state, found.norms, found.signatures) == ("measured", 0, [])
        assert "no kernel name in the window" in found.reason
        assert found.suggested_sm_margin is None
        (product,) = named(found.other_signatures, "bf16_s1688gemm_bf16_128x128_ldg8_f2f_stages_32x1_nt")
        assert (product.samples_alone, product.samples_contended) == (13, 23)
        assert product.verdict == "slower"
        assert product.alone_ns is not None
        assert product.contended_ns is not None
        # An RTX 3090 shares memory and 82 SMs: three times as long.
        assert 2.5 < product.contended_ns / product.alone_ns < 3.5


@pytest.mark.parametrize("name", ["sp_2gpu_before.sqlite", "sp_2gpu_after.sqlite"])
def test_norms_that_never_run_beside_communication(shared_traces: Path, name: str) -> None:
    for found in measured(shared_traces / "nsys" / name):
        assert (found.state, found.signatures) == ("measured", [])
        assert (found.norms or 0) > 0
        assert found.reason == "no norm overlapped communication"


def test_all_reduces_that_are_not_called_nccl(shared_traces: Path) -> None:
    # Multimem all-reduces on the stream that computes: communication, but beside nothing.
    (found,) = measured(shared_traces / "kineto" / "vllm_moe_tp8_b200_rank0.json.gz")
    assert (found.state, found.norms, found.signatures) == ("measured", 73, [])
    assert (found.other_signatures, found.stalled_starts) == ([], 0)


def test_no_faster_beside_communication_is_believed(shared_traces: Path) -> None:
    # Batch norms of two layers share name and grid: 220 us alone, 41 us beside. Three samples prove nothing.
    (found,) = measured(shared_traces / "kineto" / "ddp_nccl_metadata_a100_rank0of2.json.gz")
    assert {k.verdict for k in found.signatures} == {"too_few_samples"}
    assert (found.norm_cost, found.occupied_blocks) == (None, 8)


@pytest.mark.parametrize(
    "name",
    some(
        [
            *("nsys/gpt_small_full_step_a100.sqlite", "nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite"),
            *(
                "nsys/windows_rtx5000.sqlite",
                "nsys/host_bound_2gpu_h100.sqlite",
                "nsys/cuda_graph_a100.sqlite",
            ),
            "kineto/resnet50_num_workers_0_v100.pt.trace.json.gz",
        ],
        lambda name: "gpt" not in name and "resnet" not in name,
    ),
)
def test_without_communication_there_is_no_contention(shared_traces: Path, name: str) -> None:
    for found in measured(shared_traces / name):
        assert (found.state, found.reason) == ("not_measured", "no communication kernel ran on this device")
