from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfdoc.analyzers.contention.cost import norm_contention
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.instances.spots import Instance, device_instances, worst_of
from perfdoc.analyzers.ledger.steps import build_ledger
from perfdoc.traces.nsys.read import read_nsys_sqlite
from tests.amount import tries
from tests.analyzers.contention_plan import NORM, Plan
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.planted_ranks import Clock, Job
from tests.analyzers.tiny import GEMM
from tests.analyzers.tiny import trace_of as read
from tests.captures.timeline import TimelineBuilder, one_gpu

US = 1000


def instances_of(view: DeviceView) -> dict[str, Instance]:
    """By key."""
    window = view.window
    ledger = build_ledger(view.activity, window.start_ns, window.end_ns, view.idle_inputs, view.gaps)
    return {i.spot.key: i for i in device_instances(view, ledger, norm_contention(view)[1])}


def test_the_worst_host_gap_is_the_one_that_the_host_made_longest(tmp_path: Path) -> None:
    # Idle [100, 200), [300, 700), [800, 950). The second is longest, but 350 us of it were collection: the
    # host made 50 us of it, 100 us of the first (its launch returned as the kernel began) and 140 us of the
    # third, whose launch returned at 940.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 10))
    device.kernel(GEMM, 200 * US, 300 * US, launch=(thread, 190 * US, 200 * US))
    device.kernel(GEMM, 700 * US, 800 * US, launch=(thread, 680 * US, 700 * US))
    device.kernel("last", 950 * US, 1000 * US, launch=(thread, 930 * US, 940 * US))
    thread.range("perfdoc.gc generation=2", 310 * US, 660 * US)
    found = instances_of(view_of(builder, tmp_path))
    host, gc = found["idle.host"], found["idle.gc"]
    assert (host.spot.start_ns, host.spot.end_ns, host.spot.cost_ns) == (800 * US, 940 * US, 140 * US)
    assert host.spot.name.startswith("cudaLaunchKernel")
    assert (gc.spot.start_ns, gc.spot.end_ns, gc.spot.cost_ns) == (310 * US, 660 * US, 350 * US)
    assert gc.spot.name == "perfdoc.gc generation=2"


def test_the_worst_collective_is_the_one_that_compute_hid_least(tmp_path: Path) -> None:
    # 300 us of which 250 are hidden, 100 us of which 20 are, and 60 us of which nothing is: 50, 80 and 60.
    job = Job(ranks=2)
    for start, length in ((0, 300), (400, 100), (600, 60)):
        job.collective("dp", {0: start * US, 1: start * US}, length * US)
    for rank in (0, 1):
        job.compute(rank, 0, 250 * US)
        job.compute(rank, 310 * US, 420 * US)
    # The capture's clock begins 1 ms before.
    clock = Clock(zero_ns=-1000 * US)
    trace_path = job.write_nsys(tmp_path, [clock, clock])[0]
    (view,) = views_of(read_nsys_sqlite(trace_path), whole=True)
    worst = instances_of(view)["exposed.dp"]
    assert (worst.spot.start_ns, worst.spot.end_ns) == (1400 * US, 1500 * US)
    assert (worst.spot.cost_ns, worst.spot.name) == (80 * US, "all_reduce")


@pytest.mark.parametrize("count", [20, 600])
def test_the_worst_copy_is_the_one_that_least_ran_beside(tmp_path: Path, count: int) -> None:
    # Copies of 6 us, each with compute beside its first 4 us and communication beside 1 us more; without that
    # communication the one but last. Beside none of them nothing ran, so that all have to be looked at.
    builder, thread, device = one_gpu()
    for i in range(count):
        start = i * 10 * US
        device.kernel(GEMM, start, start + 6 * US, launch=(thread, start, start))
        device.copy("host_to_device", 1000, start + 2 * US, start + 8 * US, stream=9)
        if i != count - 2:
            name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
            device.kernel(name, start + 7 * US, start + 8 * US, stream=11)
    worst = instances_of(view_of(builder, tmp_path))["exposed_memcpy"].spot
    start = (count - 2) * 10 * US + 2 * US
    assert (worst.start_ns, worst.end_ns, worst.cost_ns) == (start, start + 6 * US, 2 * US)


def test_what_takes_little_of_the_window_is_not_looked_for(tmp_path: Path) -> None:
    # One gap of 10 us in 1 ms: 1 % of it, half of what a rule could fire on.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 500 * US, launch=(thread, 0, 10))
    device.kernel(GEMM, 510 * US, 1000 * US, launch=(thread, 505 * US, 510 * US))
    assert instances_of(view_of(builder, tmp_path)) == {}


