"""Memory snapshots are read as Python's unpickler would read them, and never as more than plain data."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perfdoc.traces.memory.model import MemorySnapshot
from perfdoc.traces.memory.read import read_memory_snapshot
from perfdoc.traces.memory.unpickle import ACTIONS
from tests.amount import some, tries

STATES = {"inactive": 0, "active_allocated": 1, "active_pending_free": 2, "active_awaiting_free": 2}


class PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise AssertionError((module, name))


def stack_of(frames: list[dict[str, Any]] | None) -> list[tuple[str, str, int]]:
    return [(f["filename"], f["name"], f["line"]) for f in frames or []]


def expected_events(top: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [
        (
            device,
            ACTIONS.index(e["action"]) + 1 if e["action"] in ACTIONS else 0,
            e["device_free"] if "device_free" in e else e["addr"],
            e["size"],
            e.get("stream", 0),
            e["time_us"] * 1000 if "time_us" in e else -1,
            stack_of(e.get("frames")),
            e.get("user_metadata", ""),
        )
        for device, trace in enumerate(top["device_traces"])
        for e in trace
    ]


def read_events(snapshot: MemorySnapshot) -> list[tuple[Any, ...]]:
    stacks = [[tuple(f) for f in snapshot.stack(i)] for i in range(len(snapshot.stack_offsets) - 1)]
    e = snapshot.events
    columns = (e.device, e.action, e.address, e.size_bytes, e.stream, e.time_ns)
    rows = zip(*(c.tolist() for c in columns), strict=True)
    more = zip(e.stack.tolist(), e.label.tolist(), strict=True)
    return [(*row, stacks[s], snapshot.labels[i]) for row, (s, i) in zip(rows, more, strict=True)]


def check_like_the_unpickler(path: Path) -> None:
    """Everything that is read, against the tree that Python's own unpickler builds."""
    with path.open("rb") as file:
        top = PlainUnpickler(file).load()
    snapshot = read_memory_snapshot(path)
    assert read_events(snapshot) == expected_events(top)
    blocks = [b for s in top["segments"] for b in s["blocks"]]
    assert snapshot.segments.size_bytes.tolist() == [s["total_size"] for s in top["segments"]]
    assert snapshot.segments.address.tolist() == [s["address"] for s in top["segments"]]
    assert (snapshot.segments.end_block - snapshot.segments.first_block).tolist() == [
        len(s["blocks"]) for s in top["segments"]
    ]
    assert snapshot.blocks.address.tolist() == [b["address"] for b in blocks]
    assert snapshot.blocks.requested_bytes.tolist() == [b["requested_size"] for b in blocks]
    assert snapshot.blocks.state.tolist() == [STATES[b["state"]] for b in blocks]
    stacks = [[tuple(f) for f in snapshot.stack(i)] for i in snapshot.blocks.stack.tolist()]
    assert stacks == [stack_of(b.get("frames")) for b in blocks]
    annotations = top.get("external_annotations", [])
    a = snapshot.annotations
    found = zip(a.is_start.tolist(), (snapshot.labels[i] for i in a.name), a.time_ns.tolist(), strict=True)
    assert list(found) == [(x["stage"] == "START", x["name"], x["time_us"] * 1000) for x in annotations]


@pytest.mark.parametrize("length", some(["256", "1024"], ["256"]))
def test_real_snapshots_read_as_by_the_unpickler(shared_traces: Path, length: str) -> None:
    path = shared_traces / "memory" / f"medium_{length}_training_memory_snapshot.pickle"
    check_like_the_unpickler(path)
    settings_read = read_memory_snapshot(path).settings
    assert settings_read["expandable_segments"] is False
    assert settings_read["roundup_power2_divisions.256"] == 0


FRAMES = [{"filename": f"/a/{i}.py", "name": f"f{i}", "line": i} for i in range(5)]
NUMBERS = st.one_of(st.integers(0, 300), st.integers(0, 1 << 33), st.integers(0, 1 << 47))


