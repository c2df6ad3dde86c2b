"""The tracks of devices as a stream of Perfetto packets, a bounded part at a time.

A viewer shows slices of one track only one inside another, never across: `nested` lays them so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import IO, TypeAlias

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.export import protobuf
from perfdoc.export.tracks import CATEGORIES, LeftOut, Names, Track, own_names, tracks_of
from perfdoc.records import dataclass
from perfdoc.traces.table import Bool

MAX_LANES = 16
_ROUNDS = 4


@dataclass(frozen=True, kw_only=True)
class Events:
    """Beginnings and ends in the order in which they are written."""

    row: I64
    """Which slice."""
    is_begin: Bool


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """Slices on lanes."""

    lanes: list[Events]
    left_out: int
    """Slices for which there was no lane."""


def nested(start_ns: I64, end_ns: I64) -> Lanes:
    """Slices that mostly lie inside one another: the first lane nests, those that cross others go to lanes of
    their own, in each of which no two meet. Slices are not empty."""
    rows = np.arange(len(start_ns))
    crossing = np.empty(0, np.int64)
    for _ in range(_ROUNDS):
        events = _ordered(start_ns, end_ns, rows)
        bad = _mismatched(events, len(start_ns))
        if not len(bad):
            break
        crossing = np.concatenate((crossing, bad))
        rows = np.setdiff1d(rows, bad)
    else:
        crossing, rows = np.arange(len(start_ns)), rows[:0]
        events = _ordered(start_ns, end_ns, rows)
    apart = disjoint(start_ns, end_ns, np.sort(crossing))
    return Lanes(lanes=[*([events] if len(rows) else []), *apart.lanes], left_out=apart.left_out)


def disjoint(start_ns: I64, end_ns: I64, rows: I64 | None = None) -> Lanes:
    """Slices on as many lanes as it takes for no two to overlap on one, at most MAX_LANES."""
    row = np.arange(len(start_ns)) if rows is None else rows
    row = row[np.lexsort((end_ns[row], start_ns[row]))]
    if not len(row):
        return Lanes(lanes=[], left_out=0)
    start, end = start_ns[row], end_ns[row]
    lane = np.zeros(len(row), np.int64)
    # Those that meet no other are on the first lane; the rest, mostly few, one by one.
    reach = np.maximum.accumulate(end)
    meets_before = np.append(False, start[1:] < reach[:-1])
    meeting = np.flatnonzero(meets_before | np.append(meets_before[1:], False))
    lane[meeting] = _first_fit(start[meeting].tolist(), end[meeting].tolist())
    order = np.flatnonzero(lane >= 0)[np.argsort(lane[lane >= 0], kind="stable")]
    parts = np.split(row[order], np.flatnonzero(np.diff(lane[order])) + 1)
    return Lanes(
        lanes=[Events(row=np.repeat(p, 2), is_begin=np.tile([True, False], len(p))) for p in parts if len(p)],
        left_out=int(np.count_nonzero(lane < 0)),
    )


def _first_fit(start: list[int], end: list[int]) -> list[int]:
    """The lowest lane that is free, in order of start; -1 where none is."""
    free_from: list[int] = []
    found = []
    for begin, finish in zip(start, end, strict=True):
        lane = next((i for i, t in enumerate(free_from) if t <= begin), len(free_from))
        if lane == MAX_LANES:
            found.append(-1)
            continue
        free_from[lane : lane + 1] = [finish]
        found.append(lane)
    return found


def _ordered(start_ns: I64, end_ns: I64, rows: I64) -> Events:
    """In order of time. At one moment ends come first, the inner before the outer; then beginnings, the
    longer first."""
    n = len(rows)
    start, end, index = start_ns[rows], end_ns[rows], np.arange(n)
    is_begin = np.repeat([True, False], n)
    order = np.lexsort(
        (
            np.concatenate((index, -index)),
            np.concatenate((-end, -start)),
            is_begin,
            np.concatenate((start, end)),
        )
    )
    return Events(row=np.tile(rows, 2)[order], is_begin=is_begin[order])


def _mismatched(events: Events, count: int) -> I64:
    """Slices whose end would close another one, or whose beginning another's end."""
    depth = np.cumsum(np.where(events.is_begin, 1, -1))
    level = np.where(events.is_begin, depth, depth + 1)
    # On each level beginnings and ends take turns, and each end closes the beginning before it.
    by_level = events.row[np.argsort(level, kind="stable")]
    opened, closed = by_level[::2], by_level[1::2]
    bad = np.zeros(count, bool)
    wrong = opened != closed
    bad[opened[wrong]] = bad[closed[wrong]] = True
    return np.flatnonzero(bad)


