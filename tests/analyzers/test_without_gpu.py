"""What a capture without GPU activity shows instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.host.without_gpu import host_contents
from perfdoc.traces.load import read_trace
from tests.captures.kineto import write_kineto
from tests.captures.timeline import TimelineBuilder
from tests.command import perfdoc

US = 1_000


def host_alone(folder: Path) -> Path:
    """Two steps of 100 us on one thread; in each `aten::linear` of 40 us holds `aten::mm` of 30 us. A second
    thread waits for 150 us."""
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    main, other = process.thread(), process.thread()
    for i in range(2):
        at = 100 * i * US
        main.range(f"ProfilerStep#{i}", at, at + 100 * US)
        process.operator(main, "aten::linear", at + 10 * US, at + 50 * US)
        process.operator(main, "aten::mm", at + 15 * US, at + 45 * US)
    other.range("gloo:all_reduce", 20 * US, 170 * US)
    path = folder / "host.json"
    write_kineto(builder.build(), path, process.pid)
    return path


def test_self_time_threads_and_steps(tmp_path: Path) -> None:
    found = host_contents(read_trace(host_alone(tmp_path)))
    assert (found.span_ns, found.threads) == (200 * US, 2)
    assert found.steps == [("ProfilerStep#0", 100 * US), ("ProfilerStep#1", 100 * US)]
    assert [(t.name, t.count, t.threads, t.self_ns) for t in found.times] == [
        ("gloo:all_reduce", 1, 1, 150 * US),
        ("aten::mm", 2, 1, 60 * US),
        ("aten::linear", 2, 1, 20 * US),
    ]


def test_the_refusal_says_what_is_there(tmp_path: Path) -> None:
    done = perfdoc("analyze", host_alone(tmp_path))
    assert done.returncode == 2
    first, second, last = done.stderr.splitlines()
    assert all(w in first for w in ("200 µs", "2 threads", "2 steps", "ProfilerStep#"))
    assert second.index("gloo:all_reduce") < second.index("aten::mm 60 µs")
    assert "ProfilerActivity.CUDA" in last


def test_a_capture_of_one_operator_has_no_steps(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process(rank=0)
    process.operator(process.thread(), "aten::add", 0, 10)
    write_kineto(builder.build(), tmp_path / "one.json", process.pid)
    found = host_contents(read_trace(tmp_path / "one.json"))
    assert (found.steps, len(found.times)) == ([], 1)
    assert "no step ranges" in found.words[0]


def test_apples_gpus_are_not_asked_for_with_cudas_switch(tmp_path: Path) -> None:
    said = {}
    for name in ("aten::_scaled_dot_product_attention_math_for_mps", "aten::clamps"):
        builder = TimelineBuilder()
        process = builder.process()
        process.operator(process.thread(), name, 0, 10)
        path = tmp_path / f"{name[-4:]}.json"
        write_kineto(builder.build(), path, process.pid)
        said[name[-4:]] = perfdoc("analyze", path).stderr.splitlines()[-1]
    assert ["ProfilerActivity.CUDA" in text for text in said.values()] == [False, True]
    assert "Apple" in said["_mps"]


@pytest.mark.parametrize(
    ("name", "call", "on_cpu"),
    [
        ("graph_0_cpp_fused__log_softmax_3", "", True),
        ("aten::mkldnn_convolution", "", True),
        ("aten::_scaled_dot_product_flash_attention_for_cpu", "", True),
        ("aten::mkldnn_convolution", "cudaLaunchKernel", False),  # of what prepares batches
        ("aten::addmm", "", False),  # on either
    ],
)
def test_layers_on_the_cpu_are_no_capture_without_the_gpu(
    name: str, call: str, on_cpu: bool, tmp_path: Path
) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    thread = process.thread()
    process.operator(thread, name, 5, 10)
    if call:
        thread.api(call, 30, 40)
    write_kineto(builder.build(), tmp_path / "cpu.json", process.pid)
    last = perfdoc("analyze", tmp_path / "cpu.json").stderr.splitlines()[-1]
    assert ("ran on the CPU" in last, "ProfilerActivity.CUDA" in last) == (on_cpu, not on_cpu)


def test_graphs_that_are_captured_run_at_their_replay(tmp_path: Path) -> None:
    """vLLM's ranges around each capture, or the calls, tell it: the GPU was traced, and no kernel ran. Where
    they are replayed kernels ran."""
    for replayed in (False, True):
        builder = TimelineBuilder()
        process = builder.process()
        thread = process.thread()
        thread.range("capture_256_decode", 0, 20)
        process.operator(thread, "aten::mm", 5, 10)
        if replayed:
            thread.api("cudaGraphLaunch", 30, 40)
        path = tmp_path / f"graph_capture_rank_{replayed:d}.json"
        write_kineto(builder.build(), path, process.pid)
        last = perfdoc("analyze", path).stderr.splitlines()[-1]
        assert ("replayed" in last) is not replayed
        assert ("ProfilerActivity.CUDA" in last) is replayed
