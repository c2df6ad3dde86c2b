"""Rows that profilers wrote wrong are set aside, mended or clipped, counted, and told; the others stay."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfdoc.traces import Trace, TraceError
from perfdoc.traces.damage import CODE
from perfdoc.traces.load import read_trace
from tests.captures.kineto import write_kineto
from tests.captures.nsys_sqlite import write_nsys_sqlite
from tests.captures.timeline import TimelineBuilder

US, S = 1_000, 1_000_000_000
BASE = 100 * S
"""The capture begins 100 s after time 0, as captures do."""
COUNT = 40
"""GEMMs of 60 us on stream 7, every 100 us, each launched 10 us before it starts; beside each of them one of
another kernel, 20 us long, from 70 us on."""


def laid() -> TimelineBuilder:
    builder = TimelineBuilder()
    process = builder.process(pid=5)
    thread, gpu = process.thread(), process.device()
    for i in range(COUNT):
        at = BASE + 100 * i * US
        gpu.kernel("gemm", at, at + 60 * US, launch=(thread, at - 10 * US, at - 8 * US))
        gpu.kernel("norm", at + 70 * US, at + 90 * US, launch=(thread, at - 7 * US, at - 5 * US))
    return builder


def gemm(i: int) -> int:
    """The start of GEMM i."""
    return BASE + 100 * i * US


Edit = dict[str, int | None]
"""Columns of one row of the kernel table and their new values, in ns."""


def as_sqlite(folder: Path, edits: dict[int, Edit], *more: str) -> Trace:
    """The capture with kernels changed, each by its start."""
    path = write_nsys_sqlite(laid().build(), folder / "x.sqlite")
    db = sqlite3.connect(path)
    with db:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"):
            db.execute(f"CREATE TABLE plain AS SELECT * FROM {table}")
            db.execute(f"DROP TABLE {table}")
            db.execute(f"ALTER TABLE plain RENAME TO {table}")
        for start, columns in edits.items():
            sets = ", ".join(f'"{name}" = ?' for name in columns)
            db.execute(
                f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {sets} WHERE start = ?", (*columns.values(), start)
            )
        for statement in more:
            db.execute(statement)
    db.close()
    return read_trace(path)


def as_kineto(folder: Path, edits: dict[int, Edit], *more: str) -> Trace:
    """The same in a PyTorch trace, which has a duration in place of an end."""
    path = write_kineto(laid().build(), folder / "x.json", pid=5)
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        columns = edits.get(round(event["ts"] * US)) if event.get("cat") == "kernel" else None
        if columns is None:
            continue
        start, end = event["ts"] * US, (event["ts"] + event["dur"]) * US
        start, end = columns.get("start", start), columns.get("end", end)
        event["ts"], event["dur"] = start / US, (end - start) / US
    path.write_text(json.dumps(document))
    return read_trace(path)


Reader = Callable[..., Trace]
READERS = [pytest.param(as_sqlite, id="sqlite"), pytest.param(as_kineto, id="kineto")]


def kernels(trace: Trace, name: str = "gemm") -> dict[int, int]:
    """Start and length of the kernels of one name."""
    index = trace.strings.index(name)
    rows = trace.kernels.take(trace.kernels.name == index)
    return dict(zip(rows.start_ns.tolist(), (rows.end_ns - rows.start_ns).tolist(), strict=True))


def told(trace: Trace) -> str:
    """What the note on damaged rows says; empty without one."""
    (*notes,) = (note.message for note in trace.notes if note.code == CODE)
    return notes[0] if notes else ""


WHOLE = {gemm(i): 60 * US for i in range(COUNT)}


@pytest.mark.parametrize("read", READERS)
def test_a_capture_without_damage_says_nothing(read: Reader, tmp_path: Path) -> None:
    trace = read(tmp_path, {})
    assert (kernels(trace), told(trace)) == (WHOLE, "")


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        ({"start": 0, "end": 0}, "no time"),  # CUPTI's word for a time that it could not take
        ({"start": -BASE, "end": -BASE}, "no time"),  # the same after Kineto took its base time away
        ({"start": 5 * US, "end": 65 * US}, "far from all others in time"),
        ({"start": gemm(8) // 1000, "end": gemm(8) // 1000 + 60}, "far from all others in time"),  # ms for us
        ({"start": gemm(8) * 1000, "end": gemm(8) * 1000 + 60 * US}, "far from all others in time"),
    ],
)
@pytest.mark.parametrize("read", READERS)
def test_rows_without_a_time_are_set_aside(read: Reader, edit: Edit, why: str, tmp_path: Path) -> None:
    trace = read(tmp_path, {gemm(8): edit, gemm(20): {"start": 0, "end": 0}})
    assert kernels(trace) == {at: length for at, length in WHOLE.items() if at not in (gemm(8), gemm(20))}
    assert len(kernels(trace, "norm")) == COUNT
    assert why in told(trace)
    assert "2 kernels" in told(trace) if why == "no time" else told(trace).count("1 kernel") == 2


@pytest.mark.parametrize(
    "end",
    [gemm(8) + 1_600_000 * US, gemm(8) + 2**32 * US, gemm(11), gemm(9) + 300 * US],
    ids=["past the capture", "2^32 us", "three steps", "four steps"],
)
@pytest.mark.parametrize("read", READERS)
def test_a_length_that_covers_later_rows_is_clipped(read: Reader, end: int, tmp_path: Path) -> None:
    trace = read(tmp_path, {gemm(8): {"end": end}})
    # The others of the name last 60 us; the next row of the stream starts after 70.
    assert kernels(trace) == WHOLE
    assert told(trace).startswith("1 kernel clipped by ")
    assert "its stream allows" in told(trace)


@pytest.mark.parametrize("end", [gemm(8) - 1, 0, -(2**63) + 1000, 2**62, None])
def test_an_end_that_is_none_is_that_of_the_longest_of_its_name(end: int | None, tmp_path: Path) -> None:
    trace = as_sqlite(tmp_path, {gemm(8): {"end": end}, gemm(9): {"end": gemm(9) + 50 * US}})
    assert kernels(trace) == {**WHOLE, gemm(9): 50 * US}
    assert told(trace).startswith("1 kernel mended")


def test_a_name_without_another_row_ends_where_the_next_one_starts(tmp_path: Path) -> None:
    rename = "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET shortName = n.id, demangledName = n.id FROM "
    rename += f"(SELECT max(id) + 1 AS id FROM StringIds) AS n WHERE start = {gemm(8)}"
    named = "INSERT INTO StringIds (id, value) SELECT max(id) + 1, 'once' FROM StringIds"
    trace = as_sqlite(tmp_path, {gemm(8): {"end": gemm(30)}}, rename, named)
    assert kernels(trace, "once") == {gemm(8): 70 * US}
    # Of one whose end is unknown nothing is known.
    trace = as_sqlite(tmp_path / "other", {gemm(8): {"end": 0}}, rename, named)
    assert len(trace.kernels) == 2 * COUNT - 1
    assert "1 kernel set aside: no end" in told(trace)


@pytest.mark.parametrize("read", READERS)
def test_the_last_row_of_a_stream_is_clipped_where_nothing_else_lasts_as_long(
    read: Reader, tmp_path: Path
) -> None:
    last = gemm(COUNT - 1) + 70 * US
    trace = read(tmp_path, {last: {"end": last + 2 * S}})
    assert kernels(trace, "norm")[last] == 20 * US
    assert "clipped by 2 s" in told(trace)


def test_a_last_kernel_that_the_host_waits_for_is_believed(tmp_path: Path) -> None:
    builder = laid()
    thread = next(iter(builder._processes.values())).thread()
    thread.api("cudaDeviceSynchronize", BASE + 5000 * US, BASE + 6 * S + 10 * US)
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    db = sqlite3.connect(path)
    last = gemm(COUNT - 1) + 70 * US
    with db:
        db.execute(f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = {BASE + 6 * S} WHERE start = {last}")
    db.close()
    trace = read_trace(path)
    assert (kernels(trace, "norm")[last], told(trace)) == (BASE + 6 * S - last, "")


def overlapping(tmp_path: Path, lay: Callable[[Any, Any], None]) -> Trace:
    builder = TimelineBuilder()
    process = builder.process(pid=5)
    thread, gpu = process.thread(), process.device()
    for i in range(COUNT):
        at = BASE + 1000 * i * US
        gpu.kernel("gemm", at, at + 60 * US, launch=(thread, at - 10 * US, at - 8 * US))
    lay(thread, gpu)
    return read_trace(write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite"))


def test_kernels_that_begin_before_the_one_before_them_ends_are_not_clipped(tmp_path: Path) -> None:
    """Programmatic dependent launch: 3 of 60 us, as vLLM's kernels on a B200 overlap."""

    def lay(thread: Any, gpu: Any) -> None:
        for i in range(10):
            at = BASE + (500_000 + 57 * i) * US
            gpu.kernel("gemm", at, at + 60 * US, launch=(thread, at - 10 * US, at - 8 * US))

    trace = overlapping(tmp_path, lay)
    assert (set(kernels(trace).values()), told(trace)) == ({60 * US}, "")


