"""Edits of buckets, messages, recomputation and pipelines: by hand, and laid down apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.replay.edits.buckets import other_bytes, split_buckets
from perfdoc.simulator.replay.edits.edit import Edit, with_durations, with_lags
from perfdoc.simulator.replay.edits.pipeline import without_recompute
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.load import read_trace
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import ALL_GATHER, ALL_REDUCE, GEMM, trace_of
from tests.captures.events import NcclPayload
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.simulator.rebuilt_of import after, as_dp, job_of, length

US = 1_000


def rank_of(builder: TimelineBuilder, folder: Path, **facts: int) -> Rebuilt:
    (view,) = views_of(trace_of(builder, folder), JobFacts(**facts))  # type: ignore[arg-type]
    return as_dp(rebuild_rank(view))


@pytest.fixture
def one_bucket(tmp_path: Path) -> Rebuilt:
    """A small all-reduce of 100 kB [4, 80) us, then ten kernels of the backward back to back [80, 1080),
    then one all-reduce of 1 MB [1080, 1480) on stream 20 that waits for them, then the optimizer's kernel
    [1480, 1580). The line through 76 and 400 us is 40 us + 0.36 ns a byte."""
    builder, thread, device = one_gpu()
    thread.range("perfdoc.step 0", 0, 90 * US)

    def reduce(host: int, size: int, start: int, end: int) -> None:
        payload = NcclPayload(communicator=5, bytes=size, reduction="Sum")
        thread.range("ncclAllReduce", host * US, (host + 3) * US, domain="NCCL", payload=payload)
        launch = (thread, (host + 1) * US, (host + 2) * US)
        device.kernel(ALL_REDUCE, start * US, end * US, stream=20, launch=launch)

    reduce(0, 100_000, 4, 80)
    thread.range("perfdoc.backward", 4 * US, 60 * US)
    for i in range(10):
        launch = (thread, (5 + 4 * i) * US, (7 + 4 * i) * US)
        device.kernel(GEMM, (80 + 100 * i) * US, (180 + 100 * i) * US, stream=7, launch=launch)
    record = device.record_event(7, launch=(thread, 62 * US, 63 * US))
    device.wait_event(20, record, launch=(thread, 64 * US, 65 * US))
    reduce(66, 1_000_000, 1080, 1480)
    record = device.record_event(20, launch=(thread, 70 * US, 71 * US))
    device.wait_event(7, record, launch=(thread, 72 * US, 73 * US))
    thread.range("perfdoc.optimizer", 74 * US, 85 * US)
    device.kernel(GEMM, 1480 * US, 1580 * US, stream=7, launch=(thread, 75 * US, 77 * US))
    return rank_of(builder, tmp_path)


def test_parts_of_a_bucket_go_with_the_backward(one_bucket: Rebuilt) -> None:
    """Four parts of 250 kB take 40 + 360 / 4 = 130 us each. The first is ready a quarter through the
    backward, at 80 + 250 = 330; three parts from then end at 720, so the last one goes when its gradients are
    there, at 1080, until 1210: 270 us less. In two parts of 220 us: 1080 + 220, 180 us less. In ten of 76 us:
    the nine before the last are through at 180 + 684 = 864; 324 us less."""
    before = length(one_bucket)
    for size, saved in ((250_000, 270), (500_000, 180), (100_000, 324)):
        assert before - after(one_bucket, split_buckets(size)) == saved * US
    with pytest.raises(ValueError, match="no dp reduction of more than 2,000,000 bytes"):
        split_buckets(2_000_000).apply(one_bucket)


def test_slow_parts_hold_one_another_up(one_bucket: Rebuilt) -> None:
    """With messages five times as slow a part of 250 kB takes 650 us. The first begins at 330, and the last
    of four ends at 330 + 2600 = 2930. As one it ends at 1080 + 2000 = 3080: 150 us are saved, not 3 x 450."""
    slow = replace(one_bucket, graph=replace(one_bucket.graph, duration_ns=_times(one_bucket, 5)))
    assert length(slow) - after(slow, split_buckets(250_000)) == pytest.approx(150 * US, abs=2)


def _times(rebuilt: Rebuilt, factor: int):  # type: ignore[no-untyped-def]
    duration = rebuilt.graph.duration_ns.copy()
    duration[rebuilt.bytes > 0] *= factor
    return duration


def test_half_the_bytes_keep_the_latency(one_bucket: Rebuilt) -> None:
    """400 us are 40 of latency and 360 in proportion to bytes: 180 less. The small one (36 of 76 us, 18 less)
    changes nothing that is waited for."""
    saved = length(one_bucket) - after(one_bucket, other_bytes(0.5, at_least_bytes=500_000))
    assert saved == 180 * US
    with pytest.raises(ValueError, match="at least 5,000,000"):
        other_bytes(0.5, at_least_bytes=5_000_000).apply(one_bucket)


def test_only_gradients_change_their_type(tmp_path: Path) -> None:
    """A kernel, an all-reduce of 1 MB [100, 500) and an all-gather of 600 kB [500, 740): no latency, 0.4 ns a
    byte. With half the bytes of gradients the reduction takes 200 us, and the gathering what it took."""
    builder, thread, device = one_gpu()
    thread.range("perfdoc.step 0", 0, 900 * US)
    names = (("ncclAllReduce", ALL_REDUCE), ("ncclAllGather", ALL_GATHER))
    for i, (call, kernel) in enumerate(names):
        payload = NcclPayload(communicator=5, bytes=1_000_000 - 400_000 * i)
        at = (10 + 10 * i) * US
        thread.range(call, at, at + 5 * US, domain="NCCL", payload=payload)
        launch = (thread, at + 1 * US, at + 2 * US)
        device.kernel(kernel, (100 + 400 * i) * US, (500 + 240 * i) * US, stream=20, launch=launch)
    device.kernel(GEMM, 30 * US, 50 * US, launch=(thread, 1 * US, 2 * US))
    rebuilt = rank_of(builder, tmp_path)

    def takes(edit: Edit) -> list[int]:
        found: list[int] = edit.apply(rebuilt).graph.duration_ns[rebuilt.bytes > 0].tolist()
        return found

    assert takes(other_bytes(0.5)) == [200 * US, 120 * US]
    gradients = other_bytes(0.5, reducing=True)
    assert takes(gradients) == [200 * US, 240 * US]
    gathers = replace(rebuilt, reduces=np.zeros_like(rebuilt.reduces))
    with pytest.raises(ValueError, match="no dp reduction"):
        gradients.apply(gathers)


def test_activations_that_are_kept(tmp_path: Path) -> None:
    """Kernels [10, 110), of a layer's forward again in the backward [110, 160), [160, 260): 250 us, then 200.
    Their launches lie early, so the host's time does not show."""
    builder, thread, device = one_gpu()
    thread.range("perfdoc.forward", 0, 4 * US)
    thread.range("perfdoc.backward", 5 * US, 20 * US)
    thread.range("perfdoc.forward layer=0", 6 * US, 10 * US)
    for host, start, end in ((1, 10, 110), (7, 110, 160), (12, 160, 260)):
        launch = (thread, host * US, (host + 1) * US)
        device.kernel(GEMM, start * US, end * US, stream=7, launch=launch)
    rebuilt = rank_of(builder, tmp_path)
    assert length(rebuilt) == 250 * US
    assert after(rebuilt, without_recompute()) == 200 * US


