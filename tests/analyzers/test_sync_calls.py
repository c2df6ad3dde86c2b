from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.activity import host_activity
from perfdoc.results.host import SyncCalls
from perfdoc.traces.kineto.read import read_kineto
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.host_brute import random_view
from tests.analyzers.tiny import GEMM
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder, one_gpu

US = 1000


def syncs_of(view: DeviceView) -> SyncCalls:
    found = host_activity(view)[0].sync_calls
    assert found.state == "measured"
    return found


def test_a_wait_costs_the_gap_that_begins_in_it(tmp_path: Path) -> None:
    # The host waits [20, 103) us; the device is done at 100 and gets its next kernel when the launch returns
    # at 150: 50 us of idle, of which 3 inside the call. Then Python is late on its own: idle [160, 200).
    builder = TimelineBuilder()
    process = builder.process()
    thread, watchdog, device = process.thread(), process.thread(), process.device()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 5 * US))
    watchdog.synchronize("device", 0, 200 * US)  # launches nothing, holds up nobody
    thread.range("perfdoc.optimizer", 15 * US, 110 * US)
    thread.synchronize("stream", 20 * US, 103 * US, stream=7)
    device.kernel(GEMM, 150 * US, 160 * US, launch=(thread, 145 * US, 150 * US))
    device.kernel(GEMM, 200 * US, 210 * US, launch=(thread, 190 * US, 200 * US))
    found = syncs_of(view_of(builder, tmp_path))
    assert (found.count, found.host_ns) == (1, 83 * US)
    assert (found.idle_inside_ns, found.idle_caused_ns) == (3 * US, 50 * US)
    (group,) = found.groups
    assert (group.call, group.range_name, group.operator) == (
        "cudaStreamSynchronize",
        "perfdoc.optimizer",
        None,
    )
    assert found.call_site is None
    assert found.call_site_reason.startswith("Python stacks of Nsight captures are not read")


def test_a_wait_on_an_idle_device_costs_its_own_time(tmp_path: Path) -> None:
    # The device is dry from 100 us on, the call [120, 130) waits for nothing: 10 us, not the gap.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 5 * US))
    thread.synchronize("device", 120 * US, 130 * US)
    device.kernel(GEMM, 200 * US, 210 * US, launch=(thread, 190 * US, 200 * US))
    found = syncs_of(view_of(builder, tmp_path))
    assert (found.idle_inside_ns, found.idle_caused_ns) == (10 * US, 10 * US)


def test_of_two_threads_that_wait_the_one_that_launches_next_answers(tmp_path: Path) -> None:
    # The backward's thread launched what ran last, both wait when the device runs dry at 100 us.
    builder = TimelineBuilder()
    process = builder.process()
    forward, backward, device = process.thread(), process.thread(), process.device()
    device.kernel(GEMM, 0, 50 * US, launch=(forward, 0, 5 * US))
    device.kernel(GEMM, 50 * US, 100 * US, launch=(backward, 10 * US, 15 * US))
    forward.synchronize("stream", 20 * US, 110 * US, stream=7)
    backward.synchronize("device", 20 * US, 105 * US)
    device.kernel(GEMM, 150 * US, 160 * US, launch=(forward, 145 * US, 150 * US))
    groups = {g.call: g.idle_caused_ns for g in syncs_of(view_of(builder, tmp_path)).groups}
    assert groups == {"cudaStreamSynchronize": 50 * US, "cudaDeviceSynchronize": 0}


def test_collection_after_a_wait_is_not_the_waits(tmp_path: Path) -> None:
    # The gap [100, 200) begins in the wait; gc [110, 170) of it has its own leaf.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 5 * US))
    thread.synchronize("device", 50 * US, 101 * US)
    thread.range("perfdoc.gc generation=2", 110 * US, 170 * US)
    device.kernel(GEMM, 200 * US, 210 * US, launch=(thread, 190 * US, 200 * US))
    assert syncs_of(view_of(builder, tmp_path)).idle_caused_ns == 40 * US


def copies(builder: TimelineBuilder) -> None:
    """Three copies by name asynchronous: to pageable memory (returns when done: `.item()`), from pageable
    memory (returns once it has begun, long after the call), and a pinned one that returns at once."""
    process = builder.process()
    thread, device = process.thread(), process.device()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 5 * US))
    device.copy("device_to_host", 4, 102 * US, 104 * US, launch=(thread, 10 * US, 106 * US))
    process.operator(thread, "aten::item", 8 * US, 112 * US)
    process.operator(thread, "aten::_local_scalar_dense", 9 * US, 111 * US)
    device.kernel(GEMM, 130 * US, 200 * US, launch=(thread, 120 * US, 125 * US))
    device.copy("host_to_device", 4096, 201 * US, 240 * US, launch=(thread, 130 * US, 220 * US))
    device.copy("host_to_device", 4096, 250 * US, 260 * US, launch=(thread, 221 * US, 225 * US))


