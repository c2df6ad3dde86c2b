"""A CPU rank's window rebuilt: a step by hand, and a real run with two processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.replay.edits.host import without_host_time
from perfdoc.simulator.replay.rebuilt import Rebuilt, rebuild_rank
from perfdoc.simulator.replay.unedited import replay
from perfdoc.traces.load import read_trace
from perfdoc.traces.run_facts import with_run_facts
from tests.analyzers.device_views import views_of
from tests.analyzers.tiny import trace_of
from tests.captures.timeline import TimelineBuilder
from tests.simulator.rebuilt_of import job_of, length
from tests.simulator.scaled import scaled_communication, scaled_kernels

US = 1_000
DP = "group=DATA_PARALLEL_GROUP pg=1 bytes=4096 seq=0"


def step(folder: Path) -> Rebuilt:
    """One step [0, 1000) us: data [0, 100), forward [100, 400), gc [410, 440), an all-reduce issued
    [450, 460) that runs until 700, backward [460, 600), a wait for it [600, 705), optimizer [705, 1000)."""
    builder = TimelineBuilder()
    process = builder.process(pid=77)
    main, backend = process.thread(tid=77), process.thread(tid=78)
    main.range("perfdoc.rank 3 world=8 device=cpu", 0, 0)
    for name, start, end in (
        ("perfdoc.step 0", 0, 1000),
        ("perfdoc.data", 0, 100),
        ("perfdoc.forward", 100, 400),
        ("perfdoc.gc generation=2", 410, 440),
        (f"perfdoc.comm.issue all_reduce {DP}", 450, 460),
        ("perfdoc.backward", 460, 600),
        (f"perfdoc.comm.wait all_reduce {DP}", 600, 705),
        ("perfdoc.optimizer", 705, 1000),
    ):
        main.range(name, start * US, end * US)
    backend.range(f"perfdoc.comm.run all_reduce {DP}", 450 * US, 700 * US, kind="start_end")
    (view,) = views_of(trace_of(builder, folder))
    return rebuild_rank(view)


def length_us(rebuilt: Rebuilt) -> int:
    ns = length(rebuilt)
    assert ns % US == 0
    return ns // US


def test_the_step_as_it_was(tmp_path: Path) -> None:
    """On the path: data 100, compute 300 + 295 (optimizer), the collective's 250 in place of backward's 140,
    5 of return; gc 30; and 20 us of Python before the issue at 450. 1000 in all."""
    found = replay(step(tmp_path))
    assert (found.measured_ns, found.error_frac) == (1000 * US, 0)
    assert found.critical_path == {
        "compute": 595 * US,
        "communication.dp": 250 * US,
        "data": 100 * US,
        "gc": 30 * US,
        "host": 20 * US,
        "host_return": 5 * US,
    }


def test_edits_of_the_step(tmp_path: Path) -> None:
    """Without data 900; without gc 970; with a collective that takes a tenth (25 us), the wait is over as it
    begins at 600 and the step ends at 600 + 295 = 895; with compute half as long (forward 150, backward 70,
    optimizer 147.5) the wait still lasts until 700 - 150 = 550, returns at 555 and ends at 702.5."""
    rebuilt = step(tmp_path)
    assert length_us(without_host_time("data").apply(rebuilt)) == 900
    assert length_us(without_host_time("gc").apply(rebuilt)) == 970
    assert length_us(without_host_time("data", keep_frac=0.25).apply(rebuilt)) == 925
    assert length_us(scaled_communication("dp", 0.1).apply(rebuilt)) == 895
    half = scaled_kernels(None, 0.5).apply(rebuilt)
    assert length(half) == 702_500
    both = without_host_time("gc").apply(without_host_time("data").apply(rebuilt))
    assert length_us(both) == 870


@pytest.mark.slow
def test_a_real_run(tmp_path: Path) -> None:
    """Two processes over gloo: each rank and both together replay within 5 %."""
    pytest.importorskip("torch")
    pytest.importorskip("megatron.core")
    out = tmp_path / "run"
    command = [sys.executable, "-m", "perfdoc", "run", "tiny", "train_iters=8", "lr_warmup_iters=2"]
    command += [f"data.data_cache={tmp_path / 'data'}", "--profile-start", "3", "-o", str(out)]
    command += ["--profiler", "torch"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    paths = sorted((out / "traces").glob("rank*.json.gz"))
    views = [v for p in paths for v in views_of(with_run_facts(read_trace(p)))]
    assert len(views) == 2
    for view in views:
        found = replay(rebuild_rank(view))
        assert found.error_frac == pytest.approx(0, abs=0.05)
        assert found.critical_path["compute"] > 0
    whole, joined = job_of(views, views[0].facts)
    assert joined is not None
    assert whole.worst_error_frac == pytest.approx(0, abs=0.05)
    assert int((joined.graph.kind == TaskKind.MEETING).sum()) > 0


def test_a_collective_queues_behind_the_one_before(tmp_path: Path) -> None:
    """A step [0, 1000) us: forward [0, 100); an all-reduce issued at 100 and done at 300; one issued at 150
    and done at 450, so 150 us of its own; backward [160, 200); a wait for the second [200, 455); optimizer to
    1000. At half the length: 100 + 100, then 75: the wait returns at 275 + 5, 175 us earlier."""
    builder = TimelineBuilder()
    process = builder.process(pid=77)
    main, backend = process.thread(tid=77), process.thread(tid=78)
    main.range("perfdoc.rank 0 world=2 device=cpu", 0, 0)
    group = "all_reduce group=DATA_PARALLEL_GROUP pg=1 bytes=4096"
    for name, start, end in (
        ("perfdoc.step 0", 0, 1000),
        ("perfdoc.forward", 0, 100),
        (f"perfdoc.comm.issue {group} seq=0", 100, 110),
        (f"perfdoc.comm.issue {group} seq=1", 150, 160),
        ("perfdoc.backward", 160, 200),
        (f"perfdoc.comm.wait {group} seq=1", 200, 455),
        ("perfdoc.optimizer", 455, 1000),
    ):
        main.range(name, start * US, end * US)
    for number, start, end in ((0, 100, 300), (1, 150, 450)):
        backend.range(f"perfdoc.comm.run {group} seq={number}", start * US, end * US, kind="start_end")
    (view,) = views_of(trace_of(builder, tmp_path))
    rebuilt = rebuild_rank(view)
    assert length_us(rebuilt) == 1000
    assert length_us(scaled_communication("dp", 0.5).apply(rebuilt)) == 825
