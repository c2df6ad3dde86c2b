"""Perfetto's trace packets written by columns.

A packet for each slice would take Python ten microseconds; here the packets of a track are rows of one array
of bytes. That works because a number may be written longer than it needs to be (a varint may have leading
zero groups), so that all packets of a track are equally long. Field numbers are those of Perfetto's
trace_packet.proto and track_event.proto; the tests read the result back with the classes of its schema.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.base.intervals import I64

Bytes: TypeAlias = NDArray[np.uint8]

BEGIN, END, INSTANT = 1, 2, 3
"""TrackEvent.Type."""
_VARINT, _LENGTH = 0, 2
_PACKET = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 8, 10, 11, 12, 13, 60
_CLEARED, _NEEDS = 1, 2
_EVENT_CATEGORY, _EVENT_TYPE, _EVENT_NAME, _EVENT_TRACK = 3, 9, 10, 11
_PROCESS, _IN_THE_ORDER_GIVEN, _NEVER_MERGED = 3, 3, 2


def varint(value: int) -> bytes:
    """As short as it goes.

    >>> varint(300).hex()
    'ac02'
    """
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def field(number: int, value: int | bytes) -> bytes:
    """One field: a number, or anything that has a length."""
    if isinstance(value, int):
        return varint(number << 3 | _VARINT) + varint(value)
    return varint(number << 3 | _LENGTH) + varint(len(value)) + value


def text(value: str) -> bytes:
    """A string, whatever is in it."""
    return value.encode("utf-8", "replace")


def width_of(largest: int) -> int:
    """Bytes of a varint that holds numbers up to this."""
    return max(1, -(-largest.bit_length() // 7))


def wide_varints(values: I64, width: int) -> Bytes:
    """Numbers of one width each, one row for each: seven bits to a byte, the lowest first."""
    shifts = 7 * np.arange(width)
    groups = (values[:, None] >> shifts) & 0x7F
    groups[:, :-1] |= 0x80
    return groups.astype(np.uint8)


def packet(sequence: int, *fields: bytes, cleared: bool = False) -> bytes:
    """A packet that is no event. cleared: nothing of this sequence holds from before."""
    body = field(_SEQUENCE, sequence) + field(_FLAGS, _CLEARED if cleared else _NEEDS) + b"".join(fields)
    return field(_PACKET, body)


def process_track(track: int, pid: int, name: str) -> bytes:
    """Describes a process whose tracks stay in the order that they give."""
    process = field(1, pid) + field(6, text(name))
    body = field(1, track) + field(_PROCESS, process) + field(11, _IN_THE_ORDER_GIVEN)
    return field(_TRACK, body)


def child_track(track: int, parent: int, name: str, place: int) -> bytes:
    """Describes a track below a process."""
    body = field(1, track) + field(5, parent) + field(2, text(name)) + field(12, place)
    body += field(15, _NEVER_MERGED)
    return field(_TRACK, body)


def interned(names: Iterable[tuple[int, str]], categories: Iterable[tuple[int, str]] = ()) -> bytes:
    """Numbers that stand for names and categories in the packets that follow."""
    rows = [field(1, field(1, i) + field(2, text(name))) for i, name in categories]
    rows += [field(2, field(1, i) + field(2, text(name))) for i, name in names]
    return field(_INTERNED, b"".join(rows))


class Slices:
    """Packets of the events of one track, all equally long."""

    def __init__(self, *, sequence: int, track: int, time_width: int, name_width: int) -> None:
        if not 1 <= name_width <= 6:
            raise ValueError(f"a name takes 1 to 6 bytes, not {name_width}")
        self._head = field(_SEQUENCE, sequence) + field(_FLAGS, _NEEDS)
        self._track = field(_EVENT_TRACK, track)
        self._time_width, self._name_width = time_width, name_width

    def rows(self, kind: int, time_ns: I64, name: I64, category: I64) -> Bytes:
        """A row for each event. name, category: their interned numbers (below 128 for a category); of an end
        they are not written, and the number that says that it is one is longer instead."""
        n = len(time_ns)
        if kind == END:
            pad = self._name_width + 4
            wide = wide_varints(np.array([END]), pad)[0].tobytes()
            event: list[Bytes | bytes] = [varint(_EVENT_TYPE << 3) + wide]
        else:
            event = [
                varint(_EVENT_TYPE << 3) + bytes([kind]) + varint(_EVENT_NAME << 3),
                wide_varints(name, self._name_width),
                varint(_EVENT_CATEGORY << 3),
                wide_varints(category, 1),
            ]
        return self._packets(n, time_ns, [*event, self._track])

    def _packets(self, n: int, time_ns: I64, event: list[Bytes | bytes]) -> Bytes:
        inside = sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in event)
        parts: list[Bytes | bytes] = [
            varint(_TIMESTAMP << 3),
            wide_varints(time_ns, self._time_width),
            self._head + varint(_EVENT << 3 | _LENGTH) + varint(inside),
            *event,
        ]
        whole = sum(len(part) if isinstance(part, bytes) else part.shape[1] for part in parts)
        parts.insert(0, varint(_PACKET << 3 | _LENGTH) + varint(whole))
        columns = [
            np.broadcast_to(np.frombuffer(part, np.uint8), (n, len(part)))
            if isinstance(part, bytes)
            else part
            for part in parts
        ]
        return np.concatenate(columns, axis=1)
