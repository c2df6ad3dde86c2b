"""Files that hold only part of the events, and whole captures that look alike."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfdoc.analyzers.device.event_counts import event_counts
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.diagnose.diagnosis import diagnose
from perfdoc.reports.headline import share_figures
from perfdoc.reports.outlook import gain_together
from perfdoc.results import Diagnosis
from perfdoc.results.quality import EventCounts
from perfdoc.simulator.replay.unedited import replay_and_keep
from tests.analyzers.tiny import GEMM, trace_of
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu

US = 1_000
COUNT = 200
"""Kernels of 60 us, launched every 100 us and started 5 us after their launch."""


def laid(
    *,
    kernel: Callable[[int], bool] = lambda i: True,
    launch: Callable[[int], bool] = lambda i: True,
    queued_us: int = 5,
    steps: bool = False,
) -> TimelineBuilder:
    """The job above, of which only some kernels and some launches are in the file."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    for i in range(COUNT):
        at = 100 * i * US
        if steps and i % 50 == 0:
            thread.range(f"step {i // 50}", at, at + 4_990 * US)
        number = process.next_correlation()
        if launch(i):
            thread.api("cudaLaunchKernel", at, at + 3 * US, correlation=number)
        if kernel(i):
            begin = at + queued_us * US
            device.kernel(GEMM, begin, begin + 60 * US, correlation=number)
    return builder


def counted(builder: TimelineBuilder, folder: Path) -> EventCounts:
    trace = trace_of(builder, folder)
    ((found, _),) = (event_counts(trace, find_launches(trace), d.process) for d in trace.devices)
    return found


def diagnosed(builder: TimelineBuilder, folder: Path) -> Diagnosis:
    path = write_nsys_sqlite(builder.build(), folder / "part.sqlite")
    return diagnose([measure_capture(path, WindowRequest(), also=replay_and_keep)])


def test_a_whole_capture_lacks_nothing(tmp_path: Path) -> None:
    found = counted(laid(), tmp_path)
    # The last launch is as far from the last kernel as any is from its own; the first kernel the same.
    assert (found.launches, found.launches_without_work) == (COUNT - 1, 0)
    assert (found.kernels, found.kernels_without_launch) == (COUNT - 1, 0)
    assert found.partial == ""


def test_kernels_that_were_left_out_are_missed(tmp_path: Path) -> None:
    found = counted(laid(kernel=lambda i: i % 10 == 9), tmp_path)
    # Of launches 9 to 198 each that ends in 9 has its kernel; those before the first id refer to nothing.
    assert (found.launches, found.launches_without_work) == (190, 171)
    assert (found.kernels, found.kernels_without_launch) == (20, 0)
    assert "90.0 % of 190 kernel launches" in found.work_missing
    assert found.launches_missing == ""


def test_launches_that_were_left_out_leave_idle_time_as_it_is(tmp_path: Path) -> None:
    found = counted(laid(launch=lambda i: i % 5 == 0), tmp_path)
    assert (found.launches, found.launches_without_work) == (40, 0)
    # Kernels 1 to 195: 39 of them have their launch.
    assert (found.kernels, found.kernels_without_launch) == (195, 156)
    assert found.work_missing == ""
    assert "80.0 % of 195 kernels" in found.launches_missing


def test_of_few_launches_that_are_left_nobody_knows_whether_kernels_are_missing(tmp_path: Path) -> None:
    found = counted(laid(launch=lambda i: i % 20 == 0), tmp_path)
    assert found.launches == 10
    assert found.work_missing == found.launches_missing != ""


def test_of_few_rows_of_a_sample_both_kinds_lack_the_other(tmp_path: Path) -> None:
    """Ten launches and ten kernels of 200, no id in both but one: few, but both at once."""
    found = counted(laid(kernel=lambda i: i % 20 == 0, launch=lambda i: i % 20 == 10 or i == 0), tmp_path)
    assert (found.launches, found.launches_without_work) == (10, 9)
    assert (found.kernels, found.kernels_without_launch) == (9, 9)
    assert "90.0 % of 10 kernel launches" in found.work_missing


