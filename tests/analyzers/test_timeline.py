"""The timeline of ranks: planted steps, real traces against their ledgers, one step and one clock for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.ledger.steps import build_ledger, step_ledgers
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.pipeline.passes import Passes
from perfdoc.analyzers.timeline import rank as module
from perfdoc.analyzers.timeline.job import MAX_ALL_PASSES, RankInput, job_timeline
from perfdoc.analyzers.timeline.rank import (
    LIMITS,
    StepTimeline,
    communication_track,
    compute_track,
    host_track,
    ledger_pieces,
    ledger_track,
    rank_timeline,
)
from perfdoc.analyzers.timeline.segments import Pieces, Segments, drawn
from perfdoc.results.ranks import LEAVES
from perfdoc.results.timeline import Timeline
from perfdoc.traces.load import read_trace
from tests.amount import some
from tests.analyzers.device_views import view_of, views_of
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu


def by_code(stretches: Pieces | Segments) -> list[int]:
    """Nanoseconds by leaf; of no leaf none."""
    length = stretches.end_ns - stretches.start_ns if isinstance(stretches, Pieces) else stretches.duration_ns
    return [int(length[stretches.code == i].sum()) for i in range(len(LEAVES))]


def planted(shift: int = 0, steps: tuple[int, ...] = (1_000,)) -> TimelineBuilder:
    """Steps from 100 on, each of: gemm 100 ns, all-reduce that ends 60 ns after it, a copy of 40, and then
    nothing launched until 50 before the next step; collection in 30 of that."""
    builder, thread, device = one_gpu(rank=0)
    at = 100 + shift
    for i, length in enumerate(steps):
        thread.range(f"perfdoc.step {i}", at - 50, at - 50 + length)
        device.kernel(GEMM, at, at + 100, launch=(thread, at - 50, at - 40))
        device.kernel(ALL_REDUCE, at + 50, at + 160, stream=20, launch=(thread, at - 30, at - 20))
        device.copy("host_to_device", 64, at + 160, at + 200, launch=(thread, at - 15, at - 10))
        thread.range("perfdoc.gc generation=2", at + 300, at + 330)
        at += length
    thread.range("perfdoc.step 99", at - 50, at)
    device.kernel(GEMM, at, at + 10, launch=(thread, at - 50, at - 40))
    return builder


def rows(found: object, *names: str) -> list[tuple[int, ...]]:
    return list(zip(*(getattr(found, n).tolist() for n in names), strict=True))


def test_tracks_by_hand(tmp_path: Path) -> None:
    view = view_of(planted(), tmp_path)
    found = ledger_track(view, 100, 1_100)
    assert [
        (a, n, LEAVES[c], k) for a, n, c, k in rows(found, "start_ns", "duration_ns", "code", "count")
    ] == [
        (100, 100, "compute", 2),  # the all-reduce begins in it as well
        (200, 60, "exposed_comm.unknown", 0),
        (260, 40, "exposed_memcpy", 1),
        (300, 100, "idle.host", 0),
        (400, 30, "idle.gc", 0),
        (430, 630, "idle.host", 0),  # to the launch's return at 1060
        (1_060, 40, "idle.launch_latency", 0),
    ]
    assert rows(drawn(compute_track(view, 100, 1_100)), "start_ns", "duration_ns", "count") == [(100, 100, 1)]
    assert rows(drawn(communication_track(view, 100, 1_100)), "start_ns", "duration_ns") == [(150, 110)]
    host = drawn(host_track(view, 100, 1_100))
    names = (
        "allocation",
        "synchronising",
        "module_load",
        "launch",
        "stream_allocation",
        "other",
        "data",
        "gc",
    )
    assert [(a, n, names[c]) for a, n, c in rows(host, "start_ns", "duration_ns", "code")] == [
        (400, 30, "gc"),
        (1_050, 10, "launch"),
    ]


def agree(view: DeviceView) -> None:
    """Every step's tracks against its ledger."""
    ledgers = step_ledgers(view)
    for i, step in enumerate(view.window.step_list):
        pieces = ledger_pieces(view, step.start_ns, step.end_ns)
        assert by_code(pieces) == [int(ledgers.leaf_ns[leaf][i]) for leaf in LEAVES]
        compute = drawn(compute_track(view, step.start_ns, step.end_ns))
        assert int(compute.duration_ns.sum()) == int(ledgers.leaf_ns["compute"][i])
        comm = drawn(communication_track(view, step.start_ns, step.end_ns))
        assert int(comm.duration_ns.sum()) == int(
            view.activity.comm.covered_within(step.start_ns, step.end_ns)
        )
    for found in rank_timeline(view):
        ledger = build_ledger(view.activity, found.start_ns, found.end_ns, view.idle_inputs, view.gaps)
        sums_ns = by_code(found.tracks["ledger"].segments)
        assert dict(zip(LEAVES, sums_ns, strict=True)) == ledger.by_leaf
        for key, track in found.tracks.items():
            assert len(drawn(track.segments)) <= LIMITS[key]
            assert int(track.segments.item.max(initial=-1)) < len(track.names)