def test_branches_of_a_graph_are_not_clipped(tmp_path: Path) -> None:
    """One launch, one stream in the file: 500 us beside ten of 20 us."""

    def lay(thread: Any, gpu: Any) -> None:
        at = BASE + 500_000 * US
        number = gpu.kernel("gemm", at, at + 500 * US, launch=(thread, at - 10 * US, at - 8 * US))
        for i in range(10):
            gpu.kernel("norm", at + 30 * i * US, at + (30 * i + 20) * US, correlation=number)

    trace = overlapping(tmp_path, lay)
    assert (max(kernels(trace).values()), told(trace)) == (500 * US, "")


def test_communication_shown_on_the_stream_of_compute_is_not_clipped(tmp_path: Path) -> None:
    """ROCm's profiler shows kernels of other streams there: waiting, they last as they like."""

    def lay(thread: Any, gpu: Any) -> None:
        for i, length in enumerate((2500, 5500, 2200, 7200)):
            at = BASE + (10_000 * i + 100) * US
            name = "ncclDevKernel_Generic"
            gpu.kernel(name, at, at + length * US, launch=(thread, at - 10 * US, at - 8 * US))

    trace = overlapping(tmp_path, lay)
    assert sorted(kernels(trace, "ncclDevKernel_Generic").values()) == [
        n * US for n in (2200, 2500, 5500, 7200)
    ]
    assert told(trace) == ""


