from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from perfdoc.analyzers.device.cpu_rank import cpu_activity
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.device.range_names import find_known_ranges
from perfdoc.analyzers.device.ranks import marked_ranks, with_marked_ranks
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import WindowRequest, find_window
from perfdoc.analyzers.host.activity import host_activity
from perfdoc.analyzers.kernel_class.classify import classify_kernels
from perfdoc.analyzers.ledger.steps import step_ledgers
from perfdoc.traces.job_facts import JobFacts
from tests.analyzers.device_views import view_of
from tests.analyzers.tiny import GEMM, trace_of
from tests.captures.timeline import TimelineBuilder, one_gpu


def cpu_view(builder: TimelineBuilder, folder: Path) -> DeviceView:
    trace = trace_of(builder, folder)
    trace = with_marked_ranks(trace, marked_ranks(trace))
    found = cpu_activity(trace, 0)
    assert found is not None
    known = find_known_ranges(trace)
    window, step_ranges = find_window(trace, found[0], WindowRequest(), known)
    return DeviceView(
        trace=trace,
        activity=found[0],
        window=window,
        step_ranges=step_ranges,
        kinds=classify_kernels(trace),
        launches=find_launches(trace),
        known=known,
        facts=JobFacts(),
    )


def a_cpu_rank(folder: Path) -> DeviceView:
    """A step [0, 1000): data [0, 100), forward [100, 600), gc [600, 650), an all-reduce [700, 900)."""
    facts = "all_reduce group=DATA_PARALLEL_GROUP pg=1 bytes=64 seq=0"
    builder = TimelineBuilder()
    process = builder.process(pid=77)
    main, backend = process.thread(tid=77), process.thread(tid=78)
    main.range("perfdoc.rank 0 world=2 device=cpu", 0, 0)
    main.range("perfdoc.step 7", 0, 1000)
    main.range("perfdoc.data", 0, 100)
    main.range("perfdoc.forward", 100, 600)
    main.range("perfdoc.gc generation=2", 600, 650)
    main.range(f"perfdoc.comm.issue {facts}", 700, 710)
    main.range(f"perfdoc.comm.wait {facts}", 720, 900)
    backend.range(f"perfdoc.comm.run {facts}", 700, 900, kind="start_end")
    return cpu_view(builder, folder)


def test_a_cpu_rank_has_pauses_and_steps_and_nothing_that_is_launched(tmp_path: Path) -> None:
    view = a_cpu_rank(tmp_path)
    found, steps = host_activity(view)
    for part in ("launch_queue", "idle_split", "sync_calls", "alloc_calls", "small_kernels", "graphs"):
        result = getattr(found, part)
        assert (result.state, result.reason) == (
            "not_measured",
            "The rank computes on the CPU: no work is launched to a device.",
        )
    assert (found.data.count, found.data.total_ns, found.data.idle_ns) == (1, 100, 100)
    assert (found.gc.count, found.gc.total_ns, found.gc.idle_ns) == (1, 50, 50)
    # 200 of communication with nothing beside it are a wait, not the host's work.
    (step,) = steps.steps
    assert (step.name, step.host_ns, step.waiting_ns, step.gc_ns) == ("perfdoc.step 7", 800, 200, 50)
    ledgers = step_ledgers(view)
    assert {leaf: ns.tolist() for leaf, ns in ledgers.leaf_ns.items() if ns.any()} == {
        "compute": [500],
        "exposed_comm.dp": [200],
        "idle.host": [150],
        "idle.gc": [50],
        "idle.data": [100],
    }


def test_without_api_calls_only_pauses_and_graphs_are_measured(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    process.device().kernel(GEMM, 0, 100)
    process.thread().range("gc", 10, 20)
    found = host_activity(view_of(builder, tmp_path))[0]
    parts = [f.name for f in fields(found) if f.name not in ("state", "reason", "remedy")]
    states = {name: getattr(found, name).state for name in parts}
    assert found.state == "measured"
    assert {name for name, state in states.items() if state == "measured"} == {"gc", "graphs"}
    for name in ("launch_queue", "idle_split", "sync_calls", "alloc_calls", "small_kernels"):
        assert getattr(found, name).reason


def test_results_go_into_the_diagnosis(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100, launch=(thread, 0, 1))
    thread.api("cudaMalloc", 105, 106)
    thread.synchronize("device", 90, 101)
    device.kernel(GEMM, 200, 201, launch=(thread, 190, 195))
    measured = host_activity(view_of(builder, tmp_path))[0]
    assert measured.idle_split.host_ns == measured.sync_calls.idle_caused_ns == 95
    assert (measured.alloc_calls.groups[0].call, measured.small_kernels.names[0].count) == ("cudaMalloc", 1)
    assert (measured.graphs.time_frac, measured.gc.state) == (0.0, "not_measured")
    missing = host_activity(a_cpu_rank(tmp_path / "cpu"))[0]
    assert (missing.launch_queue.state, missing.launch_queue.median_depth) == ("not_measured", None)


def test_a_thread_for_every_kernel_is_refused_before_it_costs_anything(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    device = process.device()
    for i in range(1_001):
        device.kernel(
            GEMM, 1_000 * i + 500, 1_000 * i + 900, launch=(process.thread(), 1_000 * i, 1_000 * i + 9)
        )
    found = host_activity(view_of(builder, tmp_path))[0]
    assert found.idle_split.state == found.sync_calls.state == found.launch_queue.state == "not_measured"
    assert found.idle_split.reason == "1,001 threads launch this device's work: such a capture is damaged."
