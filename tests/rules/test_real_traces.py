"""What the rules say of traces of real jobs, whose settings nobody knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.reports.advice import by_gain
from perfdoc.results.rules import RuleResult
from perfdoc.rules.engine.registry import run_rules
from tests.rules.simulated_cases import measured_case

ONE_GPU = (
    "nsys/gpt_small_full_step_a100.sqlite",
    "nsys/gpt_small_fwd_bwd_a100.sqlite",
    "nsys/cuda_graph_a100.sqlite",
    "nsys/windows_rtx5000.sqlite",
)


def fired(path: Path) -> list[RuleResult]:
    """What fires in a trace; nothing throws."""
    found = run_rules(measured_case([str(path)]))
    assert [f"{r.code}: {r.reason}" for r in found if r.state == "error"] == []
    return [r for r in found if r.state == "fires"]


@pytest.mark.parametrize("name", ONE_GPU)
def test_no_communication_is_blamed_on_one_gpu(shared_traces: Path, name: str) -> None:
    codes = [r.code for r in fired(shared_traces / name)]
    assert [c for c in codes if c.startswith("PD1")] == []
    assert [c for c in codes if c.startswith("PD3")] == [], "nor a mapping over GPUs"


def test_the_host_comes_first_where_the_gpus_wait_for_it(shared_traces: Path) -> None:
    # 2.3 % of the time kernels run; what remains is copies from the host and waiting for it.
    found = fired(shared_traces / "nsys" / "host_bound_2gpu_h100.sqlite")
    first = by_gain(found)[0]
    assert first.code.startswith("PD2")
    assert not [r.code for r in found if r.code.startswith("PD1")]


def test_a_job_that_waits_for_its_data_is_told_so(shared_traces: Path) -> None:
    # The same training with no loading processes and with four.
    without = fired(shared_traces / "kineto" / "resnet50_num_workers_0_v100.pt.trace.json.gz")
    assert "PD203" in {r.code for r in without}
    four = fired(shared_traces / "kineto" / "resnet50_num_workers_4_v100.pt.trace.json.gz")
    assert "PD203" not in {r.code for r in four}
