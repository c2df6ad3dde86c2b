"""The builder: what it assigns, what it accepts, what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from tests.captures.events import CopyKind, SyncKind
from tests.captures.timeline import TimelineBuilder

HOSTILE = (
    "</script><script>alert(1)</script>",
    "'; DROP TABLE x; --",
    "\x00\x1b[31m\u202e",
    "k" * 100_000,
    "",
)


def test_five_kernels_take_five_lines() -> None:
    t = TimelineBuilder()
    d = t.process().device()
    for i in range(5):
        d.kernel("gemm", 10 * i, 10 * i + 7)
    timeline = t.build()
    assert [(k.start_ns, k.end_ns) for k in timeline.kernels] == [
        (0, 7),
        (10, 17),
        (20, 27),
        (30, 37),
        (40, 47),
    ]
    assert {k.stream for k in timeline.kernels} == {7}
    assert timeline.end_ns == 47
    assert not timeline.api_calls


def test_correlations_are_unique_in_a_process_and_link_launch_to_work() -> None:
    t = TimelineBuilder()
    for pid in (1, 2):
        p = t.process(pid=pid)
        th, d = p.thread(), p.device()
        d.kernel("a", 100, 200, launch=(th, 10, 20))
        d.copy("device_to_host", 8, 200, 300, launch=(th, 20, 30))
        d.memset(8, 300, 400, launch=(th, 30, 40, "cuMemsetD8Async"))
        d.kernel("b", 400, 500)
    timeline = t.build()
    work = [(r.pid, r.correlation) for r in timeline.work]
    assert len(set(work)) == len(work) == 8
    calls = {(a.pid, a.correlation): a.name for a in timeline.api_calls}
    assert [calls.get((k.pid, k.correlation)) for k in timeline.kernels] == ["cudaLaunchKernel", None] * 2
    assert [calls[c.pid, c.correlation] for c in timeline.copies] == ["cudaMemcpyAsync"] * 2
    assert [calls[m.pid, m.correlation] for m in timeline.memory_sets] == ["cuMemsetD8Async"] * 2
    assert [c.kind for c in timeline.copies] == [CopyKind.DEVICE_TO_HOST] * 2


def test_kernels_of_a_graph_share_the_correlation_of_one_call() -> None:
    t = TimelineBuilder()
    p = t.process()
    th, d = p.thread(), p.device()
    call = th.api("cudaGraphLaunch", 0, 5)
    for node in (1, 2):
        d.kernel("k", 10 * node, 10 * node + 5, correlation=call, graph_node=node)
    timeline = t.build()
    assert [(k.correlation, k.graph_node) for k in timeline.kernels] == [(call, 1), (call, 2)]


def test_an_event_edge_names_its_record_even_when_the_handle_is_reused() -> None:
    t = TimelineBuilder()
    p = t.process()
    th, d = p.thread(), p.device()
    first = d.record_event(20, launch=(th, 0, 1), event=4)
    second = d.record_event(21, launch=(th, 1, 2), event=4)
    d.wait_event(7, second, launch=(th, 2, 3))
    (wait,) = t.build().synchronizations
    assert wait.kind is SyncKind.STREAM_WAIT_EVENT
    assert wait.record is second
    assert first.event == second.event == 4
    assert first.event_sync != second.event_sync


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_accepted(name: str) -> None:
    t = TimelineBuilder()
    p = t.process(name=name)
    th = p.thread(name=name)
    p.device(gpu_name=name).kernel(name, 0, 1, full_name=name)
    th.range(name, 0, 1, domain=name)
    assert t.build().kernels[0].name == name


def test_numpy_integers_become_plain_ones() -> None:
    t = TimelineBuilder()
    t.process().device().kernel("k", np.int64(3), np.int32(4))  # type: ignore[arg-type]
    (kernel,) = t.build().kernels
    assert (type(kernel.start_ns), type(kernel.end_ns)) == (int, int)


def test_a_wrong_value_is_named_with_its_call() -> None:
    t = TimelineBuilder()
    p = t.process(pid=7)
    th, d = p.thread(), p.device()
    other = t.process(pid=8)
    record = d.record_event(7)
    cases = (
        (lambda: d.kernel("k", 10, 9), r"kernel: end_ns .*10.* 9 "),
        (lambda: d.kernel("k", -1, 9), r"kernel: start_ns -1 "),
        (lambda: d.kernel("k", 0, 2**63), r"kernel: end_ns .*9223372036854775808"),
        (lambda: d.kernel("k", 0.5, 9), r"kernel: start_ns 0\.5 "),  # type: ignore[arg-type]
        (lambda: d.kernel("\ud800", 0, 1), r"kernel: name .*surrogate"),
        (lambda: d.kernel("k", 0, 1, grid=(0, 1, 1)), r"kernel: grid 0 "),
        (lambda: d.kernel("k", 0, 1, launch=(th, 0, 1), correlation=3), r"kernel: .*not both"),
        (
            lambda: d.kernel("k", 0, 1, launch=(other.thread(), 0, 1)),
            r"kernel: launch thread .*another process",
        ),
        (lambda: d.copy("host_to_device", -4, 0, 1), r"copy: size_bytes -4 "),
        (lambda: th.range("r", 5, 4), r"range: end_ns .* 4 "),
        (lambda: th.synchronize("stream", 0, 1), r"synchronize: stream None"),
        (
            lambda: other.device().wait_event(7, record, launch=(th, 0, 1)),
            r"wait_event: event 1 is of process 7",
        ),
        (lambda: t.process(pid=7), r"process: pid 7"),
        (lambda: t.process(pid=2**24), r"process: pid 16777216"),
        (lambda: p.device(0), r"device: ordinal 0"),
        (lambda: p.thread(7), r"thread: tid 7"),
    )
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
    assert not t.build().kernels, "a refused kernel must not be on the timeline"
