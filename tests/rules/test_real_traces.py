"""What the rules say of traces of real jobs, whose settings nobody knows."""

from pathlib import Path

import pytest

from perfdoc.analyzers.memory.snapshot import measure_snapshot
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.registry import Judged, judge
from tests.amount import some
from tests.rules.simulated_cases import measured_case

ONE_GPU = (
    "nsys/gpt_small_full_step_a100.sqlite",
    "nsys/gpt_small_fwd_bwd_a100.sqlite",
    "nsys/cuda_graph_a100.sqlite",
    "nsys/windows_rtx5000.sqlite",
)


def judged(path: Path) -> Judged:
    """What the rules say of a trace; nothing throws."""
    found = judge(measured_case([str(path)]))
    assert [f"{r.code}: {r.reason}" for r in found.results if r.state == "error"] == []
    return found


def fired(path: Path) -> list[RuleResult]:
    """What fires in a trace."""
    return [r for r in judged(path).results if r.state == "fires"]


@pytest.mark.parametrize("name", some(ONE_GPU, lambda name: "fwd_bwd" not in name))
def test_no_communication_is_blamed_on_one_gpu(shared_traces: Path, name: str) -> None:
    codes = [r.code for r in fired(shared_traces / name)]
    assert [c for c in codes if c.startswith("PD1")] == []
    assert [c for c in codes if c.startswith("PD3")] == [], "nor a mapping over GPUs"


def test_the_host_comes_first_where_the_gpus_wait_for_it(shared_traces: Path) -> None:
    # 2.3 % of the time kernels run; what remains is copies from the host and waiting for it.
    found = judged(shared_traces / "nsys" / "host_bound_2gpu_h100.sqlite").opportunities
    assert found[0].codes[0].startswith("PD2")
    assert (found[-1].codes, found[-1].kind) == (["PD902"], "capture")
    assert not [code for row in found for code in row.codes if code.startswith("PD1")]


def test_a_job_that_waits_for_its_data_is_told_so(shared_traces: Path) -> None:
    # The same training with no loading processes and with four.
    without = fired(shared_traces / "kineto" / "resnet50_num_workers_0_v100.pt.trace.json.gz")
    assert "PD203" in {r.code for r in without}
    four = fired(shared_traces / "kineto" / "resnet50_num_workers_4_v100.pt.trace.json.gz")
    assert "PD203" not in {r.code for r in four}


def finding(path: Path, code: str) -> dict[str, str]:
    """The evidence of a rule that must fire."""
    (found,) = [r for r in fired(path) if r.code == code]
    return {e.label: e.value for e in found.evidence}


def test_start_up_does_not_excuse_one_message_a_parameter(shared_traces: Path) -> None:
    """Inside the one backward: 111 all-reduces, 32.77 ms of which 20.86 are exposed (the traces' README)."""
    evidence = finding(shared_traces / "nsys" / "ddp_2gpu_rtx3090.sqlite", "PD104")
    assert evidence["all-reduce operations a backward pass"] == "111"
    assert (evidence["their time"], evidence["of it exposed"]) == ("32.8 ms", "20.9 ms")


def test_ddps_broadcast_of_buffers_is_named(shared_traces: Path) -> None:
    """In three steps the host is in unflatten_dense_tensors for 67.5 ms and in its reverse for 18.8; in
    copy_bucket_to_grad for 26.4 (sums over the rows of the file)."""
    evidence = finding(shared_traces / "kineto" / "ddp_nccl_metadata_a100_rank0of2.json.gz", "PD209")
    buffers, gradients = [v for label, v in evidence.items() if label.startswith("DDP's")]
    assert buffers.startswith("28.8 ms of host time, 4 ")
    assert gradients.startswith("8.8 ms of host time, 161 ")


def test_ddp_is_told_nothing_that_the_replay_denies(shared_traces: Path) -> None:
    """Launch-bound: 76 % of the step is idle beside the reductions, and no other bucket saves anything."""
    path = shared_traces / "kineto" / "ddp_nccl_metadata_a100_rank0of2.json.gz"
    assert not {"PD100", "PD101"} & {r.code for r in fired(path)}


def test_attention_by_hand_is_seen_forward_and_backward(shared_traces: Path) -> None:
    """12 layers, a forward and a backward each."""
    evidence = finding(shared_traces / "nsys" / "gpt_small_full_step_a100.sqlite", "PD405")
    assert evidence["softmax between two products, worst rank"] == "12 forward passes, 12 backward"


@pytest.mark.parametrize(
    ("length", "scores"), [(1024, 24 * (256 << 20) + 23 * (128 << 20)), (256, 48 * (16 << 20))]
)
def test_attention_scores_of_a_snapshot(shared_traces: Path, length: int, scores: int) -> None:
    """24 layers of 16 heads, batch 4: softmax in FP32 and, at 1024, its copies in 16 bits, the last layer's
    freed already. Counted from the snapshot's events by size and Python frame."""
    path = shared_traces / "memory" / f"medium_{length}_training_memory_snapshot.pickle"
    (device,) = measure_snapshot(path)
    (row,) = device.attention
    assert (row.function, row.bytes) == ("scaled_dot_product_attention", scores)
