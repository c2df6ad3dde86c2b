"""A Perfetto file read back with the classes of Perfetto's own schema, as its trace processor reads slices:
events of a track by time, in the order of the file where times are equal; an end closes what began last."""

from __future__ import annotations

import gzip
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

schema = pytest.importorskip(
    "perfetto.protos.perfetto.trace.perfetto_trace_pb2", reason="the package perfetto is not installed"
)


@dataclass(frozen=True, kw_only=True, order=True)
class Slice:
    """One on a track; an instant is as long as nothing."""

    start: int
    length: int
    name: str
    category: str
    depth: int


@dataclass(kw_only=True)
class PerfettoTrace:
    """What a viewer would show."""

    processes: dict[int, str]
    """Names by the number of the process' track."""
    parent: dict[int, int]
    names: dict[int, str]
    slices: dict[int, list[Slice]]
    """By track."""

    def track(self, name: str, process: str = "") -> list[Slice]:
        """Slices of the one track of this name."""
        (found,) = (
            t for t, n in self.names.items() if n == name and process in self.processes[self.parent[t]]
        )
        return self.slices.get(found, [])

    def all_of(self, start: str) -> list[str]:
        """Names of tracks that begin so, in order."""
        return [n for n in self.names.values() if n.startswith(start)]


def read(path: Path) -> PerfettoTrace:
    """Decode a file; every assumption of the format is asserted."""
    data = path.read_bytes()
    trace = schema.Trace.FromString(gzip.decompress(data) if path.suffix == ".gz" else data)
    found = PerfettoTrace(processes={}, parent={}, names={}, slices=defaultdict(list))
    events: dict[int, list[tuple[int, Any, str, str]]] = defaultdict(list)
    text: dict[int, tuple[dict[int, str], dict[int, str]]] = {}
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        assert sequence > 0
        if packet.sequence_flags & schema.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
            text[sequence] = ({}, {})
        else:
            assert packet.sequence_flags == schema.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        names, categories = text[sequence]
        names.update({n.iid: n.name for n in packet.interned_data.event_names})
        categories.update({n.iid: n.name for n in packet.interned_data.event_categories})
        if packet.HasField("track_descriptor"):
            _describe(found, packet.track_descriptor)
        if packet.HasField("track_event"):
            event = packet.track_event
            assert event.track_uuid in found.names, "a track is described before it is used"
            name = names[event.name_iid] if event.name_iid else ""
            category = ", ".join(categories[i] for i in event.category_iids)
            events[event.track_uuid].append((packet.timestamp, event, name, category))
    for track, rows in events.items():
        _play(found, track, sorted(rows, key=lambda row: row[0]))
    return found


def _describe(found: PerfettoTrace, track: Any) -> None:
    assert track.uuid not in found.names
    assert track.uuid not in found.processes
    if track.HasField("process"):
        assert track.process.pid > 0
        found.processes[track.uuid] = track.process.process_name
        return
    assert track.parent_uuid in found.processes
    found.names[track.uuid], found.parent[track.uuid] = track.name, track.parent_uuid


def _play(found: PerfettoTrace, track: int, rows: list[tuple[int, Any, str, str]]) -> None:
    stack: list[tuple[int, str, str]] = []
    kinds = schema.TrackEvent
    for time, event, name, category in rows:
        if event.type == kinds.TYPE_SLICE_BEGIN:
            stack.append((time, name, category))
        elif event.type == kinds.TYPE_SLICE_END:
            start, began, of = stack.pop()
            found.slices[track].append(
                Slice(start=start, length=time - start, name=began, category=of, depth=len(stack))
            )
        else:
            assert event.type == kinds.TYPE_INSTANT
            found.slices[track].append(
                Slice(start=time, length=0, name=name, category=category, depth=len(stack))
            )
    assert not stack, "every slice ends"
