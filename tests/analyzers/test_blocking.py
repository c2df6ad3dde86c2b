from __future__ import annotations

from pathlib import Path

import pytest

from perfdoc.analyzers.communication.blocking import NEVER, awaited_pairs
from perfdoc.analyzers.communication.table import communication_table
from perfdoc.analyzers.device.activity import without_launches
from perfdoc.analyzers.device.launches import find_launches
from perfdoc.traces import Trace
from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.nsys.read import read_nsys_sqlite
from tests.analyzers.tiny import ALL_REDUCE, GEMM, activity_of, trace_of
from tests.captures.events import Collective
from tests.captures.kineto import write_kineto
from tests.captures.nsys_schemas import ExportOptions
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder, one_gpu


def since(trace: Trace) -> list[int] | None:
    found = activity_of(trace).communication.blocked_since_ns
    return None if found is None else found.tolist()


def waited(*, event: int | None = None) -> TimelineBuilder:
    """Two all-reduces on stream 20, of which the gemm on stream 7 waits for the first only.

    gemm a [1000, 2000) runs beside all-reduce A [1500, 3000); gemm b was launched at 300, is ready at 2000,
    when its stream is free, and starts at 3000. All-reduce B [3000, 4000) is exposed from 3400 on, and the
    next gemm, launched at 3900 without a wait, is not held up by it.
    """
    builder, thread, device = one_gpu(rank=0)
    facts = Collective(operation="allreduce", ranks=(0, 1))
    device.kernel(GEMM, 1000, 2000, launch=(thread, 0, 10))
    device.kernel(ALL_REDUCE, 1500, 3000, stream=20, launch=(thread, 100, 110), collective=facts)
    record = device.record_event(20, launch=(thread, 120, 125), event=event)
    device.wait_event(7, record, launch=(thread, 130, 135))
    device.kernel(GEMM, 3000, 3400, launch=(thread, 300, 310))
    device.kernel(ALL_REDUCE, 3000, 4000, stream=20, launch=(thread, 320, 330), collective=facts)
    device.record_event(20, launch=(thread, 340, 345), event=event)
    device.kernel(GEMM, 4100, 4200, launch=(thread, 3900, 3910))
    return builder


@pytest.mark.parametrize("generation", ["2024.6", "2026.3"], ids=["by handle", "by edge id"])
def test_only_what_compute_waits_for_is_blocking(tmp_path: Path, generation: str) -> None:
    path = write_nsys_sqlite(waited(event=5).build(), tmp_path / "x.sqlite", generation=generation)
    trace = read_nsys_sqlite(path)
    assert since(trace) == [2000, NEVER]
    (row,) = communication_table(trace, activity_of(trace), 0, 5000)
    # Exposed: A from 2000 to 3000 and B from 3400 to 4000. Blocking: A's thousand.
    assert (row.exposed_ns, row.blocking_ns) == (1600, 1000)
    (cut,) = communication_table(trace, activity_of(trace), 2500, 5000)
    assert cut.blocking_ns == 500


def test_kineto_names_the_record_by_its_call(tmp_path: Path) -> None:
    builder = waited()
    path = write_kineto(builder.build(), tmp_path / "x.json", 1000)
    assert since(read_kineto(path)) == [2000, NEVER]


def test_without_event_rows_nothing_is_claimed(tmp_path: Path) -> None:
    options = ExportOptions(event_records=False)
    trace = read_nsys_sqlite(write_nsys_sqlite(waited().build(), tmp_path / "x.sqlite", options=options))
    assert since(trace) is None
    (row,) = communication_table(trace, activity_of(trace), 0, 5000)
    assert row.blocking_ns is None


def test_compute_that_was_launched_late_waited_only_from_then_on(tmp_path: Path) -> None:
    # The wait is queued early, the gemm behind it at 2600: up to then there was nothing to hold up.
    builder, thread, device = one_gpu()
    device.kernel(ALL_REDUCE, 1000, 3000, stream=20, launch=(thread, 0, 10))
    record = device.record_event(20, launch=(thread, 20, 25))
    device.wait_event(7, record, launch=(thread, 30, 35))
    device.kernel(GEMM, 3000, 3100, launch=(thread, 2600, 2610))
    assert since(trace_of(builder, tmp_path)) == [2600]


def test_order_on_one_stream_proves_it_too(tmp_path: Path) -> None:
    builder = waited()
    process = builder.process(pid=2)
    thread, device = process.thread(), process.device()
    device.kernel(ALL_REDUCE, 1000, 3000, stream=7, launch=(thread, 0, 10))
    device.kernel(GEMM, 3000, 3100, stream=7, launch=(thread, 20, 30))
    trace = trace_of(builder, tmp_path)
    index = next(i for i, d in enumerate(trace.devices) if d.process == 2)
    found = activity_of(trace, index).communication.blocked_since_ns
    assert found is not None
    assert found.tolist() == [20]


