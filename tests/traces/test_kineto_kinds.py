"""Kinds of PyTorch traces by what else wrote or changed them: lost ids, units, vendors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfdoc.traces import Trace
from perfdoc.traces.errors import TraceError
from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.model import CopyKind

Row = dict[str, Any]
STEP_US, KERNEL_US, LAUNCHES = 1_000, 40, 20


def launch(number: int, at: float, **more: Any) -> list[Row]:
    """A call of 5 us, and its kernel 30 us later."""
    common = {"ph": "X", "pid": 3, "tid": 3, "args": {"correlation": number}}
    call = {**common, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at, "dur": 5, **more}
    args = {"device": 0, "stream": 7, "correlation": number}
    kernel = {"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": at + 30, "dur": KERNEL_US}
    return [call, {**kernel, "args": args}]


def rows() -> list[Row]:
    """Two steps of 20 launches, 45 us apart."""
    found: list[Row] = []
    for step in range(2):
        begin = 1_000 + step * STEP_US
        name = f"ProfilerStep#{step}"
        found.append({"ph": "X", "cat": "user_annotation", "name": name, "pid": 3, "tid": 3, "ts": begin})
        found[-1]["dur"] = STEP_US - 10
        for i in range(LAUNCHES):
            found += launch(100 * step + i + 1, begin + 45 * i)
    return found


def read(path: Path, events: list[Row]) -> Trace:
    path.write_text(json.dumps({"traceEvents": events}))
    return read_kineto(path)


def notes(trace: Trace) -> dict[str, str]:
    return {note.code: note.message for note in trace.notes}


def test_an_id_that_all_calls_carry_links_none(tmp_path: Path) -> None:
    events = [{**e, "args": {**e["args"], "correlation": 5}} if "args" in e else e for e in rows()]
    trace = read(tmp_path / "t.json", events)
    assert set(trace.kernels.correlation.tolist()) == {-1} == set(trace.api_calls.correlation.tolist())
    assert "1 correlation id not used" in notes(trace)["damaged-rows"]
    assert "40 of 40" in notes(trace)["kernels-without-launch"]
    # Eight processes of one file have ids of their own, each counted from 1.
    merged = [
        {**e, "pid": 10 * p + e["pid"], "args": {**e.get("args", {}), "device": p}}
        for p in range(9)
        for e in rows()
    ]
    assert "damaged-rows" not in notes(read(tmp_path / "m.json", merged))


@pytest.mark.parametrize("length", [-5, -9223372030.0, 9.3e15])
def test_a_call_without_a_true_length_launched_all_the_same(length: float, tmp_path: Path) -> None:
    events = [*rows(), *launch(900, 2_950, dur=length)]
    trace = read(tmp_path / "t.json", events)
    at = int(trace.api_calls.correlation.tolist().index(900))
    assert (trace.api_calls.start_ns[at], trace.api_calls.end_ns[at]) == (2_950_000, 2_950_000)
    assert "1 call taken for an instant" in notes(trace)["damaged-rows"]
    assert "kernels-without-launch" not in notes(trace)


@pytest.mark.parametrize(
    ("scale", "said"), [(1, ""), (1000, "nanoseconds"), (1e-3, "milliseconds"), (1e-6, "milliseconds")]
)
def test_times_in_another_unit_are_told(scale: float, said: str, tmp_path: Path) -> None:
    def scaled(value: float) -> float | int:
        return int(value * scale) if scale >= 1 else round(value * scale, 9)

    events = [{**e, "ts": scaled(e["ts"] + 10**6), "dur": scaled(e["dur"])} for e in rows()]
    found = notes(read(tmp_path / "t.json", events))
    assert said in found["off-scale"] if said else "off-scale" not in found
    # One collective that waits long does not change what calls say.
    long = {**events[-1], "ts": scaled(10**7), "dur": scaled(9_000.0)}
    found = notes(read(tmp_path / "l.json", [*events, long]))
    assert said in found["off-scale"] if said else "off-scale" not in found


@pytest.mark.parametrize("number", [int, float])
def test_epoch_times_in_nanoseconds_are_told(number: type, tmp_path: Path) -> None:
    events = [{**e, "ts": number(17 * 10**17 + 1000 * e["ts"]), "dur": 1000 * e["dur"]} for e in rows()]
    with pytest.raises(TraceError, match="in nanoseconds since 1970") as told:
        read(tmp_path / "t.json", events)
    assert "by 1000" in told.value.remedy


@pytest.mark.parametrize("head", [{}, {"deviceProperties": [{"id": 0}]}])
def test_a_list_of_whole_traces_is_told(head: Row, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps([{**head, "traceEvents": rows()}] * 2))
    with pytest.raises(TraceError, match="list of whole traces") as told:
        read_kineto(path)
    assert "split" in told.value.remedy
    path.write_text(json.dumps(rows()))
    assert len(read_kineto(path).kernels) == 40


COPIES = {
    "Memcpy HtoD (Pinned -> Device)": (CopyKind.HOST_TO_DEVICE, 1),
    "Memcpy DtoH (Device -> Pageable)": (CopyKind.DEVICE_TO_HOST, 0),
    "Memcpy PtoP (Device -> Device)": (CopyKind.PEER_TO_PEER, -1),
    "CopyHostToDevice": (CopyKind.HOST_TO_DEVICE, -1),
    "CopyDeviceToHost": (CopyKind.DEVICE_TO_HOST, -1),
    "CopyDeviceToDevice2D": (CopyKind.DEVICE_TO_DEVICE, -1),
    "hipMemcpyDtoH": (CopyKind.DEVICE_TO_HOST, -1),
    "zeCommandListAppendMemoryCopy(M2D)[4096 bytes]": (CopyKind.HOST_TO_DEVICE, -1),
    "Memcpy D2M (Device -> Memory)": (CopyKind.DEVICE_TO_HOST, -1),
    "Memcpy": (CopyKind.OTHER, -1),
    "Copy of AtoDb": (CopyKind.OTHER, -1),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies_of_every_vendor_have_a_direction(name: str, tmp_path: Path) -> None:
    row = {"ph": "X", "cat": "gpu_memcpy", "name": name, "pid": 0, "tid": 7, "ts": 5, "dur": 2}
    trace = read(tmp_path / "t.json", [{**row, "args": {"device": 0, "stream": 7, "bytes": 64}}])
    assert (CopyKind(int(trace.copies.kind[0])), int(trace.copies.pinned[0])) == COPIES[name]


def test_device_rows_of_mtia_are_kernels(tmp_path: Path) -> None:
    as_mtia = {"kernel": "mtia_ccp_events", "cuda_runtime": "mtia_runtime"}
    events = [{**e, "cat": as_mtia.get(e["cat"], e["cat"])} for e in rows()]
    trace = read(tmp_path / "t.json", events)
    assert len(trace.kernels) == len(trace.api_calls) == 2 * LAUNCHES


def by_external_id(event: Row) -> Row:
    """As Kineto over roctracer writes a call and its kernel: one id, and the GPU as the process."""
    number = {"External id": event["args"]["correlation"]} if "args" in event else {}
    return {**event, "args": number}


def test_calls_and_kernels_that_share_an_external_id_are_linked(tmp_path: Path) -> None:
    operator = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 3, "tid": 3, "ts": 1_000, "dur": 9}
    events = [{**operator, "args": {"External id": 513}}, *map(by_external_id, rows())]
    trace = read(tmp_path / "t.json", events)
    assert trace.kernels.correlation.tolist() == [100 * step + i for step in (0, 1) for i in range(1, 21)]
    assert trace.api_calls.correlation.tolist() == trace.kernels.correlation.tolist()
    assert trace.capabilities["launch_correlation"].available
    # Kernels of another name that no operator launches have none.
    more = [
        {**e, "args": {}, "name": "graph"} if e["cat"] == "kernel" and e["ts"] >= 2_000 else e for e in events
    ]
    assert read(tmp_path / "more.json", more).kernels.correlation.tolist() == [*range(1, 21), *[-1] * 20]
    # In newer files that id is the operator's: of two launches in one operator neither kernel is told.
    of_operator = [
        {**e, "args": {"External id": 7 + (e["ts"] >= 2_000)}} if "args" in e else e for e in events
    ]
    shared = read(tmp_path / "shared.json", of_operator)
    assert set(shared.kernels.correlation.tolist()) == {-1}
    ids = [e.get("args", {}).get("External id", 0) // 2 for e in events]
    pairs = [{**e, "args": {"External id": i}} if i else e for e, i in zip(events, ids, strict=True)]
    # One launch alone has 10, 50 and 60.
    assert set(read(tmp_path / "pairs.json", pairs).kernels.correlation.tolist()) == {-1, 10, 50, 60}
    # What else an operator calls is no launch: the kernels are the same.
    calls = [
        {**e, "name": "hipMalloc", "ts": e["ts"] - 0.5, "dur": 0.25}
        for e in events
        if e["cat"] == "cuda_runtime"
    ]
    allocates = read(tmp_path / "allocates.json", [*calls, *events])
    linked = allocates.api_calls.correlation >= 0
    assert {allocates.strings[i] for i in allocates.api_calls.name[linked]} == {"cudaLaunchKernel"}
    assert (allocates.kernels.correlation >= 0).all()
    # Where one kernel has a correlation id, the others' external ids are operators'.
    mixed = read(tmp_path / "mixed.json", [*events, *launch(900, 3_000)])
    assert sorted(set(mixed.kernels.correlation.tolist())) == [-1, 900]