def test_a_copy_that_waited_counts_and_a_pinned_one_does_not(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    copies(builder)
    path = write_kineto(builder.build(), tmp_path / "x.json", 1000)
    (view,) = views_of(read_kineto(path))
    found = syncs_of(view)
    assert found.count == 2
    first, second = found.groups
    # Two gaps begin inside the first call: [100, 102), the copy's own call being still open, and [104, 130),
    # whose host part ends as the launch returns at 125: 2 + 21. One in the second, [200, 201).
    assert (first.call, first.operator, first.idle_caused_ns) == (
        "cudaMemcpyAsync",
        "aten::_local_scalar_dense",
        23 * US,
    )
    assert (second.operator, second.host_ns, second.idle_caused_ns) == (None, 90 * US, 1 * US)


def test_a_copy_that_begins_at_once_is_not_waited_for(tmp_path: Path) -> None:
    # To the device in 35 us; the call returns while it runs, and nothing held it up.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 100 * US, launch=(thread, 0, 5 * US))
    device.copy("host_to_device", 4096, 105 * US, 140 * US, launch=(thread, 100 * US, 110 * US))
    assert syncs_of(view_of(builder, tmp_path)).count == 0


def test_calls_are_grouped_by_where_they_are(tmp_path: Path) -> None:
    # Waits in two layers and two without a range. Each of the first costs 10 us of gap, of the others 5.
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 0, 10 * US, launch=(thread, 0, 0))
    for i, (name, gap) in enumerate((("layer=1", 10), ("layer=2", 10), ("", 5), ("", 5))):
        at = 100 * i * US
        if name:
            thread.range(f"perfdoc.forward {name}", at, at + 50 * US)
        thread.synchronize("device", at + 1 * US, at + 11 * US)
        end = at + (10 + gap) * US
        device.kernel(GEMM, end, at + 110 * US, launch=(thread, end - 1 * US, end))
    found = syncs_of(view_of(builder, tmp_path))
    assert [(g.range_name, g.count, g.idle_caused_ns) for g in found.groups] == [
        ("perfdoc.forward layer=#", 2, 20 * US),
        (None, 2, 10 * US),
    ]


@pytest.mark.parametrize("seed", range(8))
def test_no_nanosecond_is_charged_twice(tmp_path: Path, seed: int) -> None:
    view = random_view(seed, tmp_path)
    activity = host_activity(view)[0]
    found, split = activity.sync_calls, activity.idle_split
    assert found.idle_caused_ns is not None
    assert split.host_ns is not None
    assert 0 <= found.idle_caused_ns <= split.host_ns
    assert sum(g.idle_caused_ns for g in found.groups) == found.idle_caused_ns
    assert sum(g.count for g in found.groups) == found.count
    assert found.groups == sorted(found.groups, key=lambda g: -g.idle_caused_ns)


def test_what_a_real_trace_says(shared_traces: Path) -> None:
    # DLRM reads sizes of its all-to-alls on the host: 120 waits in 6 steps, most of them copies by name
    # asynchronous, that leave 76 of 460 ms to the host; the loss is read in aten::_local_scalar_dense.
    path = shared_traces / "kineto" / "dlrm_layernorm_a100_rank3of8.json.gz"
    (view,) = views_of(read_kineto(path))
    found = syncs_of(view)
    assert (found.count, found.host_ns) == (120, 75_858_000)
    assert {g.operator for g in found.groups} >= {"aten::copy_", "aten::_local_scalar_dense"}
    assert any("all2all" in (g.range_name or "") for g in found.groups)


def test_python_functions_are_call_sites_where_stacks_were_recorded(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    copies(builder)
    path = write_kineto(builder.build(), tmp_path / "x.json", 1000)
    (view,) = views_of(read_kineto(path))
    assert "with_stack=True" in syncs_of(view).call_site_reason
    document = json.loads(path.read_text())
    call = next(e for e in document["traceEvents"] if e.get("cat") == "cuda_runtime")

    def frame(name: str, start_us: float, end_us: float) -> dict[str, object]:
        # Microseconds of the timeline, on the clock of the file.
        at = call["ts"] + start_us
        where = {"pid": call["pid"], "tid": call["tid"]}
        return {
            "ph": "X",
            "cat": "python_function",
            "name": name,
            "ts": at,
            "dur": end_us - start_us,
            **where,
        }

    document["traceEvents"] += [
        frame("train/loop.py(42): train_step", 1, 300),
        frame("train/loss.py(7): mean_loss", 7, 113),
        frame("torch/_tensor.py(12): item", 7.5, 112.5),
        frame("<built-in method item of Tensor object at 0x7f>", 7.7, 112.2),
        {**frame("train/bad.py(1): damaged", 1, 2), "ts": "never"},
    ]
    path.write_text(json.dumps(document))
    (view,) = views_of(read_kineto(path))
    found = syncs_of(view)
    # The copy of 10 us was made in mean_loss, that of 130 us in train_step.
    assert [g.call_site for g in found.groups] == [
        "train/loss.py(7): mean_loss",
        "train/loop.py(42): train_step",
    ]
    assert (found.call_site, found.call_site_reason) == ("train/loss.py(7): mean_loss", "")