_ROWS = 100_000
"""Events that are encoded at once: about 3 MB."""
_TRACK_BITS = 18
"""Tracks of a device are numbered from its own number, shifted by this."""
_NAMES = 2_000
"""Names in one packet."""
Clock: TypeAlias = Callable[[I64], I64]
"""From a capture's time to the file's."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What went into the file of one device."""

    tracks: int
    slices: int
    left_out: int
    """Slices that overlap too many others, or whose stream or thread is one too many."""


class PerfettoFile:
    """Packets into an open file; devices may write at the same time."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._lock = threading.Lock()

    def add(self, view: DeviceView, number: int, title: str, clock: Clock) -> Written:
        """Write all tracks of a device as one process of the viewer. number: unlike that of any other device,
        from 1 on. The clock gives no time below 0."""
        return _DeviceWriter(self, number, view, clock).write(title)

    def put(self, data: bytes) -> None:
        """Append whole packets."""
        with self._lock:
            self._file.write(data)


class _DeviceWriter:
    """One device: a sequence of packets with names of its own."""

    def __init__(self, out: PerfettoFile, sequence: int, view: DeviceView, clock: Clock) -> None:
        self._out, self._sequence, self._view, self._clock = out, sequence, view, clock
        self._names = Names(of_trace=view.trace.strings, own=own_names(view))
        self._written = np.zeros(len(self._names), bool)
        self._name_width = protobuf.width_of(len(self._names))
        self._places = self._slices = self._left_out = 0
        self._process = sequence << _TRACK_BITS

    def write(self, title: str) -> Written:
        process = protobuf.process_track(self._process, self._sequence, title)
        names = protobuf.interned([], enumerate(CATEGORIES, 1))
        self._out.put(protobuf.packet(self._sequence, process, names, cleared=True))
        for track in tracks_of(self._view):
            if isinstance(track, LeftOut):
                self._left_out += track.rows
            else:
                self._track(track)
        return Written(tracks=self._places, slices=self._slices, left_out=self._left_out)

    def _describe(self, name: str) -> int:
        number = self._process + 1 + self._places
        described = protobuf.child_track(number, self._process, name, self._places)
        self._out.put(protobuf.packet(self._sequence, described))
        self._places += 1
        return number

    def _encoder(self, number: int, latest_ns: int) -> protobuf.Slices:
        return protobuf.Slices(
            sequence=self._sequence,
            track=number,
            time_width=protobuf.width_of(latest_ns),
            name_width=self._name_width,
        )

    def _track(self, track: Track) -> None:
        self._write_names(track.text)
        start, end = self._clock(track.start_ns), self._clock(track.end_ns)
        empty = np.flatnonzero(end <= start)
        some = np.flatnonzero(end > start)
        placed = (nested if track.kind == "nested" else disjoint)(start[some], end[some])
        self._left_out += placed.left_out
        lanes = placed.lanes or [Events(row=some, is_begin=some > 0)]
        for at, lane in enumerate(lanes):
            number = self._describe(track.name if at == 0 else f"{track.name} (overlapping {at})")
            packets = self._encoder(number, int(end.max(initial=0)))
            self._slices += len(lane.row) // 2
            for a in range(0, len(lane.row), _ROWS):
                row, begins = some[lane.row[a : a + _ROWS]], lane.is_begin[a : a + _ROWS]
                self._out.put(self._rows(packets, track, np.where(begins, start[row], end[row]), row, begins))
            if at == 0 and len(empty):
                self._slices += len(empty)
                for a in range(0, len(empty), _ROWS):
                    row = empty[a : a + _ROWS]
                    name, category = track.text[row] + 1, track.category[row] + 1
                    self._out.put(packets.rows(protobuf.INSTANT, start[row], name, category).tobytes())

    def _rows(self, packets: protobuf.Slices, track: Track, time_ns: I64, row: I64, begins: Bool) -> bytes:
        """Both kinds of packet for every row, and of each row the right one: they are equally long."""
        name, category = track.text[row] + 1, track.category[row] + 1
        data = packets.rows(protobuf.BEGIN, time_ns, name, category)
        ends = ~begins
        data[ends] = packets.rows(protobuf.END, time_ns[ends], name[ends], category[ends])
        return data.tobytes()

    def _write_names(self, used: I64) -> None:
        """Names before the first slice that has them."""
        wanted = np.zeros(len(self._written), bool)
        wanted[used] = True
        fresh = np.flatnonzero(wanted & ~self._written).tolist()
        self._written[fresh] = True
        for a in range(0, len(fresh), _NAMES):
            names = [(i + 1, self._names.text(i)) for i in fresh[a : a + _NAMES]]
            self._out.put(protobuf.packet(self._sequence, protobuf.interned(names)))