@pytest.mark.parametrize(
    ("kernel", "launch"),
    [
        (lambda i: i % 7 == 0, lambda i: i % 5 == 0),  # each table sampled by itself
        (lambda i: i % 2 == 0, lambda i: i % 2 == 1),  # not one id in both
        (lambda i: not 80 <= i < 110, lambda i: True),  # records dropped in the middle
        (lambda i: i % 12 != 0, lambda i: True),  # kernels of one name filtered out
    ],
)
def test_other_ways_to_lose_events(
    tmp_path: Path, kernel: Callable[[int], bool], launch: Callable[[int], bool]
) -> None:
    assert counted(laid(kernel=kernel, launch=launch), tmp_path).work_missing


@pytest.mark.parametrize(
    ("kernel", "launch", "queued_us"),
    [
        (lambda i: i < 120, lambda i: i >= 80, 4_000),  # a slice of a job whose host runs 40 kernels ahead
        (lambda i: i < 100, lambda i: True, 5),  # the file ends with its first 100 kernels
        (lambda i: True, lambda i: i < 100, 5),  # or with its first 100 calls
        (lambda i: True, lambda i: i >= 60, 5),  # calls are recorded from the middle on
        (lambda i: i % 50 != 7, lambda i: i % 50 != 9, 5),  # 2 % are lost
        (lambda i: i < 15, lambda i: i % 10 == 0 or i > 100, 5),  # too few to tell
    ],
)
def test_whole_stretches_and_trifles_are_not_accused(
    tmp_path: Path, kernel: Callable[[int], bool], launch: Callable[[int], bool], queued_us: int
) -> None:
    assert counted(laid(kernel=kernel, launch=launch, queued_us=queued_us), tmp_path).partial == ""


