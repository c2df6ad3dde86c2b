from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.idle import idle_inputs
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.ledger.steps import StepLedgers, build_ledger, distinct_names, step_ledgers
from perfdoc.results.ranks import LEAVES
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import ALL_GATHER, ALL_REDUCE, GEMM
from tests.captures.timeline import TimelineBuilder, one_gpu


def ledger_of(view: DeviceView, start: int, end: int) -> dict[str, int]:
    return build_ledger(view.activity, start, end, idle_inputs(view.trace, view.activity, view.known)).by_leaf


def agree(view: DeviceView) -> StepLedgers:
    """Each step is the ledger of its bounds, and all of them sum to the window's."""
    found = step_ledgers(view)
    assert found.state == "measured"
    assert tuple(found.leaf_ns) == LEAVES
    whole = ledger_of(view, view.window.start_ns, view.window.end_ns)
    assert {leaf: int(ns.sum()) for leaf, ns in found.leaf_ns.items()} == whole
    for i, step in enumerate(view.window.step_list):
        assert {leaf: int(ns[i]) for leaf, ns in found.leaf_ns.items()} == ledger_of(
            view, step.start_ns, step.end_ns
        )
    return found


def test_steps_by_hand(tmp_path: Path) -> None:
    # Steps from 100 and from 300 (their first launches); the last activity ends at 500.
    # First: gemm [100, 150), dp all-reduce [140, 200), idle to 280 (launch at 270..280: host 80), then a copy
    # [280, 310) that the second step cuts at 300. Second: copy 10, gemm [310, 400), gc in the gap [400, 480).
    builder, thread, device = one_gpu()
    thread.range("perfdoc.step 0", 50, 260)
    thread.range("perfdoc.step 1", 290, 490)
    device.kernel(GEMM, 100, 150, launch=(thread, 60, 70))
    device.kernel(ALL_REDUCE, 140, 200, stream=20, launch=(thread, 80, 90))
    device.copy("host_to_device", 64, 280, 310, stream=30, launch=(thread, 270, 280))
    device.kernel(GEMM, 300, 305, launch=(thread, 291, 292))
    device.kernel(GEMM, 310, 400, launch=(thread, 295, 296))
    thread.range("perfdoc.gc generation=2", 410, 440)
    device.kernel(GEMM, 480, 500, launch=(thread, 470, 480))
    found = agree(view_of(builder, tmp_path))
    assert (list(found.names), found.duration_ns.tolist()) == (
        ["perfdoc.step 0", "perfdoc.step 1"],
        [200, 200],
    )
    seen = {leaf: ns.tolist() for leaf, ns in found.leaf_ns.items() if ns.any()}
    assert seen == {
        "compute": [50, 5 + 90 + 20],
        "exposed_comm.unknown": [50, 0],
        "exposed_memcpy": [20, 5],
        "idle.host": [80, 50],
        "idle.gc": [0, 30],
    }


@pytest.mark.parametrize("seed", range(10))
def test_random_steps_are_cut_exactly(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    builder, thread, device = one_gpu()
    at = 0
    for i in range(5):
        begin = at + int(rng.integers(0, 20))
        at = begin + int(rng.integers(20, 200))
        thread.range(f"step {i}", begin, at)
    for _ in range(40):
        made = int(rng.integers(0, at))
        start = made + int(rng.integers(0, 120))
        end = start + int(rng.integers(1, 60))
        launch = (thread, made, made + int(rng.integers(0, 20)))
        what = int(rng.integers(4))
        if what == 3:
            device.copy("device_to_host", 8, start, end, stream=9, launch=launch)
        else:
            device.kernel((GEMM, ALL_GATHER, ALL_REDUCE)[what], start, end, stream=7 + what, launch=launch)
    thread.range("perfdoc.gc generation=0", 100, 180)
    thread.range("data_loading", 150, 260)
    agree(view_of(builder, tmp_path))


def test_without_steps_there_is_nothing(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    builder.process().device().kernel(GEMM, 0, 10)
    found = step_ledgers(view_of(builder, tmp_path))
    assert (found.state, len(found.duration_ns)) == ("not_measured", 0)
    assert found.remedy


def test_names_that_occur_again_are_told_apart() -> None:
    assert distinct_names(["a", "b", "a", "a"]) == ["a", "b", "a (2)", "a (3)"]


@pytest.mark.parametrize(
    "name",
    [
        "ddp_nccl_metadata_a100_rank0of2.json.gz",
        "dlrm_layernorm_a100_rank3of8.json.gz",
        "resnet50_num_workers_0_v100.pt.trace.json.gz",
    ],
)
def test_real_steps_sum_exactly(shared_traces: Path, name: str) -> None:
    (view,) = views_of(read_kineto(shared_traces / "kineto" / name))
    agree(view)
