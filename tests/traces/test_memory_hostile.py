"""Hostile and damaged memory snapshots: one line each, in bounded memory, and nothing is ever called."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoc.traces import TraceError
from perfdoc.traces.memory import read
from perfdoc.traces.memory.read import read_memory_snapshot
from perfdoc.traces.memory.unpickle import SnapshotProblem, read_columns
from tests.amount import some, tries

FRAME = {"filename": "/a.py", "name": "f", "line": 3}
EVENT = {"action": "alloc", "addr": 4096, "size": 512, "stream": 0, "time_us": 5, "frames": [FRAME]}
BLOCK = {"address": 4096, "size": 512, "requested_size": 7, "state": "active_allocated", "frames": [FRAME]}
SEGMENT = {"device": 0, "address": 4096, "total_size": 512, "stream": 0, "blocks": [BLOCK]}


def a_snapshot(**changed: Any) -> dict[str, Any]:
    return {"segments": [SEGMENT], "device_traces": [[EVENT, EVENT | {"time_us": 6}]]} | changed


def refused(path: Path, content: bytes) -> str:
    """What the one line about a file of this content says."""
    path.write_bytes(content)
    with pytest.raises(TraceError) as caught:
        read_memory_snapshot(path)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(str(path))
    assert caught.value.remedy
    return caught.value.what


class Calls:
    """Unpickling this calls something with arguments of the file."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


@pytest.mark.parametrize("protocol", [2, 5])
def test_nothing_is_called(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "called"
    content = pickle.dumps(a_snapshot(extra=Calls(os.mkdir, str(mark))), protocol)
    what = refused(tmp_path / "m.pickle", content)
    assert "asks for Python objects to be made" in what
    assert not mark.exists()
    # The file is what it should be: Python's own unpickler does call.
    pickle.loads(content)
    assert mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x04cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02}Pabc\n.",
        b"\x80\x04}Q.",
        b"\x80\x04(ios\nsystem\n.",
    ],
)
def test_no_way_to_an_object(tmp_path: Path, content: bytes) -> None:
    assert "asks for Python objects to be made" in refused(tmp_path / "m.pickle", content)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04.",
        b"\x80\x04h\x00.",
        b"\x80\x04}j\xff\xff\xff\xff.",
        b"\x80\x04}r\xff\xff\xff\x7f.",  # a memo of 2^31 entries
        b"\x80\x02\x82\x01.",  # these five make objects of what is none
        b"\x80\x04}}b.",
        b"\x80\x04(o.",
        b"\x80\x04})\x81.",
        b"\x80\x04})R.",
        b"\x80\x04X\xff\xff\xff\xff.",  # a string of 4 GiB
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x04\x8a\xff" + b"\x01" * 255 + b".",  # an integer of 2040 bits
        b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",  # a bytearray
        b'{"traceEvents": []}',
        b"SQLite format 3\x00",
        b"\x00" * 100,
    ],
)
def test_damaged_pickles(tmp_path: Path, content: bytes) -> None:
    refused(tmp_path / "m.pickle", content)


@pytest.mark.parametrize(
    ("what", "top"),
    [
        ("something else", {"a": 1}),
        ("segments belong", {"segments": [SEGMENT, 5], "device_traces": []}),
        ("devices", a_snapshot(device_traces={"a": 1})),
        ("events belong", a_snapshot(device_traces=[EVENT])),
        ("events belong", a_snapshot(device_traces=[[EVENT, 5]])),
        ("without action", a_snapshot(device_traces=[[EVENT, SEGMENT | {"blocks": []}]])),
        ("blocks belong", a_snapshot(segments=[SEGMENT | {"blocks": 5}])),
        ("without size", a_snapshot(device_traces=[[{"action": "alloc", "addr": 5}]])),
        ("impossible size", a_snapshot(device_traces=[[EVENT | {"size": "5"}]])),
        ("more than 64 bits", a_snapshot(device_traces=[[EVENT | {"size": 1 << 80}]])),
        ("size below 0", a_snapshot(device_traces=[[EVENT | {"size": -5}]])),
        ("beyond", a_snapshot(device_traces=[[EVENT | {"size": 1 << 60}]])),
        ("together", a_snapshot(device_traces=[[dict(EVENT, size=1 << 48) for _ in range(10_000)]])),
        ("address below 0", a_snapshot(device_traces=[[EVENT | {"addr": -4096}]])),
        ("impossible time", a_snapshot(device_traces=[[EVENT | {"time_us": 1 << 60}]])),
        ("action", a_snapshot(device_traces=[[EVENT | {"action": 5}]])),
        ("metadata", a_snapshot(device_traces=[[EVENT | {"user_metadata": 5}]])),
        ("no list", a_snapshot(device_traces=[[EVENT | {"frames": "abc"}]])),
        ("something else than frames", a_snapshot(device_traces=[[EVENT | {"frames": [5]}]])),
        ("stack frame", a_snapshot(device_traces=[[EVENT | {"frames": [FRAME | {"line": "x"}]}]])),
        ("more than 4,096 frames", a_snapshot(device_traces=[[EVENT | {"frames": [FRAME] * 5000}]])),
        ("unknown state", a_snapshot(segments=[SEGMENT | {"blocks": [BLOCK | {"state": "gone"}]}])),
        ("more than 16,777,216 events", a_snapshot(device_traces=[[EVENT] * 20_000] * 1000)),
        ("beyond its segment", a_snapshot(segments=[SEGMENT | {"blocks": [BLOCK | {"size": 1024}]}])),
        ("device", a_snapshot(segments=[SEGMENT | {"device": 5000}])),
        ("annotation", a_snapshot(external_annotations=[{"stage": "START", "name": 5, "time_us": 1}])),
    ],
)
def test_plain_data_that_is_no_snapshot(tmp_path: Path, what: str, top: object) -> None:
    assert what in refused(tmp_path / "m.pickle", pickle.dumps(top, 4))


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = pickle.dumps(a_snapshot(external_annotations=[]), 4)
    for length in range(len(content)):
        with pytest.raises(SnapshotProblem, match="is truncated"):
            read_columns(io.BytesIO(content[:length]))
    refused(tmp_path / "m.pickle", content[:-1])