@pytest.mark.parametrize("seed", range(6))
def test_random_steps_agree_with_the_ledger(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    builder, thread, device = one_gpu()
    for i in range(4):
        thread.range(f"step {i}", 200 * i, 200 * i + 190)
    for _ in range(60):
        made = int(rng.integers(0, 790))
        start = made + int(rng.integers(0, 120))
        launch = (thread, made, made + int(rng.integers(0, 20)))
        end = start + int(rng.integers(1, 60))
        if rng.random() < 0.2:
            device.copy("device_to_host", 8, start, end, stream=9, launch=launch)
        else:
            name = GEMM if rng.random() < 0.6 else ALL_REDUCE
            device.kernel(name, start, end, stream=int(rng.integers(3)), launch=launch)
    thread.range("perfdoc.gc generation=0", 100, 180)
    thread.range("data_loading", 150, 260)
    agree(view_of(builder, tmp_path))


@pytest.mark.parametrize(
    "name",
    some(
        [
            "kineto/ddp_nccl_metadata_a100_rank0of2.json.gz",
            "kineto/dlrm_layernorm_a100_rank3of8.json.gz",
            "kineto/resnet50_num_workers_0_v100.pt.trace.json.gz",
            "nsys/cuda_graph_a100.sqlite",
            "nsys/host_bound_2gpu_h100.sqlite",
        ],
        lambda name: "dlrm" not in name and "resnet" not in name,
    ),
)
def test_real_traces_agree_with_the_ledger(shared_traces: Path, name: str) -> None:
    for view in views_of(read_trace(shared_traces / name)):
        agree(view)


def of(builder: TimelineBuilder, folder: Path, name: str) -> Path:
    return write_nsys_sqlite(builder.build(), folder / name)


def job(*paths: Path) -> Timeline:
    return measure_job([measure_capture(p, WindowRequest()) for p in paths]).timeline


def test_the_median_step_is_shown(tmp_path: Path) -> None:
    # Of 1000, 3000, 2000, 2100 and the last (10 long) the lower median is 2000.
    found = job(of(planted(steps=(1_000, 3_000, 2_000, 2_100)), tmp_path, "a.sqlite"))
    assert (found.state, found.step) == ("measured", "perfdoc.step 2")
    (rank,) = found.ranks
    assert (rank.start_ns, rank.duration_ns, rank.offset_ns, rank.aligned) == (4_100, 2_000, 0, True)
    ledger = rank.tracks[0]
    assert ledger.start_ns[0] == 0
    assert sum(ledger.duration_ns) == 2_000
    compute = next(t for t in rank.tracks if t.kind == "compute")
    assert [compute.names[i] for i in compute.name] == [GEMM]
    assert [compute.codes[c] for c in compute.code] == ["gemm"]


def test_without_collectives_clocks_of_two_captures_are_not_aligned(tmp_path: Path) -> None:
    builders = [TimelineBuilder(utc_origin_ns=None) for _ in range(2)]
    for i, builder in enumerate(builders):
        process = builder.process(rank=i)
        thread, device = process.thread(), process.device()
        thread.range("perfdoc.step 0", 0, 900)
        device.kernel(GEMM, 10 + 500 * i, 800, launch=(thread, 1, 2))
    found = job(*(of(b, tmp_path, f"{i}.sqlite") for i, b in enumerate(builders)))
    assert [r.offset_ns for r in found.ranks] == [0, 0]
    assert [r.aligned for r in found.ranks] == [True, False]
    assert "1 of 2 ranks were not compared" in found.notes[0]
    assert found.resolution_ns is None


@pytest.mark.parametrize(("names", "compared"), [(("s", "s"), True), (("s 1", "s 2"), False)])
def test_different_steps_are_not_compared(
    shared_traces: Path, names: tuple[str, str], compared: bool
) -> None:
    paths = [shared_traces / "kineto" / f"dlrm_8gpu_v100_rank{i}.pt.trace.json.gz" for i in (0, 1)]
    captures = [measure_capture(p, WindowRequest()) for p in paths]
    ranks = [
        RankInput(
            rank=i,
            label=f"rank {i}",
            capture=i,
            steps=[replace(step, name=name) for step in capture.ranks[0].timeline],
            step_names=[name],
            passes=capture.ranks[0].pipeline.passes,
        )
        for i, (capture, name) in enumerate(zip(captures, names, strict=True))
    ]
    found = job_timeline(ranks, measure_job(captures).clocks)
    assert all(rank.aligned for rank in found.ranks)
    assert (found.resolution_ns is not None) == compared
    assert any(rank.offset_ns for rank in found.ranks) == compared
    assert ("no step is typical of all ranks" in " ".join(found.notes)) != compared


def test_two_ranks_of_one_capture_keep_their_distance(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    for i in range(2):
        process = builder.process(pid=1_000 + i, rank=i)
        thread, device = process.thread(), process.device()
        thread.range("perfdoc.step 0", 0, 900)
        device.kernel(GEMM, 10 + 70 * i, 800, launch=(thread, 1, 2))
    found = job(of(builder, tmp_path, "a.sqlite"))
    assert [(r.offset_ns, r.duration_ns, r.aligned) for r in found.ranks] == [(0, 790, True), (70, 720, True)]
    assert not found.notes


def test_of_a_very_full_window_without_steps_the_middle_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = TimelineBuilder()
    device = builder.process().device()
    for i in range(20):
        device.kernel(GEMM, 100 * i, 100 * i + 60)
    view = view_of(builder, tmp_path)
    (whole,) = rank_timeline(view)
    assert (whole.start_ns, whole.end_ns) == (0, 1_960)
    monkeypatch.setattr(module, "MOST_ACTIVITIES", 10)
    (middle,) = rank_timeline(view)
    # Five are left out on either side.
    assert (middle.name, middle.start_ns, middle.end_ns) == ("", 500, 1_500)
    compute = drawn(middle.tracks["compute"].segments)
    assert (int(compute.duration_ns.sum()), int(compute.count.sum())) == (600, 10)


def test_passes_of_all_ranks_are_bounded() -> None:
    # 64 ranks of 900 passes are 57,600: every third shows its own.
    n = 900
    passes = Passes(
        step=np.zeros(n, np.int64),
        is_forward=np.arange(n) % 2 == 0,
        micro_batch=np.arange(n),
        start_ns=10 * np.arange(n),
        end_ns=10 * np.arange(n) + 5,
    )
    step = StepTimeline(name="s", start_ns=0, end_ns=10 * n, tracks={})
    ranks = [
        RankInput(rank=i, label=f"rank {i}", capture=0, steps=[step], step_names=["s"], passes=passes)
        for i in range(64)
    ]
    found = job_timeline(ranks, measure_job([]).clocks)
    assert [len(r.tracks) for r in found.ranks] == [int(i % 3 == 0) for i in range(64)]
    assert sum(len(t.start_ns) for r in found.ranks for t in r.tracks) <= MAX_ALL_PASSES


def test_the_step_that_is_drawn_shows_what_the_mean_step_loses(tmp_path: Path) -> None:
    """Two steps wait, the last takes 10 ns: the mean is 10,510 / 6 = 1,752 ns, the median 1,000."""
    view = view_of(planted(steps=(1_000, 1_000, 1_000, 2_000, 5_500)), tmp_path)
    first, *others = rank_timeline(view)
    assert (first.name, first.end_ns - first.start_ns) == ("perfdoc.step 3", 2_000)
    assert others[0].name == "perfdoc.step 4"  # farther from the mean than those of 1,000, which show less