def test_a_wait_for_compute_blocks_on_no_communication(tmp_path: Path) -> None:
    builder = waited()
    process = builder.process(pid=2)
    thread, device = process.thread(), process.device()
    device.kernel(ALL_REDUCE, 1000, 3000, stream=20, launch=(thread, 0, 10))
    device.kernel(GEMM, 1000, 1500, stream=8, launch=(thread, 20, 30))
    record = device.record_event(8, launch=(thread, 40, 45))
    device.wait_event(7, record, launch=(thread, 50, 55))
    device.kernel(GEMM, 3500, 3600, stream=7, launch=(thread, 60, 70))
    trace = trace_of(builder, tmp_path)
    index = next(i for i, d in enumerate(trace.devices) if d.process == 2)
    found = activity_of(trace, index).communication.blocked_since_ns
    assert found is not None
    assert found.tolist() == [NEVER]


def test_edges_go_on_through_a_stream_that_runs_nothing(tmp_path: Path) -> None:
    # 20 -> 14 -> 7: stream 14 has no activity of its own.
    builder, thread, device = one_gpu()
    device.kernel(ALL_REDUCE, 1000, 3000, stream=20, launch=(thread, 0, 10))
    device.wait_event(14, device.record_event(20, launch=(thread, 20, 22)), launch=(thread, 24, 26))
    device.wait_event(7, device.record_event(14, launch=(thread, 30, 32)), launch=(thread, 34, 36))
    device.kernel(GEMM, 3000, 3100, launch=(thread, 40, 50))
    assert since(trace_of(builder, tmp_path)) == [40]


def test_who_starts_before_the_end_has_not_waited(tmp_path: Path) -> None:
    # Recorded and awaited, and still the gemm runs from 1500 on: what it waited for was something else.
    builder, thread, device = one_gpu(rank=0)
    device.kernel(ALL_REDUCE, 1000, 2000, stream=20, launch=(thread, 0, 10))
    record = device.record_event(20, launch=(thread, 20, 25))
    device.wait_event(7, record, launch=(thread, 30, 35))
    device.kernel(GEMM, 1500, 2500, launch=(thread, 40, 50))
    assert since(trace_of(builder, tmp_path)) == [NEVER]


def test_a_record_with_nothing_before_it_awaits_nothing(tmp_path: Path) -> None:
    # Stream 20 had run nothing when the event was recorded; what runs first, on stream 21, is not meant.
    builder, thread, device = one_gpu(rank=0)
    device.kernel(ALL_REDUCE, 1000, 2000, stream=21, launch=(thread, 0, 10))
    record = device.record_event(20, launch=(thread, 20, 25))
    device.wait_event(7, record, launch=(thread, 30, 35))
    device.kernel(GEMM, 3000, 3100, launch=(thread, 40, 50))
    device.kernel(ALL_REDUCE, 4000, 5000, stream=20, launch=(thread, 60, 70))
    assert since(trace_of(builder, tmp_path)) == [NEVER, NEVER]


def test_an_edge_of_one_gpu_proves_nothing_on_another(tmp_path: Path) -> None:
    builder = TimelineBuilder()
    process = builder.process()
    thread = process.thread()
    for ordinal in (0, 1):
        device = process.device(ordinal)
        device.kernel(ALL_REDUCE, 1000, 3000, stream=20, launch=(thread, 0, 10))
        if ordinal == 0:
            device.wait_event(7, device.record_event(20, launch=(thread, 20, 22)), launch=(thread, 24, 26))
        device.kernel(GEMM, 3000, 3100, launch=(thread, 40, 50))
    trace = trace_of(builder, tmp_path)
    by_ordinal = {
        trace.devices[i].ordinal: activity_of(trace, i).communication.blocked_since_ns for i in range(2)
    }
    assert {o: f.tolist() for o, f in by_ordinal.items() if f is not None} == {0: [40], 1: [NEVER]}


def test_what_is_queued_before_the_awaited_one_is_awaited_too(tmp_path: Path) -> None:
    # One record after two all-reduces [500, 2000) and [2000, 3000); the gemm has been ready since 60.
    builder, thread, device = one_gpu()
    device.kernel(ALL_REDUCE, 500, 2000, stream=20, launch=(thread, 0, 5))
    device.kernel(ALL_REDUCE, 2000, 3000, stream=20, launch=(thread, 10, 15))
    device.wait_event(7, device.record_event(20, launch=(thread, 20, 22)), launch=(thread, 24, 26))
    device.kernel(GEMM, 3000, 3100, launch=(thread, 60, 65))
    trace = trace_of(builder, tmp_path)
    assert since(trace) == [60, 60]
    (row,) = communication_table(trace, activity_of(trace), 0, 4000)
    assert (row.exposed_ns, row.blocking_ns) == (2500, 2500)


def test_whoever_asks_again_has_what_was_found(tmp_path: Path) -> None:
    """The first gemm behind the wait is row 2 by its start, with the all-reduce before it in row 1. Of an
    activity without launches nothing is behind."""
    trace = read_nsys_sqlite(write_nsys_sqlite(waited().build(), tmp_path / "x.sqlite"))
    activity, launches = activity_of(trace), find_launches(trace)
    found = awaited_pairs(trace, activity, launches)
    assert [rows.tolist() for rows in found] == [[1], [2]]
    assert all(a is b for a, b in zip(found, awaited_pairs(trace, activity, launches), strict=True))
    without = awaited_pairs(trace, without_launches(activity), launches)
    assert 2 not in without[1].tolist()
