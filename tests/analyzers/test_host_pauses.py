from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.host.activity import host_activity
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import GEMM
from tests.captures.timeline import TimelineBuilder

US = 1000


def two_steps(step: str) -> TimelineBuilder:
    """Steps [0, 100) and [100, 200) us on the host; kernels [60, 90) and [160, 190), launched as they start.

    Collections: [10, 20), and [110, 140) on another thread, of which [115, 118) is one inside; then one after
    the steps. Batches: [20, 50) with the loader's own range inside; [205, 300) belongs to no step.
    """
    builder = TimelineBuilder()
    process = builder.process()
    main, other, device = process.thread(), process.thread(), process.device()
    for i in range(2):
        at = 100 * i * US
        main.range(f"{step} {i}", at, at + 100 * US)
        device.kernel(GEMM, at + 60 * US, at + 90 * US, launch=(main, at + 55 * US, at + 60 * US))
    main.range("perfdoc.gc generation=0", 10 * US, 20 * US)
    other.range("perfdoc.gc generation=2", 110 * US, 140 * US)
    other.range("perfdoc.gc generation=0", 115 * US, 118 * US)
    main.range("perfdoc.gc generation=2", 250 * US, 400 * US)
    main.range("perfdoc.data", 20 * US, 50 * US)
    main.range("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 22 * US, 45 * US)
    main.range("perfdoc.data", 205 * US, 300 * US)
    other.range("perfdoc.data", 0, 300 * US)  # a loader's own thread holds up nobody
    return builder


def test_pauses_are_counted_in_the_steps(tmp_path: Path) -> None:
    # The window on the device is [60, 190): of the idle [90, 160), gc has [110, 140). The first batch was
    # waited for before the device ran anything.
    activity = host_activity(view_of(two_steps("perfdoc.step"), tmp_path))[0]
    gc, data = activity.gc, activity.data
    assert (gc.state, gc.count, gc.total_ns, gc.idle_ns, gc.steps_with) == ("measured", 2, 40_000, 30_000, 2)
    assert (gc.worst_ns, gc.worst_name, gc.worst_step) == (
        30_000,
        "perfdoc.gc generation=2",
        "perfdoc.step 1",
    )
    assert (data.count, data.total_ns, data.idle_ns, data.steps_with) == (1, 30_000, 0, 1)
    assert (data.worst_name, data.worst_step) == ("perfdoc.data", "perfdoc.step 0")


@pytest.mark.parametrize(("step", "state"), [("perfdoc.step", "measured"), ("step", "not_measured")])
def test_no_ranges_are_none_only_where_each_would_be_marked(tmp_path: Path, step: str, state: str) -> None:
    # perfdoc's trainer marks every collection and every wait for a batch; other captures may just not.
    builder = TimelineBuilder()
    process = builder.process()
    main, device = process.thread(), process.device()
    main.range(f"{step} 0", 0, 100)
    device.kernel(GEMM, 10, 20, launch=(main, 1, 2))
    activity = host_activity(view_of(builder, tmp_path))[0]
    for pauses in (activity.gc, activity.data):
        assert pauses.state == state
        assert pauses.count == (0 if state == "measured" else None)
        assert bool(pauses.reason) is bool(pauses.remedy) is (state == "not_measured")


def test_a_loader_in_the_training_process_shows(shared_traces: Path) -> None:
    # PyTorch's own pair of traces: the same training with 0 and with 4 worker processes.
    found = {}
    for workers in (0, 4):
        path = shared_traces / "kineto" / f"resnet50_num_workers_{workers}_v100.pt.trace.json.gz"
        (view,) = views_of(read_kineto(path))
        found[workers] = host_activity(view)[0].data
    assert [d.count for d in found.values()] == [6, 6]
    assert [d.steps_with for d in found.values()] == [6, 6]
    assert [(d.total_ns, d.idle_ns) for d in found.values()] == [
        (279_738_000, 174_337_000),
        (9_741_000, 5_632_000),
    ]
    assert found[0].worst_name == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@pytest.mark.parametrize(
    ("one_by_one", "waits", "graphs_a_step", "between", "pausing"),
    [
        (0, True, 0, 5 * 385, 0),  # no steps are known: the host waits once an iteration
        (0, False, 0, 0, 0),  # may be graphs of layers
        (2, True, 0, 0, 0),  # most launches are of kernels
        (0, False, 1, 5 * 330, 5 * 55),  # the silence reaches into the steps' ranges
        (0, False, 2, 2 * 330, 5 * 385 - 2 * 330),
        (0, False, 3, 0, 0),  # a graph a layer is launched as kernels are
    ],
)
def test_silence_between_whole_graphs_is_no_launching(
    tmp_path: Path, one_by_one: int, waits: bool, graphs_a_step: int, between: int, pausing: int
) -> None:
    # An iteration of 1,000 us is one graph [315, 915), launched in [300, 310): the GPU idles 400 us before
    # the next, of which 385 are before that call. Ranges begin at 250 and end at 920 of their last one: of
    # these 385 us 330 lie between two of them.
    builder = TimelineBuilder()
    process = builder.process()
    main, device = process.thread(), process.device()
    for i in range(6):
        at = 1_000 * US * i
        for extra in range(one_by_one):
            early = at + (20 + 20 * extra) * US
            device.kernel(
                GEMM,
                at + (30 + 20 * extra) * US,
                at + (34 + 20 * extra) * US,
                launch=(main, early, early + US),
            )
        call = main.api("cudaGraphLaunch", at + 300 * US, at + 310 * US)
        device.kernel(GEMM, at + 315 * US, at + 915 * US, correlation=call)
        if waits:
            main.synchronize("device", at + 311 * US, at + 915 * US)
        if graphs_a_step and i % graphs_a_step == 0:
            last = at + 1_000 * (graphs_a_step - 1) * US
            main.range(f"step {i // graphs_a_step}", at + 250 * US, last + 920 * US)
    split = host_activity(view_of(builder, tmp_path))[0].idle_split
    assert ((split.between_steps_ns or 0) // US, (split.pausing_ns or 0) // US) == (between, pausing)


@pytest.mark.parametrize(("graph_us", "between"), [(900, 5 * 2_980), (5, 0)])
def test_few_launches_beside_graphs_that_take_the_time(tmp_path: Path, graph_us: int, between: int) -> None:
    """Two kernels of 4 us and a graph an iteration of 4 ms, then a wait for it until 2 ms, and no call until
    980 us of the next: 2,980 us five times. Not where the kernels take longer than the graph."""
    builder = TimelineBuilder()
    process = builder.process()
    main, device = process.thread(), process.device()
    for i in range(6):
        at = 4_000 * US * i
        for early in (980, 990):
            device.kernel(
                GEMM,
                at + (early + 5) * US,
                at + (early + 9) * US,
                launch=(main, at + early * US, at + (early + 2) * US),
            )
        begin = at + (2_000 - graph_us) * US
        device.graph_launch(1, begin, at + 2_000 * US, launch=(main, at + 1_000 * US, at + 1_004 * US))
        main.synchronize("device", at + 1_005 * US, at + 2_000 * US)
    split = host_activity(view_of(builder, tmp_path))[0].idle_split
    assert (split.between_steps_ns or 0) // US == between
