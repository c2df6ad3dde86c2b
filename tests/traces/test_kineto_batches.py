"""A trace read in batches is the trace read whole: whatever its layout, and wherever it is cut."""

from __future__ import annotations

import gzip
import json
import re
import threading
import traceback
import tracemalloc
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoc.traces import TraceError
from perfdoc.traces.kineto import cutting, unpack
from perfdoc.traces.kineto.document import read_document
from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.table import Table
from tests.amount import some, tries
from tests.traces.test_kineto_bad_input import GOOD, ODD_BUT_READ, REFUSED

NAMES = ("k", "}, {", '},\n{"ph": "', 'a"b\\', "[[", "]}", "\\", "caf\u00e9 \u2192", '\\"},{"', "x" * 300)
EXTRAS = (1, "}", [{"a": 1}, {"ph": "X"}], {"b": {"c": []}}, [[1, 2], []], None, "\\\\")


def pieces_of(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(unpack, "PIECE_BYTES", size)


def answer(path: Path) -> Any:
    """All of a trace, or the line that refuses it."""
    try:
        trace = read_kineto(path)
    except TraceError as error:
        return str(error)
    return {
        f.name: {c: getattr(value, c).tolist() for c in value.column_names()}
        if isinstance(value := getattr(trace, f.name), Table)
        else repr(value)
        for f in fields(trace)
    }


def events(rng: Random, count: int) -> list[Any]:
    """Kernels, calls, operators and what is ignored."""
    made: list[Any] = []
    for i in range(count):
        category, name = rng.choice(("kernel", "cpu_op", "cuda_runtime", "ac2g")), rng.choice(NAMES)
        args = {"stream": 7, "correlation": i + 1, name: rng.choice(EXTRAS), "Input Dims": [[i % 3, 2], []]}
        row: dict[str, Any] = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7}
        row |= {"ts": i * 10 + 0.125, "dur": rng.choice((1, 2.5)), "args": args}
        made.append(rng.choice((7, None, "x", [])) if rng.random() < 0.05 else row)
    return made


def laid_out(rng: Random, rows: list[Any]) -> bytes:
    """As one of the writers does: keys around in any order, blanks or none, a bare list."""
    blanks = rng.choice(({}, {"indent": 2}, {"separators": (",", ":")}, {"sort_keys": True}))
    around = [("schemaVersion", 1), ("distributedInfo", {"rank": 3}), ("traceName", "}],{"), ("x", EXTRAS[2])]
    around += rng.choice(([], [("traceEvents", [])], [("a", {"traceEvents": [{"ph": "X"}]})]))
    rng.shuffle(around)
    at = rng.randrange(len(around) + 1)
    pairs = [*around[:at], ("traceEvents", rows), *around[at:]]
    if rng.random() < 0.2:
        return json.dumps([GOOD, *rows], **blanks).encode()  # type: ignore[arg-type]
    body = ",".join(f"{json.dumps(k)}: {json.dumps(v, **blanks)}" for k, v in pairs)  # type: ignore[arg-type]
    return f"{{{body}}}".encode()


def _break(rng: Random, content: bytes) -> bytes:
    at = rng.randrange(len(content))
    piece = rng.choice(
        (b"NaN", b"\x01", b'"', b"\\", b"\xff", b",", b"]", b"}", b"{", b"[", b'"\\x"', b"-inf", b"")
    )
    return (
        content[: at if rng.random() < 0.1 else len(content)]
        if not piece
        else (content[:at] + piece + content[at + rng.randrange(2) :])
    )