@pytest.mark.parametrize("table", ["KERNEL", "RUNTIME"])
def test_rows_that_are_there_twice_count_once(table: str, tmp_path: Path) -> None:
    name = f"CUPTI_ACTIVITY_KIND_{table}"
    trace = as_sqlite(tmp_path, {}, f"INSERT INTO {name} SELECT * FROM {name} ORDER BY start LIMIT 30")
    assert (len(trace.kernels), len(trace.api_calls)) == (2 * COUNT, 2 * COUNT)
    what = {"KERNEL": "kernels", "RUNTIME": "calls"}[table]
    assert told(trace) == f"30 {what} set aside: in the file twice."


def test_rows_out_of_order_are_the_same_rows(tmp_path: Path) -> None:
    name = "CUPTI_ACTIVITY_KIND_KERNEL"
    shuffled = (f"CREATE TABLE s AS SELECT * FROM {name} ORDER BY (start / 1000 * 7919) % 1009",)
    shuffled += (f"DROP TABLE {name}", f"ALTER TABLE s RENAME TO {name}")
    trace = as_sqlite(tmp_path, {gemm(8): {"end": gemm(12)}}, *shuffled)
    assert kernels(trace) == WHOLE
    assert not (trace.kernels.start_ns[1:] >= trace.kernels.start_ns[:-1]).all()
    assert told(trace).startswith("1 kernel clipped")


def test_a_damaged_device_leaves_the_other_as_it_is(tmp_path: Path) -> None:
    builder = laid()
    other = next(iter(builder._processes.values())).device(ordinal=1)
    for i in range(COUNT):
        other.kernel("gemm", gemm(i), gemm(i) + 30 * US)
    path = write_nsys_sqlite(builder.build(), tmp_path / "x.sqlite")
    db = sqlite3.connect(path)
    with db:
        db.execute(
            "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start + 900000 WHERE deviceId = 1 "
            f"AND (start - {BASE}) % 500000 = 0"
        )
    db.close()
    trace = read_trace(path)
    lengths = trace.kernels.end_ns - trace.kernels.start_ns
    assert set(lengths[trace.kernels.device == 0].tolist()) == {60 * US, 20 * US}
    assert set(lengths[trace.kernels.device == 1].tolist()) == {30 * US}
    assert told(trace).startswith("8 kernels clipped by 6.96 ms")  # 8 of 870 us


