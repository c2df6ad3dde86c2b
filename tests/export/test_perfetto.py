"""The Perfetto file against planted truth and against the ledger; slices on lanes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.job import measure_job
from perfdoc.analyzers.measure import measure_capture
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.asked import parse_request
from perfdoc.export.captures import run
from perfdoc.export.tracks import MAX_TRACKS_OF_A_KIND
from perfdoc.export.writer import Events, Lanes, disjoint, nested
from perfdoc.profiling.errors import UserError
from tests.amount import some
from tests.analyzers.tiny import ALL_REDUCE, GEMM
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu
from tests.export.perfetto_file import PerfettoTrace, Slice, read
from tests.reports.hostile import TEXTS


def exported(folder: Path, *paths: Path, name: str = "out.pftrace") -> tuple[PerfettoTrace, list[str]]:
    said: list[str] = []
    run(parse_request([str(p) for p in paths]), folder / name, said.append)
    return read(folder / name), said


def planted(folder: Path, builder: TimelineBuilder, name: str = "a.sqlite") -> Path:
    return write_nsys_sqlite(builder.build(), folder / name)


def brief(slices: list[Slice]) -> list[tuple[int, int, str]]:
    return [(s.start, s.length, s.name) for s in sorted(slices)]


def test_every_slice_by_hand(tmp_path: Path) -> None:
    # The first thing, the step's range, begins at 1000: that is 0 in the file.
    builder = TimelineBuilder()
    process = builder.process(pid=77, rank=3)
    thread, device = process.thread(), process.device(gpu_name="Tiny GPU")
    thread.range("perfdoc.step 0", 1_000, 2_000)
    thread.range("forward", 1_010, 1_200)
    thread.range("inner", 1_010, 1_100)
    thread.mark("here", 1_150)
    device.kernel(GEMM, 1_100, 1_300, stream=7, launch=(thread, 1_020, 1_030))
    device.kernel(ALL_REDUCE, 1_250, 1_400, stream=20, launch=(thread, 1_040, 1_050))
    device.copy("host_to_device", 64, 1_450, 1_500, stream=7, launch=(thread, 1_060, 1_070))
    device.kernel(GEMM, 1_600, 1_650, stream=7, launch=(thread, 1_560, 1_570))
    found, said = exported(tmp_path, planted(tmp_path, builder))
    assert list(found.processes.values()) == ["GPU 0, pid 77, Tiny GPU"]
    assert list(found.names.values()) == [
        *("steps", "ledger", "idle causes", "communication unknown", "stream 7: kernels"),
        *("stream 20: kernels", "stream 7: copies", "thread 77 python: ranges"),
        "thread 77 python: CUDA calls",
    ]
    # The device's step is from its first activity to the last end.
    assert brief(found.track("steps")) == [(100, 550, "perfdoc.step 0")]
    assert brief(found.track("ledger")) == [
        (100, 200, "compute"),
        (300, 100, "exposed_comm.unknown"),
        (400, 50, "idle.dependency"),  # the copy is on another stream than what ran before it
        (450, 50, "exposed_memcpy"),
        (500, 70, "idle.host"),
        (570, 30, "idle.launch_latency"),
        (600, 50, "compute"),
    ]
    assert brief(found.track("idle causes")) == [
        (400, 50, "idle.dependency"),  # the copy is on another stream than what ran before it
        (500, 70, "idle.host"),
        (570, 30, "idle.launch_latency"),
    ]
    assert brief(found.track("communication unknown")) == [(250, 150, "all_reduce")]
    assert brief(found.track("stream 7: kernels")) == [(100, 200, GEMM), (600, 50, GEMM)]
    assert [s.category for s in found.track("stream 20: kernels")] == ["kernel:communication"]
    assert brief(found.track("stream 7: copies")) == [(450, 50, "host to device")]
    ranges = found.track("thread 77 python: ranges")
    assert [(s.start, s.length, s.name, s.depth) for s in sorted(ranges)] == [
        (0, 1_000, "perfdoc.step 0", 0),
        (10, 90, "inner", 2),
        (10, 190, "forward", 1),
        (150, 0, "here", 2),
    ]
    calls = found.track("thread 77 python: CUDA calls")
    assert [(s.start, s.length) for s in sorted(calls)] == [(20, 10), (40, 10), (60, 10), (560, 10)]
    assert said == [f"wrote {tmp_path / 'out.pftrace'}: 24 slices on 9 tracks. Open it at ui.perfetto.dev."]


@pytest.mark.parametrize("captures", [1, 2])
def test_a_capture_of_part_of_the_events_is_drawn(tmp_path: Path, captures: int) -> None:
    """Of the fuzzer: nothing was predicted of such a capture, and export took that for nothing drawn."""
    paths = []
    for number in range(captures):
        builder, thread, device = one_gpu(pid=77 + number)
        for i in range(100):
            launch = (thread, 1_000 * i, 1_000 * i + 10)
            if i % 3:
                device.kernel(GEMM, 1_000 * i + 100, 1_000 * i + 700, launch=launch)
            else:
                thread.api("cudaLaunchKernel", *launch[1:])
        paths.append(planted(tmp_path, builder, f"rank{number}.sqlite"))
    assert measure_capture(paths[0], WindowRequest()).ranks[0].withheld  # it is of a part
    found, _ = exported(tmp_path, *paths)
    kernels = [s for track in found.slices.values() for s in track if s.name == GEMM]
    assert len(kernels) == captures * 66


@pytest.mark.parametrize(
    "name",
    some(
        [
            "nsys/host_bound_2gpu_h100.sqlite",
            "kineto/ddp_nccl_metadata_a100_rank0of2.json.gz",
            "nsys/windows_rtx5000.sqlite",
        ],
        ["nsys/windows_rtx5000.sqlite"],
    ),
)
def test_a_real_trace_s_leaves_sum_to_its_ledger(shared_traces: Path, tmp_path: Path, name: str) -> None:
    path = shared_traces / name
    found, _ = exported(tmp_path, path, name="out.pftrace.gz")
    capture = measure_capture(path, WindowRequest())
    assert len(found.processes) == len(capture.ranks)
    for rank in capture.ranks:
        who = f"GPU {rank.device.ordinal}, pid {rank.device.process},"
        sums = dict.fromkeys(rank.ledger.by_leaf, 0)
        for s in found.track("ledger", who):
            sums[s.name] += s.length
        assert sums == rank.ledger.by_leaf
        busy = sum(
            s.length for n in set(found.all_of("stream")) if "kernels" in n for s in by_name(found, n, who)
        )
        assert busy >= rank.ledger.compute


def by_name(found: PerfettoTrace, name: str, process: str) -> list[Slice]:
    tracks = [t for t, n in found.names.items() if n == name and process in found.processes[found.parent[t]]]
    return [s for t in tracks for s in found.slices.get(t, [])]


def test_captures_are_put_on_one_clock(shared_traces: Path, tmp_path: Path) -> None:
    paths = [shared_traces / "kineto" / f"dlrm_8gpu_v100_rank{i}.pt.trace.json.gz" for i in (0, 1, 5)]
    found, _ = exported(tmp_path, *paths)
    timeline = measure_job([measure_capture(p, WindowRequest()) for p in paths]).timeline
    assert all(r.aligned for r in timeline.ranks)
    begins = []
    for rank in timeline.ranks:
        (step,) = (s for s in found.track("steps", f"rank {rank.rank},") if s.name == rank.step)
        assert step.length == pytest.approx(rank.duration_ns, abs=2 + rank.duration_ns // 10_000)
        begins.append(step.start)
    # Times are rounded once each.
    assert [b - min(begins) for b in begins] == pytest.approx([r.offset_ns for r in timeline.ranks], abs=2)


def test_slices_of_too_many_streams_are_counted(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    device = builder.process().device()
    for i in range(MAX_TRACKS_OF_A_KIND + 3):
        device.kernel(GEMM, 20 * i, 20 * i + 10, stream=i)
    found, said = exported(tmp_path, planted(tmp_path, builder))
    assert len(found.all_of("stream")) == MAX_TRACKS_OF_A_KIND
    assert said[-1].startswith("3 slices are not in it")


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_hostile_names_stay_names(tmp_path: Path, text: str) -> None:
    builder, thread, device = one_gpu()
    name = text.encode("utf-8", "replace").decode().replace("\x00", "")
    thread.range(name, 0, 900)
    device.kernel(name, 100, 300, launch=(thread, 10, 20))
    found, _ = exported(tmp_path, planted(tmp_path, builder))
    (kernel,) = found.track("stream 7: kernels")
    assert (kernel.start, kernel.length) == (100, 200)
    assert len(kernel.name) <= 400
    assert brief(found.track("thread 1000 python: ranges")) == [(0, 900, name[:400])]


def test_nothing_is_overwritten_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    builder.process().device().kernel(GEMM, 0, 10)
    path = planted(tmp_path, builder)
    target = tmp_path / "out.pftrace"
    target.write_text("mine")
    with pytest.raises(UserError, match="is there already"):
        run(AnalysisRequest(captures=[path]), target, print)
    assert target.read_text() == "mine"
    run(AnalysisRequest(captures=[path]), target, print, force=True)
    assert read(target).processes
    (tmp_path / "bad.sqlite").write_bytes(b"SQLite format 3\x00" + bytes(200))
    before = sorted(tmp_path.iterdir())
    for bad in ("bad.sqlite", "none.sqlite"):
        with pytest.raises(UserError):
            run(AnalysisRequest(captures=[tmp_path / bad]), tmp_path / "new.pftrace", print)
    with pytest.raises(FileNotFoundError, match=r"new\.pftrace"):
        run(AnalysisRequest(captures=[path]), tmp_path / "no" / "new.pftrace", print)
    assert sorted(tmp_path.iterdir()) == before


SLICES = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 20)), max_size=24)


def columns(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([a for a, _ in rows], np.int64)
    return start, start + np.array([n for _, n in rows], np.int64)


def played(lane: Events, start: np.ndarray, end: np.ndarray) -> list[int]:
    """Slices that a stack gives back; every end closes its own beginning, in order of time."""
    stack: list[int] = []
    done, at = [], -1
    for row, begins in zip(lane.row.tolist(), lane.is_begin.tolist(), strict=True):
        time = int(start[row] if begins else end[row])
        assert time >= at
        at = time
        if begins:
            stack.append(row)
        else:
            assert stack.pop() == row
            done.append(row)
    assert not stack
    return done


def check(placed: Lanes, rows: list[tuple[int, int]]) -> None:
    start, end = columns(rows)
    done = [row for lane in placed.lanes for row in played(lane, start, end)]
    assert len(done) == len(set(done)) == len(rows) - placed.left_out


@given(SLICES)
def test_every_slice_is_told_once_and_never_across(rows: list[tuple[int, int]]) -> None:
    check(nested(*columns(rows)), rows)


@given(SLICES)
def test_lanes_hold_slices_that_do_not_meet(rows: list[tuple[int, int]]) -> None:
    start, end = columns(rows)
    placed = disjoint(start, end)
    check(placed, rows)
    for lane in placed.lanes:
        order = lane.row[lane.is_begin]
        assert (start[order][1:] >= end[order][:-1]).all()


def test_only_what_crosses_leaves_the_first_lane() -> None:
    # [0, 10) and [5, 15) cross; [20, 30) holds [22, 25).
    rows = [(0, 10), (5, 10), (20, 10), (22, 3)]
    placed = nested(*columns(rows))
    assert [sorted(set(lane.row.tolist())) for lane in placed.lanes] == [[2, 3], [0], [1]]