@st.composite
def events(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Lists of events as different versions write them: key order, optional keys, shared and equal stacks."""
    keys = draw(
        st.permutations(["action", "addr", "size", "stream", "time_us", "frames", "pool_id", "user_metadata"])
    )
    keys = [k for k in keys if k in ("action", "addr", "size") or draw(st.booleans())]
    shared = [draw(st.lists(st.sampled_from(FRAMES), max_size=4)) for _ in range(3)]
    made = []
    for _ in range(draw(st.integers(0, 12))):
        stack = draw(st.sampled_from(shared))
        values = {
            "action": draw(st.sampled_from([*ACTIONS, "annotate"])),
            "addr": draw(NUMBERS),
            "size": draw(NUMBERS),
            "stream": draw(st.integers(-(1 << 63), (1 << 63) - 1)),
            "time_us": draw(st.integers(0, 1 << 50)),
            "frames": stack if draw(st.booleans()) else list(stack),
            "pool_id": (draw(st.integers(0, 2)), 0),
            "user_metadata": draw(st.sampled_from(["", "phase", "é\x00"])) + "",
        }
        if draw(st.integers(0, 9)) == 0:
            keys_now = ["device_free" if k == "addr" else k for k in keys]
            values |= {"device_free": values["addr"], "action": "oom"}
        else:
            keys_now = keys
        made.append({k: values[k] for k in keys_now})
    return made


@settings(
    max_examples=tries(15, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(traces=st.lists(events(), max_size=3), protocol=st.integers(2, 5))
def test_any_snapshot_reads_as_by_the_unpickler(
    tmp_path: Path, traces: list[list[dict[str, Any]]], protocol: int
) -> None:
    block = {
        "address": 4096,
        "size": 512,
        "requested_size": 7,
        "state": "active_awaiting_free",
        "frames": FRAMES[:2],
    }
    segment = {"device": 1, "address": 4096, "total_size": 1024, "stream": 0, "segment_pool_id": (0, 1)}
    top = {
        "segments": [
            segment | {"blocks": [block, block | {"address": 4608, "frames": []}]},
            segment | {"blocks": []},
        ],
        "device_traces": traces,
        "something_new": [{"a": [1, 2.5, None, True]}, ("x",)],
    }
    path = tmp_path / "m.pickle"
    path.write_bytes(pickle.dumps(top, protocol))
    check_like_the_unpickler(path)


def test_versions_before_2_1(tmp_path: Path) -> None:
    """Blocks without addresses, with a history for frames; events without times; a bare list of segments."""
    history = [
        {"addr": 0, "real_size": 300, "frames": FRAMES[:1]},
        {"addr": 0, "real_size": 9, "frames": FRAMES[:2]},
    ]
    old = [
        {"size": 512, "state": "active_allocated", "history": history},
        {"size": 1536, "state": "inactive"},
    ]
    segment = {"device": 0, "address": 1 << 20, "total_size": 2048, "stream": 0, "blocks": old}
    path = tmp_path / "m.pickle"
    path.write_bytes(pickle.dumps([segment], 4))
    snapshot = read_memory_snapshot(path)
    assert snapshot.blocks.address.tolist() == [1 << 20, (1 << 20) + 512]
    assert snapshot.blocks.requested_bytes.tolist() == [300, 1536]
    assert snapshot.stack(int(snapshot.blocks.stack[0])) == [("/a/0.py", "f0", 0)]
    assert len(snapshot.events) == 0
    event = {"action": "alloc", "addr": 1 << 20, "size": 300, "stream": 0, "frames": []}
    path.write_bytes(pickle.dumps({"segments": [segment], "device_traces": [[event]]}, 4))
    assert read_memory_snapshot(path).events.time_ns.tolist() == [-1]


def test_annotations_that_are_events(tmp_path: Path) -> None:
    """PyTorch 2.4 and 2.5."""

    def end(stage: str, time_us: int) -> dict[str, Any]:
        frames = [{"name": stage, "filename": "ProfilerStep#3", "line": 0}]
        return {
            "action": "user_defined",
            "addr": 0,
            "size": 0,
            "stream": 0,
            "time_us": time_us,
            "frames": frames,
        }

    path = tmp_path / "m.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[end("START", 5), end("END", 9)]]}, 4))
    snapshot = read_memory_snapshot(path)
    a = snapshot.annotations
    assert [snapshot.labels[i] for i in a.name.tolist()] == ["ProfilerStep#3"] * 2
    assert (a.time_ns.tolist(), a.is_start.tolist()) == ([5000, 9000], [True, False])
