"""What rules of hosts, kernels and memory say of captures of real GPUs, and what an expert sees in them."""

from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.memory.snapshot import measure_snapshot
from perfdoc.rules.engine.case import Case
from tests.amount import some
from tests.rules.cases import evidence_of, result
from tests.rules.judged import run_rules
from tests.rules.laid import remembering


def case_of(folder: Path, name: str, *, whole: bool = False) -> Case:
    path = folder / name
    if not path.exists():
        pytest.skip(f"{name} is not among the shared traces")
    return Case.of([measure_capture(path, WindowRequest(whole_capture=whole))])


def test_attention_and_norms_written_by_hand(shared_traces: Path) -> None:
    """A transformer of a course's exercise: softmax of its own, RMS norms of six kernels each. Between the
    GEMMs around 180 of its softmaxes and 60 of their gradients lie 201.5 and 154.5 ms, the sums of the
    file's rows; the whole capture is mostly start-up, and the GPU works for 1.8 s of it."""
    case = case_of(shared_traces, "nsys/gpt_fwd_bwd_rtx3070ti_sched.sqlite", whole=True)
    attention, unfused = result("PD405", case), result("PD404", case)
    assert (attention.state, evidence_of(attention)[0]) == ("fires", "19.8 %")
    (rank,) = case.ranks
    found = rank.kernel_parts.unfused_attention
    assert (found.forwards, found.backwards, found.between_ns) == (180, 60, 201_538_824 + 154_504_183)
    assert (unfused.state, evidence_of(unfused)[:2]) == ("fires", ["1.4 %", "1.3 % of the window"])
    assert unfused.evidence[1].label == "rms norm by hand, 375 times"
    assert (attention.advice, unfused.advice) == ([], [])  # nobody said that megatron-core trains it
    communication = [r for r in run_rules(case) if r.code.startswith("PD1") and r.state == "fires"]
    assert communication == []


def test_a_host_that_is_too_slow(shared_traces: Path) -> None:
    """Three steps of 220 ms in which the GPU computes for 40: 166 ms wait for launches."""
    case = case_of(shared_traces, "kineto/ddp_nccl_metadata_a100_rank0of2.json.gz")
    starved = result("PD201", case)
    assert (starved.state, evidence_of(starved)[0]) == ("fires", "75.3 %")
    assert "20.8 %" in evidence_of(starved), "before kernels shorter than their launches"
    assert {r.state for r in (result("PD404", case), result("PD405", case))} == {"passes"}


@pytest.mark.parametrize(
    ("tokens", "share", "state"),
    some(
        [(256, "78 %, 30.86 GiB", "fires"), (1024, "41 %, 16.04 GiB", "fires")], lambda case: case[0] == 1024
    ),
)
def test_memory_of_an_a100_that_is_half_empty(
    shared_traces: Path, tokens: int, share: str, state: str
) -> None:
    """8.63 and 23.45 GiB are reserved of the 39.49 GiB that the capture of the same model says."""
    case = case_of(shared_traces, "nsys/gpt_small_full_step_a100.sqlite")
    (device,) = measure_snapshot(
        shared_traces / "memory" / f"medium_{tokens}_training_memory_snapshot.pickle"
    )
    found = result("PD505", remembering(case, device))
    assert (found.state, evidence_of(found)) == (state, [share])
    assert {result(code, remembering(case, device)).state for code in ("PD501", "PD502", "PD508")} == {
        "passes"
    }