def test_calls_recorded_into_a_graph_launch_nothing(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    device.kernel(GEMM, 10, 20, launch=(thread, 0, 5))
    thread.api("cudaStreamBeginCapture_v10000", 100, 110)
    for i in range(100):
        thread.api("cudaLaunchKernel_v7000", 200 + 10 * i, 205 + 10 * i)
    thread.api("cudaStreamEndCapture_v10000", 2_000, 2_010)
    for i in range(30):
        at = 3_000 + 100 * i
        device.kernel(GEMM, at + 10, at + 90, launch=(thread, at, at + 5))
    found = counted(builder, tmp_path)
    assert (found.launches_without_work, found.partial) == (0, "")


def test_a_driver_call_inside_a_runtime_call_is_one_launch(tmp_path: Path) -> None:
    builder, thread, device = one_gpu()
    for i in range(50):
        at = 100 * i
        thread.api("cudaLaunchKernelExC_v11060", at, at + 8)  # with an id of its own
        number = thread.api("cuLaunchKernelEx", at + 2, at + 6)
        device.kernel(GEMM, at + 20, at + 90, correlation=number)
    found = counted(builder, tmp_path)
    assert (found.launches, found.launches_without_work) == (49, 0)


@pytest.mark.parametrize(
    ("call", "missing"), [("cudaMemcpyAsync_v3020", True), ("cudaMemsetAsync_v3020", False)]
)
def test_copies_that_were_left_out_are_missed(tmp_path: Path, call: str, missing: bool) -> None:
    """Sets are not: one of 0 bytes leaves no row."""
    builder, thread, device = one_gpu()
    for i in range(50):
        at = 100 * i
        device.kernel(GEMM, at + 20, at + 50, launch=(thread, at, at + 5))
        thread.api(call, at + 10, at + 12)
    assert ("49 copy calls" in counted(builder, tmp_path).work_missing) is missing


def test_processes_are_judged_apart(tmp_path: Path) -> None:
    builder = laid()
    other = builder.process(pid=2000)
    thread, device = other.thread(), other.device(ordinal=1)
    for i in range(40):
        thread.api("cudaLaunchKernel", 100 * i, 100 * i + 3)
        if i % 2:
            device.kernel(GEMM, 100 * i + 5, 100 * i + 60, correlation=i + 1)
    trace = trace_of(builder, tmp_path)
    whole, part = (event_counts(trace, find_launches(trace), process)[0] for process in (1000, 2000))
    assert (whole.partial, bool(part.partial)) == ("", True)


def test_nothing_is_promised_of_a_part_of_the_events(tmp_path: Path) -> None:
    """Whole: 4 steps of 5 ms, 60 of 100 us busy. Of a tenth of the kernels that would be 94 % idle."""
    found = diagnosed(laid(kernel=lambda i: i % 10 == 9, steps=True), tmp_path)
    assert "part of the events" in found.verdict
    assert "not known" in found.verdict
    assert {f.value for f in share_figures(found)} == {"unknown"}
    (rank,) = found.ranks
    assert rank.ledger_ns.total == rank.window.duration_ns
    assert rank.ledger_ns.idle.total == rank.ledger_ns.idle.unexplained
    # By the host's ranges: the first kernel that is left would begin steps 905 us late.
    assert [s.duration_ns for s in rank.window.step_list] == [5_000 * US] * 3 + [4_990 * US]
    for analysis in (found.analyses.gains, found.analyses.replay, found.analyses.host_gaps):
        assert analysis.state == "not_measured"
        assert "part of the events" in analysis.reason
    assert found.analyses.host_gaps.host_frac is None
    assert gain_together(found) == ""
    rules = {r.code: r for r in found.rules}
    assert (rules["PD201"].state, rules["PD901"].state) == ("skipped", "skipped")
    assert "part of the events" in rules["PD201"].reason
    assert [r.code for r in found.rules if r.gain is not None] == []
    (note,) = [q for q in found.quality if q.code == "partial-capture"]
    assert note.remedy


def test_without_launches_idle_time_stays_and_its_causes_go(tmp_path: Path) -> None:
    found = diagnosed(laid(launch=lambda i: i % 5 == 0), tmp_path)
    (rank,) = found.ranks
    # 200 kernels of 60 us from 5 us on, every 100 us: 199 gaps of 40 us.
    assert (rank.ledger_ns.compute, rank.ledger_ns.idle.unexplained) == (12_000 * US, 7_960 * US)
    assert "39.9 %: the GPU is idle" in found.verdict
    assert found.analyses.gains.state == "not_measured"
    rules = {r.code: r for r in found.rules}
    assert (rules["PD201"].state, rules["PD901"].state) == ("skipped", "fires")
    assert "80.0 % of 195 kernels" in rules["PD201"].reason


def steps_of(builder: TimelineBuilder, folder: Path) -> tuple[list[str], list[str]]:
    """Names of the steps that are analysed, and what is said of others."""
    found = diagnosed(builder, folder)
    said = [q.message for q in found.quality if q.code in ("steps-left-out", "partial-capture")]
    return [s.name for s in found.ranks[0].window.step_list], said


@pytest.mark.parametrize(
    ("kernel", "steps", "said"),
    [
        (lambda i: i >= 30, [1, 2, 3], "step 0 left out: 30 of 50"),  # the first 30 of 50
        (lambda i: i >= 50, [1, 2, 3], "step 0 left out: 50 of 50"),
        (lambda i: i >= 60, [2, 3], "2 steps (step 0 to step 1) left out: 60 of 100"),
        (lambda i: i < 170, [0, 1, 2], "step 3 left out: 30 of 50"),
        (lambda i: 20 <= i < 160, [1, 2], "2 steps (step 0 to step 3) left out: 60 of 100"),
        (lambda i: i != 1, [0, 1, 2, 3], ""),  # one of 50 is no matter
    ],
)
def test_steps_at_the_ends_that_lack_their_kernels_are_left_out(
    tmp_path: Path, kernel: Callable[[int], bool], steps: list[int], said: str
) -> None:
    names, notes = steps_of(laid(kernel=kernel, steps=True), tmp_path)
    assert names == [f"step {i}" for i in steps]
    assert [n.startswith(said) for n in notes] == [True] * bool(said)


def test_the_whole_steps_of_a_capture_that_lost_its_beginning_are_those_of_the_whole_one(
    tmp_path: Path,
) -> None:
    whole = diagnosed(laid(steps=True), tmp_path).ranks[0]
    part = diagnosed(laid(kernel=lambda i: i >= 35, steps=True), tmp_path / "part").ranks[0]
    assert part.window.step_list == whole.window.step_list[1:]
    # Three steps of 5 ms, the last to the end of its last kernel: 60 of 100 us busy, 150 times.
    assert (part.ledger_ns.compute, part.ledger_ns.total) == (9_000 * US, 14_960 * US)
    assert part.events.partial == ""


@pytest.mark.parametrize("kernel", [lambda i: 50 <= i < 80 or i >= 120, lambda i: i % 3 == 0])
def test_a_sample_in_the_middle_is_no_matter_of_the_ends(
    tmp_path: Path, kernel: Callable[[int], bool]
) -> None:
    names, (said,) = steps_of(laid(kernel=kernel, steps=True), tmp_path)
    assert len(names) == 4
    assert "part of the events" in said


def without_times(path: Path, lost: Callable[[int], bool], process: int = 0) -> Path:
    """The export, with time 0 for some of its kernels, counted by the 100 us in which they begin."""
    db = sqlite3.connect(path)
    with db:
        found = db.execute("SELECT rowid, start, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
        processes = sorted({pid for _, _, pid in found})
        for row, start, pid in found:
            if pid == processes[process] and lost(start // (100 * US)):
                db.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = 0, end = 0 WHERE rowid = {row}")
    db.close()
    return path


@pytest.mark.parametrize(
    ("lost", "steps", "said"),
    [
        (lambda i: 10 <= i < 14, [1, 2, 3], "step 0 left out: 4 of 50"),
        (lambda i: i >= 150, [0, 1, 2], "step 3 left out: 50 of 50"),
        (lambda i: 60 <= i < 90, [2, 3], "step 1 left out, and 1 whole step apart from the others: 30 of 50"),
        (lambda i: 110 <= i < 120, [0, 1], "step 2 left out, and 1 whole step apart from the others: 10 of"),
        (lambda i: i < 10 or i >= 190, [1, 2], "2 steps (step 0 to step 3) left out: 20 of 100"),
        (lambda i: i % 50 == 7, [0, 1, 2, 3], ""),  # one of 50 of each: no matter
        # Every other step: 3 % of all are no reason to keep one step of four, 10 % are.
        (lambda i: i % 100 in (60, 61, 62), [0, 1, 2, 3], ""),
        (lambda i: 60 <= i % 100 < 70, [2], "2 steps (step 1 to step 3) left out, and 1 whole step apart"),
        (lambda i: i % 10 == 7, [0, 1, 2, 3], "The file holds only part of the events: 10.1 % of 199"),
    ],
)
def test_a_step_costs_itself_alone_whose_kernels_have_no_time(
    tmp_path: Path, lost: Callable[[int], bool], steps: list[int], said: str
) -> None:
    path = write_nsys_sqlite(laid(steps=True).build(), tmp_path / "damaged.sqlite")
    found = diagnose([measure_capture(without_times(path, lost), WindowRequest(), also=replay_and_keep)])
    (rank,) = found.ranks
    assert [s.name for s in rank.window.step_list] == [f"step {i}" for i in steps]
    notes = [q.message for q in found.quality if q.code in ("steps-left-out", "partial-capture")]
    assert [n.startswith(said) for n in notes] == [True] * bool(said)
    if len(steps) == 4:
        return
    # Whole steps of 5 ms, the last to the end of its last kernel: 60 of 100 us busy, 50 times each.
    assert rank.ledger_ns.compute == len(steps) * 3_000 * US
    assert rank.ledger_ns.total == (len(steps) * 5_000 - 40) * US
    assert (rank.events.partial, rank.replay and rank.replay.state) == ("", "measured")


def test_the_other_rank_keeps_its_steps(tmp_path: Path) -> None:
    """Two processes in one file, of which the second lost the times of its third step."""
    builder = TimelineBuilder()
    for pid in (1000, 1001):
        process = builder.process(pid=pid)
        thread, device = process.thread(), process.device()
        for i in range(COUNT):
            at = 100 * i * US
            if i % 50 == 0:
                thread.range(f"step {i // 50}", at, at + 4_990 * US)
            device.kernel(GEMM, at + 5 * US, at + 65 * US, launch=(thread, at, at + 3 * US))
    path = write_nsys_sqlite(builder.build(), tmp_path / "two.sqlite")
    without_times(path, lambda i: 100 <= i < 130, process=1)
    found = diagnose([measure_capture(path, WindowRequest(), also=replay_and_keep)])
    names = [[s.name[-1] for s in rank.window.step_list] for rank in found.ranks]
    assert names == [["0", "1", "2", "3"], ["0", "1"]]
    assert [rank.ledger_ns.compute for rank in found.ranks] == [12_000 * US, 6_000 * US]
    assert not any(rank.events.partial for rank in found.ranks)


@pytest.mark.parametrize("lost", [lambda i: True, lambda i: i % 4 == 0])
def test_kernels_that_lost_their_ids_are_not_missing(tmp_path: Path, lost: Callable[[int], bool]) -> None:
    """As ROCm's communication kernels have, or all: they are there, and what launched them is not known."""
    builder = TimelineBuilder()
    process = builder.process()
    thread, device = process.thread(), process.device()
    for i in range(COUNT):
        at = 100 * i * US
        number = process.next_correlation()
        thread.api("cudaLaunchKernel", at, at + 3 * US, correlation=number)
        device.kernel(GEMM, at + 5 * US, at + 65 * US, correlation=number)
    path = write_nsys_sqlite(builder.build(), tmp_path / "lost.sqlite")
    db = sqlite3.connect(path)
    with db:
        for (at,) in db.execute("SELECT start FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall():
            if lost(at // (100 * US)):
                db.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 0 WHERE start = {at}")
    db.close()
    (rank,) = diagnose([measure_capture(path, WindowRequest())]).ranks
    assert (rank.ledger_ns.compute, rank.ledger_ns.idle.total) == (12_000 * US, 7_960 * US)
    assert rank.events.work_missing == ""


@pytest.mark.parametrize(
    ("name", "left", "said"),
    [
        ("aten::mm, seq = 7", lambda i: i % 10 != 3, "10.0 % of 100 operators"),  # of emit_nvtx
        ("aten::mm", lambda i: i % 10 == 3, "90.0 % of 100 operators"),
        ("aten::mm", lambda i: True, ""),
        ("aten::mm", lambda i: i % 50 != 3, ""),  # 2 % are a trifle
        ("aten::copy_", lambda i: i % 10 != 3, ""),  # launches where it copies on the device, and not else
    ],
)
def test_launches_and_kernels_left_out_together_are_missed_by_their_operators(
    tmp_path: Path, name: str, left: Callable[[int], bool], said: str
) -> None:
    builder, thread, device = one_gpu()
    for i in range(100):
        at = 100 * i * US
        thread.range(name, at, at + 20 * US)
        if left(i):
            device.kernel(GEMM, at + 15 * US, at + 75 * US, launch=(thread, at + 5 * US, at + 8 * US))
    found = counted(builder, tmp_path)
    assert (found.launches_without_work, found.kernels_without_launch) == (0, 0)
    assert said in found.work_missing
    assert bool(found.partial) is bool(said)


def test_operators_on_the_cpu_launch_nothing_and_miss_nothing(tmp_path: Path) -> None:
    """Of one thread: softmax on the GPU, products on the CPU. Launches without an id are there."""
    builder, thread, device = one_gpu()
    for i in range(100):
        at = 100 * i * US
        thread.range("aten::_softmax", at, at + 20 * US)
        device.kernel(GEMM, at + 15 * US, at + 75 * US, launch=(thread, at + 5 * US, at + 8 * US))
        thread.range("aten::mm", at + 30 * US, at + 60 * US)
    assert counted(builder, tmp_path).partial == ""
    trace = trace_of(builder, tmp_path)
    kernels, calls = (
        replace(t, correlation=np.where(t.correlation % 2, t.correlation, -1))
        for t in (trace.kernels, trace.api_calls)
    )
    trace = replace(trace, kernels=kernels, api_calls=calls)
    assert event_counts(trace, find_launches(trace), 1000)[0].partial == ""