@settings(
    max_examples=tries(60, 600), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(seed=st.integers(0, 2**32), size=st.sampled_from((100, 300, 1000, 4000)), broken=st.booleans())
def test_any_cuts_give_the_same_trace(seed: int, size: int, broken: bool, tmp_path: Path) -> None:
    rng = Random(seed)
    content = laid_out(rng, events(rng, rng.randrange(1, 60)))
    path = tmp_path / "trace.json"
    path.write_bytes(_break(rng, content) if broken else content)
    whole = answer(path)
    with pytest.MonkeyPatch.context() as patch:
        pieces_of(patch, size)
        cut = answer(path)
    if isinstance(whole, str) and "cannot be read" in whole and isinstance(cut, str):
        return  # of a text broken in several ways another one may be named
    assert cut == whole


PIECE_BYTES = 1 << 10


def after_good_ones(case: str) -> bytes:
    """The odd event comes after hundreds of good ones."""
    content, *_ = REFUSED.get(case) or ODD_BUT_READ[case]
    assert isinstance(content, bytes)
    good = (GOOD + ",").encode() * 200
    return re.sub(rb'"traceEvents": ?\[', lambda found: found[0] + good, content)


CUT = [case for case in (*REFUSED, *ODD_BUT_READ) if len(after_good_ones(case)) > PIECE_BYTES]
"""The others are one piece anyway."""


@pytest.mark.parametrize("case", CUT)
def test_odd_files_in_batches(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(after_good_ones(case))
    whole = answer(path)
    pieces_of(monkeypatch, PIECE_BYTES)
    assert answer(path) == whole


@pytest.mark.parametrize(
    ("end", "said"), [(b"", "gzip file is truncated"), (bytes(8), "gzip file is damaged")]
)
def test_what_fails_in_the_thread_that_unpacks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes, said: str
) -> None:
    """Pieces were read by then; the last eight bytes are a checksum and a length."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + b",".join([GOOD.encode()] * 300) + b"]}")[:-8] + end)
    pieces_of(monkeypatch, PIECE_BYTES)
    threads = threading.active_count()
    pieces = unpack.unpacked(path, 1 << 30)
    assert len(next(pieces)) == len(next(pieces)) == PIECE_BYTES
    with pytest.raises(TraceError, match=said) as found:
        list(pieces)
    cause = found.value.__context__
    assert cause is not None
    assert "concurrent/futures/thread.py" in "".join(traceback.format_tb(cause.__traceback__))
    assert threading.active_count() == threads
    with pytest.raises(TraceError, match=said):
        read_document(path)


def test_of_a_file_without_an_event_that_can_be_read_the_first_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces_of(monkeypatch, 1 << 10)
    path = tmp_path / "trace.json"
    other, bad = GOOD.replace('"X"', '"s"'), GOOD.replace('"ts":5.000', '"ts":"x"')
    path.write_bytes(f'{{"traceEvents":[{",".join([other] * 100)},{bad},{bad}]}}'.encode())
    with pytest.raises(TraceError, match=r"event 100 of traceEvents .*ts that is not"):
        read_kineto(path)


def test_what_cannot_be_cut_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces_of(monkeypatch, 1 << 10)
    monkeypatch.setattr(cutting, "MAX_UNCUT_BYTES", 1 << 14)
    path = tmp_path / "trace.json"
    long = json.dumps("x" * ((1 << 14) * 6 // 5))
    for content in (
        f'{{"traceEvents":[{GOOD}],"x":{long}}}',
        f'{{"x":{long},"traceEvents":[{GOOD}]}}',
        f'{{"traceEvents":[{GOOD},{{"ph":"X","x":{long}}},{GOOD}]}}',
    ):
        path.write_text(content)
        with pytest.raises(TraceError, match="is longer than"):
            read_kineto(path)


@pytest.mark.parametrize("mended", some([False, True], [False]))
def test_memory_does_not_grow_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mended: bool
) -> None:
    """But for the columns: 6 MB of events of which none is a row."""
    pieces_of(monkeypatch, 1 << 16)
    path = tmp_path / "trace.json.gz"
    flow = b'{"ph":"f","id":1,"pid":2,"tid":3,"ts":4.5,"cat":"ac2g","name":"ac2g","bp":"e"},' * 80_000
    last = b'{"ph":"X","x":NaN},' if mended else b""
    path.write_bytes(gzip.compress(b'{"traceEvents":[' + flow + last + GOOD.encode() + b"]}", 1))
    read_kineto(path)  # what is imported and made once
    tracemalloc.start()
    try:
        trace = read_kineto(path)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(trace.kernels) == 1
    assert ("json-repaired" in {note.code for note in trace.notes}) is mended
    assert most < 3 << 20


def test_gzip_of_several_members(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = (GOOD.replace('"ts":5.000', f'"ts":{5 + i}.000').encode() for i in range(300))
    content = b'{"traceEvents":[' + b",".join(rows) + b"]}"
    path = tmp_path / "trace.json.gz"
    parts = [gzip.compress(content[at : at + 7_000]) for at in range(0, len(content), 7_000)]
    for packed in (parts, [*parts, bytes(100)], [parts[0], bytes(9), *parts[1:]]):
        path.write_bytes(b"".join(packed))
        for size in (500, 1 << 20):
            pieces_of(monkeypatch, size)
            assert len(read_kineto(path).kernels) == 300
    path.write_bytes(b"".join(parts)[:-3])
    with pytest.raises(TraceError, match="gzip file is truncated"):
        read_document(path)
    assert len(read_kineto(path).kernels) == 300  # its checksum is cut off
