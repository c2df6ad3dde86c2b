"""The last step ends with its last work: the idle time between steps is seen one time less than steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_trace
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.traces import Note
from tests.analyzers.tiny import ALL_REDUCE, GEMM, trace_of
from tests.captures.timeline import TimelineBuilder, one_gpu

MS = 1_000_000


def measured_of(
    folder: Path, steps: int, between_ns: int, last_ns: int = 10 * MS, last: str = GEMM, behind_ns: int = 0
) -> tuple[RankMeasurement, list[Note]]:
    """Steps of 10 ms of GEMMs, the last as long as it is given and of that kernel, and so much between them
    in which nothing runs, of which so much in their ranges."""
    builder, thread, device = one_gpu()
    for number in range(steps):
        begin = MS + number * (10 * MS + between_ns)
        end = begin + (last_ns if number == steps - 1 else 10 * MS)
        thread.range(f"ProfilerStep#{number}", begin, end + behind_ns)
        name = last if number == steps - 1 else GEMM
        device.kernel(name, begin + 1_000, end, launch=(thread, begin, begin + 500))
    (rank,), notes = measure_trace(trace_of(builder, folder), WindowRequest())
    return rank, [n for n in notes if n.code == "last-step-short"]


def test_a_last_step_that_lacks_the_wait_behind_it_is_left_out(tmp_path: Path) -> None:
    """5 ms behind each of three steps of 15 ms, a third of each, and none behind the fourth."""
    rank, (note,) = measured_of(tmp_path, 4, 5 * MS)
    assert (rank.window.steps, rank.window.duration_ns, rank.last_left_out) == (3, 45 * MS, True)
    assert [step.name[-2:] for step in rank.window.step_list] == ["#0", "#1", "#2"]
    assert rank.ledger.idle.total == 3 * (5 * MS + 1_000)
    assert "5.00" in note.message
    assert "33.3 %" in note.message


@pytest.mark.parametrize(("last_ms", "last"), [(40, GEMM), (10, ALL_REDUCE)])
def test_a_last_step_that_is_no_other_s_like_stays(last_ms: int, last: str, tmp_path: Path) -> None:
    """Behind three of 15 ms one of 40, or the all-reduce that three micro-batches lead to: worth a look."""
    rank, (note,) = measured_of(tmp_path, 4, 5 * MS, last_ms * MS, last)
    assert (rank.window.steps, rank.window.duration_ns) == (4, (45 + last_ms) * MS - 1_000)
    assert "counts" in note.message


def test_of_two_steps_a_wait_that_is_seen_once_may_be_by_chance(tmp_path: Path) -> None:
    """5 ms between two steps, and none before the first or behind the second: both stay; that is told."""
    rank, (note,) = measured_of(tmp_path, 2, 5 * MS)
    assert (rank.window.steps, rank.last_left_out, rank.window.outside_ns) == (2, False, 0)
    assert "5.00" in note.message
    assert "counts" in note.message


def test_the_wait_behind_the_only_step_that_is_left_is_between_steps(tmp_path: Path) -> None:
    """5 ms, of which the ranges of both have 3."""
    rank, _ = measured_of(tmp_path, 2, 5 * MS, behind_ns=3 * MS)
    assert (rank.window.steps, rank.last_left_out) == (1, True)
    assert rank.host.idle_split.between_steps_ns == pytest.approx(5 * MS, rel=1e-3)


def test_that_a_step_which_is_left_out_works_longer_is_told(tmp_path: Path) -> None:
    """12 ms less a us, where three others work for 10 and wait for 5."""
    rank, (note,) = measured_of(tmp_path, 4, 5 * MS, 12 * MS)
    assert (rank.window.steps, rank.last_left_out) == (3, True)
    assert "1.999 ms longer" in note.message


@pytest.mark.parametrize(("steps", "between_ns"), [(4, 200_000), (4, 0)])
def test_what_hardly_counts_leaves_it(steps: int, between_ns: int, tmp_path: Path) -> None:
    """0.2 ms of 10.2 are half a per cent of four steps."""
    rank, notes = measured_of(tmp_path, steps, between_ns)
    assert (rank.window.steps, rank.last_left_out, notes) == (steps, False, [])


def test_a_device_whose_rows_have_no_length_lacks_nothing(tmp_path: Path) -> None:
    """Beside one that has: its steps have no work that could end before them."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device, other = process.thread(), process.device(), process.device(ordinal=1)
    for number in range(4):
        begin = MS + number * 10 * MS
        thread.range(f"ProfilerStep#{number}", begin, begin + 10 * MS)
        device.kernel(GEMM, begin + 1_000, begin + 10 * MS, launch=(thread, begin, begin + 500))
        other.kernel(GEMM, begin + 1_000, begin + 1_000, launch=(thread, begin + 500, begin + 900))
    trace = trace_of(builder, tmp_path)
    assert [n for n in measure_trace(trace, WindowRequest())[1] if n.code == "last-step-short"] == []


@pytest.mark.parametrize(
    ("beside", "outside_ms", "data_ms"),
    [("", 30 + 5, 30), ("queue", 5, 0), ("loading code", 5, 0), ("open", 30, 30), ("a worker loads", 35, 0)],
)
def test_what_the_only_step_has_beside_it(beside: str, outside_ms: int, data_ms: int, tmp_path: Path) -> None:
    """A step waits 30 ms for its batch, copies it, multiplies for 50 ms and ends 5 ms later. Where the GEMM
    begins 20 ms behind its launch, the device did what is not captured. Code is loaded in 4 ms of the 30. An
    open range tells no end."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    loader = process.thread() if beside == "a worker loads" else thread
    begin = MS + 30 * MS
    loader.range("next_batch", MS, begin)
    if beside == "loading code":
        thread.api("cuLibraryLoadData", 3 * MS, 7 * MS)
    device.copy("host_to_device", 64, begin, begin + MS // 2, launch=(thread, begin, begin + 500), stream=20)
    late = begin + MS // 2 + (20 * MS if beside == "queue" else 0)
    device.kernel(GEMM, late, late + 50 * MS, launch=(thread, begin + 600, begin + 900))
    thread.range("ProfilerStep#0", MS, None if beside == "open" else late + 55 * MS)
    thread.api("cudaDeviceSynchronize", late + 54 * MS, late + 55 * MS)
    (rank,), _ = measure_trace(trace_of(builder, tmp_path), WindowRequest())
    assert (rank.window.outside_ns, rank.window.outside_data_ns) == (outside_ms * MS, data_ms * MS)
