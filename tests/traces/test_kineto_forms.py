"""One PyTorch trace written in other forms of the same JSON: what is read is the same."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perfdoc.traces import Trace, TraceError
from perfdoc.traces.kineto import cutting
from perfdoc.traces.kineto.read import read_kineto

Event = dict[str, Any]


def events() -> list[Event]:
    """Three steps, each with a product inside a layer's operator; its kernel takes 40.125 us."""
    found: list[Event] = []
    for i in range(3):
        at, host = 1_000_000 + 100 * i, {"ph": "X", "pid": 5, "tid": 6}
        ids = {"correlation": 70 + i}
        found += [
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{i}", "ts": at, "dur": 90},
            {**host, "cat": "cpu_op", "name": "layer", "ts": at + 1, "dur": 20},
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": at + 2, "dur": 12.5},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": at + 3, "dur": 4, "args": ids},
            {**host, "pid": 0, "tid": 7, "cat": "kernel", "name": "gemm", "ts": at + 13.5, "dur": 40.125}
            | {"args": {"device": 0, "stream": 7, **ids}},
        ]
    return found


def in_two(rows: list[Event]) -> list[Event]:
    """As Chrome's begin and end events, an end without a name."""
    found: list[tuple[float, int, Event]] = []
    for row in rows:
        begin = {key: value for key, value in row.items() if key != "dur"} | {"ph": "B"}
        end = {"ph": "E", "pid": row["pid"], "tid": row["tid"], "ts": row["ts"] + row["dur"]}
        found += [(begin["ts"], 1, begin), (end["ts"], 0, end)]
    return [event for _, _, event in sorted(found, key=lambda item: item[:2])]


def as_text(rows: list[Event]) -> list[Event]:
    return [{**row, "ts": str(row["ts"]), "dur": str(row["dur"])} for row in rows]


def with_float_ids(rows: list[Event]) -> list[Event]:
    """As a data frame writes whole numbers beside missing ones."""
    return [
        {**row, "args": {key: float(value) for key, value in row["args"].items()}} if "args" in row else row
        for row in rows
    ]


def document(rows: list[Event]) -> bytes:
    return json.dumps({"traceEvents": rows}).encode()


FORMS: dict[str, Callable[[], bytes]] = {
    "begin and end": lambda: document(in_two(events())),
    "a line each": lambda: b"\n".join(json.dumps(row).encode() for row in events()),
    "a line each, the last ended": lambda: b"".join(json.dumps(r).encode() + b"\r\n" for r in events()),
    "a line each, packed": lambda: gzip.compress(b"\n".join(json.dumps(r).encode() for r in events())),
    "packed, with rubbish behind": lambda: gzip.compress(document(events())) + b"\0\0rubbish",
    "times as text": lambda: document(as_text(events())),
    "ids as 70.0": lambda: document(with_float_ids(events())),
}


def rows_of(trace: Trace) -> list[tuple[object, ...]]:
    """Every row of every table, with names for their indices."""
    found: list[tuple[object, ...]] = []
    for table in (trace.kernels, trace.api_calls, trace.operators, trace.ranges):
        names = trace.names(table.name)
        columns = [c for c in table.column_names() if c not in ("name", "full_name")]
        values = (getattr(table, column).tolist() for column in columns)
        found += sorted(zip(names, *values, strict=True))
    return found


@pytest.mark.parametrize("form", FORMS)
def test_a_form_holds_what_the_plain_file_does(form: str, tmp_path: Path) -> None:
    (tmp_path / "plain.json").write_bytes(document(events()))
    (tmp_path / "other.json").write_bytes(FORMS[form]())
    plain, other = read_kineto(tmp_path / "plain.json"), read_kineto(tmp_path / "other.json")
    assert len(plain.kernels) == 3
    assert plain.kernels.end_ns[0] - plain.kernels.start_ns[0] == 40_125
    assert rows_of(other) == rows_of(plain)
    assert list(other.notes) == list(plain.notes)


def test_an_event_that_never_ends_is_set_aside(tmp_path: Path) -> None:
    rows = in_two(events())
    last = max(i for i, row in enumerate(rows) if row["ph"] == "E" and row["tid"] == 7)
    first = min(i for i, row in enumerate(rows) if row["ph"] == "B")
    path = tmp_path / "x.json"
    path.write_bytes(document([{"ph": "E", "pid": 5, "tid": 6, "ts": 1}, *rows[:last], *rows[last + 1 :]]))
    trace = read_kineto(path)
    assert first == 0
    assert len(trace.kernels) == 2
    (note,) = (n for n in trace.notes if n.code == "damaged-rows")
    assert note.rows == {"kernel, set aside: no end": 1, "event, set aside: an end without a begin": 1}


def test_lines_are_cut_where_they_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of 100 bytes: every joint between two events falls somewhere else in one."""
    monkeypatch.setattr("perfdoc.traces.kineto.unpack.PIECE_BYTES", 100)
    path = tmp_path / "x.json"
    path.write_bytes(b" \n".join(json.dumps(row).encode() for row in events()))
    assert len(read_kineto(path).kernels) == 3


@pytest.mark.parametrize("piece", [100, 8 << 20])
@pytest.mark.parametrize(
    ("second", "at_us"),
    [
        (document(events()), [0, 100, 200]),
        (b'{"msg": "done"}', [0, 100, 200]),
        # The trace's last event and the line behind it cannot be told apart by their commas.
        (json.dumps({**events()[-1], "ts": 1_000_913.5}).encode(), [0, 100, 900]),
    ],
    ids=["trace", "message", "kernel"],
)
def test_a_line_behind_a_whole_trace_does_not_cost_it(
    second: bytes, at_us: list[int], piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfdoc.traces.kineto.unpack.PIECE_BYTES", piece)
    path = tmp_path / "x.json"
    path.write_bytes(document(events()) + b"\n" + second)
    starts = read_kineto(path).kernels.start_ns
    assert (starts - starts[0]).tolist() == [1_000 * at for at in at_us]


@pytest.mark.parametrize("piece", [1 << 10, 8 << 20])
def test_lines_far_apart_are_searched_once(
    piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Takes milliseconds; half a minute where the blank lines are gone through again from each of them."""
    monkeypatch.setattr("perfdoc.traces.kineto.unpack.PIECE_BYTES", piece)
    path = tmp_path / "x.json"
    path.write_bytes(json.dumps(events()[-1]).encode() + b"\n" * 60_000 + b"x")
    began = time.process_time()
    with pytest.raises(TraceError):
        read_kineto(path)
    assert time.process_time() - began < 5


def test_a_line_without_an_end_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cutting, "MAX_UNCUT_BYTES", 10)
    assert b"".join(cutting.as_list(iter([b'{"a":1}\n', b'{"b":', b"2}"]))) == b'[{"a":1},{"b":2}]'
    with pytest.raises(cutting.UncutError):
        list(cutting.as_list(iter([b'{"a":1}\n', b" " * 5, b" " * 5])))


def test_a_list_of_whole_traces_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(b"[" + document(events()) + b"," + document(events()) + b"]")
    with pytest.raises(TraceError, match="list of whole traces"):
        read_kineto(path)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_without_its_mark_is_named(encoding: str, tmp_path: Path) -> None:
    from perfdoc.traces.load import read_trace

    path = tmp_path / "x.json"
    path.write_bytes(document(events()).decode().encode(encoding))
    with pytest.raises(
        TraceError, match=f"UTF-16.*{encoding.replace('-', '').replace('utf', 'utf-')}".upper()
    ):
        read_trace(path)
