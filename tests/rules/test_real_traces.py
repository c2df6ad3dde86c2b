"""What the rules say of traces of real jobs, whose settings nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.registry import Judged, judge
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


@pytest.mark.parametrize("name", ONE_GPU)
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