def test_the_worst_is_the_same_whatever_the_order_of_the_rows(tmp_path: Path) -> None:
    # Kernels of 40 us every 100 us, but k3 comes 30 us late: the gap before it, [240, 330), is the longest.
    builder, thread, device = one_gpu()
    for i in range(6):
        start = i * 100 * US + (30 * US if i == 3 else 0)
        launch = (thread, start - 20 * US, start - US) if i else (thread, 0, 10)
        device.kernel(f"k{i}", start, start + 40 * US, launch=launch)
    trace = read(builder, tmp_path)
    shuffled = replace(
        trace,
        kernels=trace.kernels.take(np.array([4, 0, 5, 2, 1, 3])),
        api_calls=trace.api_calls.take(np.array([3, 2, 5, 0, 1, 4])),
    )
    for given_trace in (trace, shuffled):
        (view,) = views_of(given_trace, whole=True)
        worst = instances_of(view)["idle.host"]
        assert (worst.spot.start_ns, worst.spot.end_ns) == (240 * US, 329 * US)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), max_size=700))
def test_the_worst_is_found_without_looking_at_all(rows: list[tuple[int, int]]) -> None:
    length = np.array([a for a, _ in rows], np.int64)
    lost = np.array([min(a, b) for a, b in rows], np.int64)
    found = worst_of(length, lost.__getitem__)
    most = int(lost.max(initial=0))
    if most == 0:
        assert found is None
    else:
        assert found is not None
        assert (int(lost[found[0]]), found[1]) == (most, most)


def test_the_worst_norm_is_the_one_slowed_most_beside_communication(tmp_path: Path) -> None:
    # Slots of 100 us: 8 norms alone, 8 of 15 us beside an all-reduce, the 12th slot 22 us; products
    # likewise, but no longer than alone; and one norm of 80 us beside other compute, which tells
    # nothing of communication.
    plan = Plan()
    for _ in range(8):
        plan.slot(10_000)
    for i in range(8):
        plan.slot(22_000 if i == 3 else 15_000, comm=22_000)
    for i in range(16):
        plan.slot(20_000, name=GEMM, comm=20_000 if i % 2 else 0)
    plan.slot(80_000, comm=80_000, crowd=40_000)
    view = view_of(plan.builder, tmp_path)
    found = instances_of(view)
    worst = found["contention.norm"].spot
    assert (worst.start_ns, worst.end_ns, worst.cost_ns) == (1_100_000, 1_122_000, 12_000)
    assert worst.name == NORM
    assert "contention.other" not in found


@settings(max_examples=tries(25, 200), deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 400), st.integers(0, 60), st.integers(0, 1), st.integers(0, 80)),
        min_size=1,
        max_size=14,
    ),
    st.lists(st.tuples(st.integers(0, 400), st.integers(0, 200), st.booleans()), max_size=6),
)
def test_whatever_the_trace_an_instance_is_a_part_of_it(
    kernels: list[tuple[int, int, int, int]], ranges: list[tuple[int, int, bool]]
) -> None:
    # Kernels that overlap, are empty or of another stream, calls that nest, ranges that cross.
    builder, thread, device = one_gpu()
    for i, (start, length, stream, before) in enumerate(kernels):
        began = 100 * US + start * US
        name = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL" if i % 3 == 2 else GEMM
        launch = (thread, began - before * US - 5, began - before * US)
        device.kernel(name, began, began + length * US, stream=7 + 13 * stream, launch=launch)
    for start, length, is_gc in ranges:
        thread.range("perfdoc.gc" if is_gc else "perfdoc.data", start * US, (start + length) * US)
    with tempfile.TemporaryDirectory() as folder:
        view = view_of(builder, Path(folder))
    window = view.window
    ledger = build_ledger(view.activity, window.start_ns, window.end_ns, view.idle_inputs, view.gaps)
    for key, found in instances_of(view).items():
        spot = found.spot
        assert 0 < spot.cost_ns <= spot.end_ns - spot.start_ns
        if key.startswith("idle."):
            assert spot.cost_ns <= ledger.idle.total


@pytest.mark.parametrize(("name", "inside"), [("gloo:all_reduce", "gloo:all_reduce"), ("logging", "")])
def test_a_collective_of_gloo_keeps_the_host_waiting(name: str, inside: str, tmp_path: Path) -> None:
    """PyTorch notes it on a thread of gloo's, where nothing else keeps the launching thread. Between two
    kernels that a call launched each lie 900 ns, all but 20 in it."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, gloo, device = process.thread(), process.thread(), process.device()
    for at in (0, 1000):
        device.kernel(GEMM, at + 10, at + 110, launch=(thread, at, at + 5))
    gloo.range(name, 115, 995)
    assert instances_of(view_of(builder, tmp_path))["idle.host"].spot.inside == inside