@settings(
    max_examples=tries(30, 600), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_any_change_is_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    content = bytearray(pickle.dumps(a_snapshot(), data.draw(st.sampled_from([2, 4]))))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(2, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "m.pickle"
    path.write_bytes(content)
    try:
        read_memory_snapshot(path)
    except TraceError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_files_that_are_none(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.pickle", Path(os.devnull)):
        with pytest.raises(TraceError):
            read_memory_snapshot(path)
    path = tmp_path / "large.pickle"
    path.write_bytes(pickle.dumps(a_snapshot(device_traces=[]), 4))
    with pytest.raises(TraceError, match="at most 10 are read"):
        read_memory_snapshot(path, max_bytes=10)


def test_lists_that_hold_themselves_and_shared_stacks(tmp_path: Path) -> None:
    """References make a graph; what it would expand to is never built."""
    endless: list[Any] = []
    endless.append(endless)
    laughs: list[Any] = ["ha"]
    for _ in range(60):
        laughs = [laughs] * 10
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    stack = [FRAME] * 1500  # picklers write 1000 items at once
    trace = [EVENT | {"time_us": i, "frames": stack} for i in range(100)]
    path = tmp_path / "m.pickle"
    path.write_bytes(pickle.dumps(a_snapshot(device_traces=[trace], a=endless, b=laughs, c=deep), 4))
    snapshot = read_memory_snapshot(path)
    assert len(snapshot.events) == 100
    assert len(snapshot.stack_frames) == 1501  # and the block's own stack of one


def test_what_ends_the_reading_process_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples in tuples overflow the stack when they are hashed; what takes too long is ended."""
    nested = b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns."
    assert "ends the program that reads it" in refused(tmp_path / "m.pickle", nested)
    slow = tmp_path / "slow.py"
    slow.write_text("import os, signal; os.kill(os.getpid(), signal.SIGXCPU)")
    monkeypatch.setattr(read, "_PROGRAM", slow)
    assert "takes more time to read" in refused(tmp_path / "m.pickle", b"")


MEASURE = """
import resource, sys
from pathlib import Path
from perfdoc.traces import TraceError
from perfdoc.traces.memory.read import read_memory_snapshot

try:
    read_memory_snapshot(Path(sys.argv[1]))
    print("read", end=" ")
except TraceError as error:
    print("refused", end=" ")
# Of this process as the kernel counts it since exec: ru_maxrss is at least that of whoever started it.
status = Path("/proc/self/status").read_text().splitlines()
own = next(int(line.split()[1]) for line in status if line.startswith("VmHWM:"))
print(max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) // 1024)
"""


@pytest.mark.parametrize(
    "unit",
    some(
        [b"}", b"]", b"N", b"(", b"}\x94", b"]\x94", b"K\x01\x94", b"N\x94\x94\x94", b"](", b"\x8c\x02ab\x94"]
        + [
            b"}\x94(\x8c\x08filename\x8c\x01a\x8c\x04name\x8c\x01b\x8c\x04lineK\x01u",
            b"G\x00\x00\x00\x00\x00\x00\x00\x00",
        ],
        [b"("],
    ),
    ids=repr,
)
def test_memory_stays_bounded(tmp_path: Path, unit: bytes) -> None:
    """16 MiB of the opcodes that make the most of a byte: up to 1 GiB by Python's own unpickler."""
    path = tmp_path / "m.pickle"
    path.write_bytes(b"\x80\x04" + unit * ((16 << 20) // len(unit)) + b".")
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, timeout=120, check=True
    )
    outcome, mebibytes = run.stdout.split()
    assert outcome == "refused"
    assert int(mebibytes) < 300
