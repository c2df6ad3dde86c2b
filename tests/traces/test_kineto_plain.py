"""Events that are decoded many at once are the events that are read one by one."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoc.traces.kineto import plain, rows
from perfdoc.traces.kineto.plain import plain_events
from perfdoc.traces.kineto.values import Number, interval_ns
from tests.amount import tries
from tests.traces.test_kineto_batches import answer

TIMES = ("0", "7", "5.125", "1700000000000152.5", "3999999999999999", "12.0005", "0.0015", "0.0025")
TIMES += ("15442.527830600739", "1.00049999", "2.5000000000000000000000000000000000001", "0.1234567")
ODD_TIMES = (
    "-1",
    "1e3",
    "null",
    '"3.5"',
    "[1,\n2]",
    "1700000000000000000",
    "99999999999999999999",
    '"\\ud8"',
)
CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset", "cuda_runtime", "cpu_op", "Operator", "cuda_sync")
CATEGORIES += ("cuda_event", "user_annotation", "python_function", "ac2g", "overhead", "strange")
NAMES: tuple[Any, ...] = (
    "k",
    "void a::b<int>(int)",
    "Memcpy DtoH (Device -> Pageable)",
    "## x",
    "a.py(3): f",
)
VALUES: tuple[Any, ...] = (0, 7, 2**31, 2**32 - 1, 2**70, 7.0, -1, None, "stream 7", [1, 2], {"a": 1}, True)
KEYS = ("device", "stream", "correlation", "bytes", "grid", "Collective name", "Process Group Name", "dtype")
KEYS += ("Input Dims", "Input dims", "Input type", "Concrete Inputs", "Input Strides", "External id")


def event(rng: Random) -> str:
    """Of any kind; two of three are as Kineto writes them."""
    odd = rng.random() < 0.3
    row: dict[str, Any] = {"ph": "X", "cat": rng.choice(CATEGORIES), "name": rng.choice(NAMES), "pid": 0}
    row["tid"] = rng.choice((1, 7))
    values = VALUES if odd else VALUES[:2]
    row["args"] = {key: rng.choice(values) for key in KEYS if rng.random() < 0.4}
    if odd:
        row["ph"] = rng.choice(("X", "X", "B", "E", "i", "M", "s", "", 3))
        row[rng.choice(tuple(row))] = rng.choice(VALUES)
        row = {key: value for key, value in row.items() if rng.random() < 0.95}
    times = (*TIMES, *ODD_TIMES) if odd else TIMES
    spans = "".join(f', "{k}": {rng.choice(times)}' for k in ("ts", "dur") if not odd or rng.random() < 0.9)
    text = json.dumps(row)[:-1] + (spans if len(row) else spans[1:]) + "}"
    return text.replace('"k"', '"\x01"') if odd and rng.random() < 0.1 else text


@settings(
    max_examples=tries(60, 600), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(seed=st.integers(0, 2**32))
def test_any_events_give_the_trace_of_one_by_one(seed: int, tmp_path: Path) -> None:
    rng = Random(seed)
    path = tmp_path / "trace.json"
    found = [event(rng) for _ in range(rng.randrange(1, 40))]
    path.write_text(f'{{"traceEvents": [{",".join(found)}]}}')
    together = answer(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "_decode", msgspec.json.Decoder(int).decode)
        assert answer(path) == together


@settings(max_examples=tries(200, 2000), deadline=None)
@given(
    numbers=st.lists(
        st.tuples(
            st.sampled_from(TIMES) | st.decimals(0, 10**13, allow_nan=False, places=3).map(str),
            st.sampled_from(TIMES) | st.decimals(0, 10**6, allow_nan=False, places=7).map(str),
        ),
        max_size=8,
    )
)
def test_times_are_exact(numbers: list[tuple[str, str]]) -> None:
    numbers = [pair for pair in numbers if "E" not in "".join(pair)]
    raws = [msgspec.Raw(f'{{"ph":"X","ts":{ts},"dur":{dur}}}'.encode()) for ts, dur in numbers]
    for (ts, dur), (_, _, _, start, end) in zip(numbers, plain_events(raws), strict=True):
        if end >= 0:
            assert (start, end) == interval_ns(Number(ts), Number(dur))
        else:  # left to who reads one by one: no start in whole ns
            assert len(ts.partition(".")[2]) > 3


def test_plain_events_are_not_decoded_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """20 of each kind, of which two have a time with an exponent, which is as exact."""
    kinds = ("kernel", "gpu_memcpy", "cuda_runtime", "cpu_op", "user_annotation", "python_function", "ac2g")
    events = [
        {
            "ph": "X",
            "cat": kind,
            "name": "k",
            "pid": 0,
            "tid": 7,
            "ts": 10 * i,
            "dur": 5,
            "args": {"stream": 7},
        }
        for i in range(20)
        for kind in kinds
    ]
    events += [{"ph": "s", "id": 3, "pid": 0, "tid": 7, "ts": 5, "cat": "ac2g", "name": "ac2g"}] * 20
    text = json.dumps({"traceEvents": events}).replace('"ts": 40,', '"ts": 4e1,', 2)
    (tmp_path / "trace.json").write_text(text)
    singly: list[bytes] = []
    one = rows.decode_event
    monkeypatch.setattr(rows, "decode_event", lambda raw: (singly.append(bytes(raw)), one(raw))[1])
    found = answer(tmp_path / "trace.json")
    assert len(singly) == 2
    assert found["kernels"]["start_ns"] == [10_000 * i for i in range(20)]
    assert found["kernels"]["end_ns"] == [10_000 * i + 5_000 for i in range(20)]
    assert len(found["operators"]["name"]) == len(found["api_calls"]["name"]) == 20


def test_a_number_is_no_name_where_that_text_is_one(tmp_path: Path) -> None:
    """Text and a number that are equal: of three operators the second has no name."""
    row = '{"ph": "X", "cat": "cpu_op", "name": NAME, "pid": 0, "tid": 7, "ts": 1, "dur": 5}'
    read = rows.EventRows(tmp_path)
    read.read([msgspec.Raw(row.replace("NAME", name).encode()) for name in ('"5.5"', "5.5", '"5.5"')])
    assert len(read.operators) == 2
    assert read.first_bad == "event 1 of traceEvents ('cpu_op') has no name."