def passes(folder: Path, **facts: int) -> Rebuilt:
    """A forward and a backward, each of ten kernels of 10 us and ten of 100, back to back from 5 us on."""
    builder, thread, device = one_gpu()
    thread.range("perfdoc.forward", 0, 20 * US)
    thread.range("perfdoc.backward", 20 * US, 40 * US)
    at = 5
    for i in range(40):
        took = 10 if i % 2 else 100
        device.kernel(GEMM, at * US, (at + took) * US, stream=7, launch=(thread, i * US, (i + 1) * US))
        at += took
    return rank_of(builder, folder, **facts)


def test_what_is_not_known_is_not_guessed(tmp_path: Path, one_bucket: Rebuilt) -> None:
    rebuilt = passes(tmp_path)
    for edit, said in (
        (without_recompute(), "no range"),
        (split_buckets(10), "no dp communication"),
        (other_bytes(0.5), "no dp communication"),
    ):
        with pytest.raises(ValueError, match=said):
            edit.apply(rebuilt)


def without_host(rebuilt: Rebuilt) -> Rebuilt:
    """Neither calls nor what lies between them take any time."""
    host = rebuilt.graph.kind == TaskKind.HOST
    edges = rebuilt.graph.edges
    between = np.isin(edges.kind, (EdgeKind.HOST_ORDER, EdgeKind.HOST_HANDOVER)) & host[edges.target]
    lag = np.where(between, np.minimum(edges.lag_ns, 0), edges.lag_ns)
    return with_durations(with_lags(rebuilt, lag), np.where(host, 0, rebuilt.graph.duration_ns))


@pytest.mark.slow
def test_the_pair_of_captures_differs_by_its_hosts(shared_traces: Path) -> None:
    """docs/figures.md: 34 and 30 attention kernels in 300 ms, and without the host's time equally fast."""
    each: dict[str, list[float]] = {}
    for name, attentions in (("before", 34), ("after", 30)):
        views = views_of(read_trace(shared_traces / f"nsys/sp_2gpu_{name}.sqlite"))
        _, joined = job_of(views, views[0].facts)
        assert joined is not None
        each[name] = [length(made) / attentions for made in (joined, without_host(joined))]
    assert each["after"][0] / each["before"][0] == pytest.approx(1.13, abs=0.01)
    assert each["after"][1] / each["before"][1] == pytest.approx(1.01, abs=0.01)
