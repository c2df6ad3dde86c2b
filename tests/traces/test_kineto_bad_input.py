"""Files that are refused with one line, and broken JSON that Kineto is known to write."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoc.traces import TraceError
from perfdoc.traces.kineto import unpack
from perfdoc.traces.kineto.document import read_document
from perfdoc.traces.kineto.read import read_kineto
from perfdoc.traces.kineto.repair import repair
from tests.amount import tries
from tests.fuzz.edits import JSON_SPLICES

GOOD = '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":5.000,"dur":1.000,"args":{"stream":7}}'


def trace_of(*events: str) -> bytes:
    return f'{{"traceEvents":[{",".join(events)}]}}'.encode()


def kernel(**changes: object) -> str:
    """The good kernel with fields replaced; None drops a field."""
    event = {**json.loads(GOOD), **changes}
    return json.dumps({key: value for key, value in event.items() if value is not None})


FULL = trace_of(*(GOOD.replace('"k"', f'"k{i}"') for i in range(50)))

REFUSED = {
    "empty file": (b"", "empty"),
    "truncated in its first event": (FULL[:60], "truncated"),
    "gzip truncated in its header": (gzip.compress(FULL)[:12], "truncated"),
    "damaged gzip": (gzip.compress(FULL)[:30] + b"\xff" * 20 + gzip.compress(FULL)[50:], "damaged|truncated"),
    "gzip with a wrong checksum": (gzip.compress(FULL)[:-8] + b"\0" * 8, "damaged"),
    "binary": (bytes(range(256)), "begins with zeros"),
    "SQLite": (b"SQLite format 3\0" + bytes(100), "cannot be read"),
    "a number": (b"5", "no profiler trace"),
    "another object": (b'{"a": 1}', "no profiler trace"),
    "traceEvents is null": (b'{"traceEvents": null}', "no profiler trace"),
    "most events are no JSON": (trace_of(GOOD, *[GOOD.replace('"pid":0', '"pid":')] * 3), "no JSON"),
    # The JSON reader's depth is bounded by the stack, whose size Python decides.
    "deep nesting": (b"[" * 200_000 + b"]" * 200_000, "nested too deeply|without events"),
    "deep nesting in arguments": (
        trace_of(GOOD.replace('"stream":7', '"stream":' + "[" * 100_000 + "]" * 100_000)),
        "nested too deeply",
    ),
    "deep nesting in a field": (
        trace_of(GOOD.replace('"dur":1.000', '"dur":' + "[" * 100_000 + "]" * 100_000)),
        "nested too deeply",
    ),
    "negative time on a device": (trace_of(kernel(ts=-1)), "time can be true"),
    "time past int64": (trace_of(kernel(ts=2**62)), "64-bit nanoseconds"),
    "end past int64": (trace_of(kernel(ts=2**63 // 1000, dur=2**53)), "time can be true"),
    "time with a huge exponent": (trace_of(GOOD.replace("5.000", "1e400")), "64-bit nanoseconds"),
    "number of 5000 digits": (trace_of(GOOD.replace("5.000", "1" * 5000)), "no JSON|64-bit"),
    "time is text": (trace_of(kernel(ts="five")), "ts that is not a number"),
    "time is NaN": (trace_of(GOOD.replace("5.000", "NaN")), "no ts"),
    "time is missing": (trace_of(kernel(ts=None)), "no ts"),
    "duration is missing": (trace_of(kernel(dur=None)), "time can be true"),
    "name is missing": (trace_of(kernel(cat="cpu_op", name=None)), "no name"),
    "name is a fraction": (trace_of(kernel(cat="cpu_op", name=5.5)), "no name"),
    "args is a list": (trace_of(kernel(args=[1])), "args that are not an object"),
    "bad API call": (trace_of(kernel(cat="cuda_runtime", ts={})), "ts that is not a number"),
    "bad annotation": (trace_of(kernel(cat="user_annotation", ts=[])), "ts that is not a number"),
}


QUOTED = GOOD.replace('"k"', '"{"a": "b", "c": "d"}(12): k"')
ARGUMENT = GOOD.replace('"stream":7', '"Call stack":"f("x", "y")","stream":7')
SALVAGED: dict[str, tuple[bytes, int, set[str]]] = {
    # The last of 50 events lacks its end.
    "truncated": (FULL[:-10], 49, {"broken-off"}),
    "truncated behind an event": (FULL[:-2], 50, {"broken-off"}),
    "truncated behind the events": (FULL[:-1] + b',"deviceProp', 50, {"json-repaired"}),
    "truncated gzip": (gzip.compress(FULL[:-2])[:-8], 50, {"broken-off"}),
    "trailing comma": (trace_of(GOOD)[:-2] + b",]}", 1, {"json-repaired"}),
    "trailing rubbish": (FULL + b"}", 50, {"json-repaired"}),
    "no commas": (trace_of(GOOD, kernel(name="l")).replace(b"}},{", b"}}\n{"), 2, {"json-repaired"}),
    "bare quotes in a name": (trace_of(GOOD, QUOTED, kernel(name="l")), 3, {"json-repaired"}),
    "bare quotes in the last name": (trace_of(GOOD, QUOTED), 2, {"json-repaired"}),
    "bare quotes in an argument": (trace_of(ARGUMENT, kernel(name="l")), 2, {"json-repaired"}),
    "bare quotes and backslashes": (
        trace_of(GOOD.replace('"k"', r'"C:\"p"\q"'), kernel(name="l")),
        2,
        {"json-repaired"},
    ),
    "one event beyond repair": (
        trace_of(GOOD, GOOD.replace('"pid":0', '"pid":'), kernel(name="l")),
        2,
        {"json-repaired", "damaged-rows"},
    ),
}


@pytest.mark.parametrize("case", SALVAGED)
@pytest.mark.parametrize("piece_bytes", [64, 8 << 20])
def test_what_is_whole_is_read(
    case: str, piece_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpack, "PIECE_BYTES", piece_bytes)
    content, kernels, codes = SALVAGED[case]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    trace = read_kineto(path)
    assert len(trace.kernels) == kernels
    assert codes == {note.code for note in trace.notes} - {"kernels-without-launch"}


def test_a_name_with_bare_quotes_has_one_reading(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(trace_of(QUOTED, ARGUMENT))
    trace = read_kineto(path)
    assert trace.names(trace.kernels.full_name) == ['{"a": "b", "c": "d"}(12): k', "k"]
    assert trace.kernels.stream.tolist() == [7, 7]


def test_what_stands_around_the_events_is_read_with_them(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    gpu = b'"deviceProperties":[{"id":0,"name":"H100"}],'
    path.write_bytes(b"{" + gpu + trace_of(QUOTED)[1:-1] + b',"baseTimeNanoseconds":1700000000000000000}')
    trace = read_kineto(path)
    assert (trace.devices[0].gpu_name, trace.utc_origin_ns) == ("H100", 1_700_000_000_000_000_000)
    path.write_bytes(path.read_bytes()[:-3])  # behind the events nothing is left
    assert (read_kineto(path).devices[0].gpu_name, read_kineto(path).utc_origin_ns) == ("H100", None)


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_one_line(case: str, tmp_path: Path) -> None:
    content, complaint = REFUSED[case]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=complaint) as caught:
        read_kineto(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    assert len(message) < 500
    assert caught.value.remedy


def test_a_gzip_bomb_stops_at_the_bound(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b" " * (64 << 20)))
    with pytest.raises(TraceError, match="more than 1,000 bytes"):
        read_document(path, max_bytes=1000)


def test_zeros_are_refused_by_their_beginning(tmp_path: Path) -> None:
    path = tmp_path / "zeros.json.gz"
    path.write_bytes(gzip.compress(bytes(64 << 20), 1))
    with pytest.raises(TraceError, match="begins with zeros"):
        read_document(path, max_bytes=32 << 20)  # of which the first 16 MiB are unpacked


ODD_BUT_READ = {
    "events that are no objects": (trace_of("7", "null", '"x"', "[]", GOOD), {"ignored-events"}),
    "category that is no text": (trace_of(kernel(cat=["kernel"]), GOOD), {"ignored-events"}),
    "phase that is no text": (trace_of(kernel(ph=1), GOOD), {"ignored-events"}),
    "arguments that are null": (trace_of(GOOD.replace('{"stream":7}', "null")), set()),
    "no arguments": (trace_of(GOOD.replace(',"args":{"stream":7}', "")), set()),
    "correlation past int64": (
        trace_of(GOOD, kernel(name="l", args={"stream": 7, "correlation": 2**63})),
        set(),
    ),
    "process id past int64": (trace_of(GOOD, kernel(cat="cpu_op", pid=2**64)), set()),
    "rank past int64": (FULL[:-1] + b',"distributedInfo":{"rank":%d}}' % 2**70, set()),
    "no length, beside one of its name": (trace_of(GOOD, kernel(dur=-1, tid=9)), {"damaged-rows"}),
    "no time": (trace_of(GOOD, kernel(ts=0, dur=0)), {"damaged-rows"}),
    "no name": (trace_of(GOOD, kernel(name=None)), {"damaged-rows"}),
    "time past int64": (trace_of(GOOD, kernel(ts=2**62)), {"damaged-rows"}),
    "time is NaN": (
        trace_of(GOOD, kernel(name="l").replace("5.0", "NaN")),
        {"damaged-rows", "json-repaired"},
    ),
    "args is a list": (trace_of(GOOD, kernel(args=[1])), {"damaged-rows"}),
    "odd grid": (trace_of(GOOD.replace('"stream":7', '"stream":7,"grid":"x","block":[1,2,3,4]')), set()),
    "unknown keys": (trace_of(GOOD.replace('"pid"', '"zz":[{"a":{}}],"pid"')), set()),
    "extra top-level keys": (FULL[:-1] + b',"x":{"traceEvents":1}}', set()),
    "control character in a name": (trace_of(GOOD, GOOD.replace('"k"', '"k\x01\n"')), {"json-repaired"}),
    "not UTF-8": (trace_of(GOOD).replace(b'"k"', b'"k\xff\xc3"'), {"json-repaired"}),
    "a thread that is a fraction": (
        trace_of(GOOD, kernel(cat="cuda_runtime", name="cudaLaunchKernel", tid=5.5, pid=1.5)),
        set(),
    ),
    "UTF-8 cut short in args": (trace_of(GOOD).replace(b'{"stream', b'{"a":"\xff","stream'), set()),
    "bad escape": (trace_of(GOOD.replace('"k"', r'"C:\path\k"')), {"json-repaired"}),
    "lone surrogate": (trace_of(GOOD.replace('"k"', r'"k\ud800"')), {"json-repaired"}),
    "inf in arguments": (
        trace_of(GOOD.replace('"stream":7', '"stream":7,"b":inf,"c":-nan')),
        {"json-repaired"},
    ),
    "odd deviceProperties": (FULL[:-1] + b',"deviceProperties":[1,{},{"id":-1},{"id":0,"name":5}]}', set()),
    "odd distributedInfo": (FULL[:-1] + b',"distributedInfo":[1]}', set()),
    "odd pg_config": (FULL[:-1] + b',"distributedInfo":{"rank":true,"pg_config":["x",{}]}}', set()),
    "pg_config of broken text": (FULL[:-1] + b',"distributedInfo":{"pg_config":"[{"}}', set()),
    "odd base time": (FULL[:-1] + b',"baseTimeNanoseconds":"now"}', {"clock-origin-unclear"}),
}


@pytest.mark.parametrize("case", ODD_BUT_READ)
def test_odd_files_are_read(case: str, tmp_path: Path) -> None:
    content, codes = ODD_BUT_READ[case]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    trace = read_kineto(path)
    assert set(trace.kernels.start_ns.tolist()) == {5_000}
    assert set(trace.kernels.end_ns.tolist()) == {6_000}
    assert set(trace.kernels.stream.tolist()) == {7}
    assert codes <= {note.code for note in trace.notes} <= codes | {"kernels-without-launch"}


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        (
            b'{"a": "x: nan, inf", "b": nan, "c": [-inf, NaN]}',
            {"a": "x: nan, inf", "b": None, "c": [None, None]},
        ),
        (b'{"a": "tab\there"}', {"a": "tab here"}),
        (rb'{"a": "C:\path \\ \" \/ \u00e9 \ud83d\ude00 \ud83d"}', {"a": 'C:\\path \\ " / é 😀 �'}),
        (b'{"a": "\xff\xe9"}', {"a": "��"}),
        (b'{"infinite": 1, "nano": "nan"}', {"infinite": 1, "nano": "nan"}),
    ],
)
def test_repair_touches_only_what_is_broken(broken: bytes, repaired: object) -> None:
    assert json.loads(repair(broken)) == repaired


SEED = trace_of(
    GOOD,
    kernel(
        args={
            "device": 0,
            "grid": [1, 2, 3],
            "correlation": 4,
            "Collective name": "allreduce",
            "dtype": "Int",
        }
    ),
    kernel(cat="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)", args={"bytes": 8}),
    kernel(cat="cuda_runtime", tid="5", args={"correlation": 4}),
    kernel(cat="cuda_sync", name="Stream Wait Event", args={"wait_on_stream": 7, "stream": 20}),
    kernel(cat="user_annotation", ts=5.5, name="caf\u00e9"),
    kernel(ph="i", cat="user_annotation"),
    kernel(ph="M", name="thread_name", args={"name": "main"}),
)
SEED = SEED[:-1] + b',"distributedInfo":{"rank":1,"pg_config":[{"pg_name":"0","ranks":[0,1]}]}}'


@settings(
    max_examples=tries(100, 600), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(
    edits=st.lists(
        st.tuples(st.integers(0, len(SEED)), st.integers(0, 6), st.sampled_from((b"", *JSON_SPLICES))),
        min_size=1,
        max_size=3,
    )
)
def test_damage_gives_a_trace_or_a_trace_error(edits: list[tuple[int, int, bytes]], tmp_path: Path) -> None:
    content = SEED
    for position, removed, inserted in edits:
        content = content[:position] + inserted + content[position + removed :]
    path = tmp_path / "damaged.json"
    path.write_bytes(content)
    try:
        trace = read_kineto(path)
    except TraceError:
        return
    assert (trace.kernels.end_ns >= trace.kernels.start_ns).all()
    assert len(trace.kernels) <= 3


def test_what_no_call_has_may_be_anything(tmp_path: Path) -> None:
    """A number that JSON does not know, where other rows have their stream; it launches its kernel."""
    head = '"ph": "X", "name": "k", "pid": 0, "tid": 7, "dur": 5'
    kernel = f'{{{head}, "ts": 9, "cat": "kernel", "args": {{"device": 0, "stream": 7, "correlation": 3}}}}'
    call = f'{{{head}, "ts": 1, "cat": "cuda_runtime", "args": {{"correlation": 3, "stream": 1e999}}}}'
    (tmp_path / "x.json").write_text(f'{{"traceEvents": [{kernel}, {call}]}}')
    trace = read_kineto(tmp_path / "x.json")
    assert (trace.api_calls.correlation.tolist(), trace.notes) == ([3], ())