@pytest.mark.parametrize("times", ["start = 0, end = 0", "end = start"])
def test_a_file_of_nothing_but_rows_without_a_time_is_refused(times: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="whose time can be true"):
        as_sqlite(tmp_path, {}, f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET {times}")
    builder = laid()
    device = next(iter(builder._processes.values())).device(ordinal=1)
    device.copy("host_to_device", 64, gemm(0), gemm(1))  # a copy that lasts tells nothing of kernels
    path = write_nsys_sqlite(builder.build(), tmp_path / "y.sqlite")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start")
    with pytest.raises(TraceError, match="whose time can be true"):
        read_trace(path)


@pytest.mark.parametrize(("of_three", "said"), [(1, ""), (2, "kernels counted as nothing: no length")])
def test_kernels_most_of_which_have_no_length_are_told(of_three: int, said: str, tmp_path: Path) -> None:
    where = f"WHERE rowid % 3 < {of_three}"
    trace = as_sqlite(tmp_path, {}, f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = start {where}")
    assert told(trace).partition(" ")[2] == (f"{said}." if said else "")


@pytest.mark.parametrize("dur", [-9223372030.0, -1, 9.3e12, 1e30, "x", None])
def test_a_host_event_without_a_true_length_is_set_aside(dur: object, tmp_path: Path) -> None:
    path = write_kineto(laid().build(), tmp_path / "x.json", pid=5)
    document = json.loads(path.read_text())
    at = gemm(8) / US
    odd = {"ph": "X", "cat": "cpu_op", "name": "aten::copy_", "pid": 5, "tid": 1, "ts": at, "dur": dur}
    fine = [{**odd, "ts": at + i, "dur": 0.5} for i in range(30)]
    document["traceEvents"] += [odd, *fine]
    path.write_text(json.dumps(document))
    trace = read_trace(path)
    assert (len(trace.operators), kernels(trace)) == (30, WHOLE)
    assert told(trace).startswith("1 operator set aside")


def test_payloads_stay_with_their_kernels(tmp_path: Path) -> None:
    """Of three collectives the first has no time."""
    args = {"device": 0, "stream": 7, "Collective name": "allreduce", "dtype": "Float", "Group size": 2}
    rows = [
        {"ph": "X", "cat": "kernel", "name": "nccl", "pid": 0, "tid": 7, "ts": ts, "dur": dur}
        | {"args": {**args, "In msg nelems": count, "Out msg nelems": count}}
        for ts, dur, count in ((0, 0, 10), (2e6, 5, 20), (2e6 + 10, 5, 30))
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    trace = read_trace(path)
    assert trace.kernels.start_ns.tolist() == [2 * S, 2 * S + 10 * US]
    assert (trace.payloads.kernel.tolist(), trace.payloads.bytes.tolist()) == ([0, 1], [80, 120])


def test_kernels_that_all_lost_their_ids_are_told(tmp_path: Path) -> None:
    trace = as_sqlite(tmp_path, {}, "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET correlationId = 0")
    assert kernels(trace) == WHOLE
    assert [n.message[:15] for n in trace.notes if n.code == "kernels-without-launch"] == ["None of 80 kern"]


def test_calls_at_time_0_are_told_and_hide_no_kernel_at_time_0(tmp_path: Path) -> None:
    """A host that seemed to begin at 0 would vouch for kernels there, and the capture would last 100 s."""
    path = write_kineto(laid().build(), tmp_path / "x.json", pid=5)
    document = json.loads(path.read_text())
    of_kernel = [e for e in document["traceEvents"] if e.get("cat") == "kernel" and e["name"] == "gemm"]
    calls = [e for e in document["traceEvents"] if e.get("cat") == "cuda_runtime"]
    for event in (of_kernel[3], calls[10], calls[11]):
        event["ts"] = 0
    path.write_text(json.dumps(document))
    trace = read_trace(path)
    assert min(kernels(trace)) == gemm(0)
    assert len(kernels(trace)) == COUNT - 1
    assert trace.api_calls.start_ns.min() == gemm(0) - 10 * US
    assert "1 kernel set aside" in told(trace)
    assert "2 calls set aside: no time" in told(trace)


@pytest.mark.parametrize("name", [None, 5, " "])
def test_a_kernel_without_a_name_is_work_and_no_idle_time(name: object, tmp_path: Path) -> None:
    path = write_kineto(laid().build(), tmp_path / "x.json", pid=5)
    document = json.loads(path.read_text())
    for event in document["traceEvents"]:
        if event.get("cat") == "kernel" and event["name"] == "norm":
            event["name"] = name
    path.write_text(json.dumps(document))
    trace = read_trace(path)
    assert kernels(trace) == WHOLE
    assert kernels(trace, "(no name)") == {gemm(i) + 70 * US: 20 * US for i in range(COUNT)}
    assert told(trace) == f"{COUNT} kernels kept as unknown work: no name."
