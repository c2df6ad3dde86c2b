"""The plain events of a PyTorch trace, nearly all: decoded once, times of many at once.

What is not plain (a time with a sign or an exponent, a number in place of a name, text that is no JSON) is
left to who reads one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Union

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfdoc.traces.table import I64, Bool

_NO_TIME, _ZERO = msgspec.Raw(b"null"), msgspec.Raw(b"0")
_POINT, _BREAK = b".\n"
_MOST_DIGITS, _MOST_CHARACTERS = 18, 40
_MOST_NS = 4e18
"""Of a start and of a length: their sum fits 64 bits, and none is one in ns since 1970 taken for µs."""
_HALF, _ABOVE_HALF = 2, 3


class PlainEvent(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event of some length, with fields of the kinds that Kineto writes."""

    cat: str | None = None
    name: str | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    ts: msgspec.Raw = _NO_TIME
    dur: msgspec.Raw = _NO_TIME
    args: msgspec.Raw = msgspec.Raw(b"{}")


def _of_phase(ph: str, **said: Any) -> type[msgspec.Struct]:
    """What is made of events of a phase of which no more is looked at than whether they are odd."""
    fields = [("cat", str | None, None), ("name", Any, None)]
    return msgspec.defstruct(f"_Phase{ph}", fields, tag_field="ph", tag=ph, gc=False, namespace=said)


_UNREAD = frozenset(_of_phase(ph) for ph in "sftCbne")
"""Arrows from calls to kernels are up to a third of a trace."""
_SINGLY = [_of_phase(ph, ts=_ZERO, dur=_ZERO) for ph in "BEMIi"]
"""Phases of which there are few, or which belong to another event."""
_decode = msgspec.json.Decoder(Union[(PlainEvent, *_UNREAD, *_SINGLY)]).decode
_ODD = _SINGLY[0]()


def plain_events(events: Sequence[msgspec.Raw]) -> Iterator[tuple[int, msgspec.Raw, Any, int, int]]:
    """Each event that is read: where it stands, as it is in the file and decoded, its start and end in ns; an
    end of -1 where its time is not plain. What is no `PlainEvent` is read one by one."""
    found = _decoded(events)
    at = [i for i, kind in enumerate(map(type, found)) if kind not in _UNREAD]
    kept = [found[i] for i in at]
    times = _intervals_ns([event.ts for event in kept], [event.dur for event in kept])
    return zip(at, [events[i] for i in at], kept, *times, strict=True)


def _decoded(events: Sequence[msgspec.Raw]) -> list[Any]:
    try:
        return list(map(_decode, events))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [_ODD if len(events) == 1 else _decoded([raw])[0] for raw in events]


def _intervals_ns(ts: list[msgspec.Raw], dur: list[msgspec.Raw]) -> tuple[list[int], list[int]]:
    """As `interval_ns` of each; an end of -1 of what is not plain."""
    ns, rest, plain = _plain_ns([*ts, *dur])
    half = len(ts)
    start, end = ns[:half], ns[:half] + ns[half:]
    up = (rest[half:] == _ABOVE_HALF) | ((rest[half:] == _HALF) & (end & 1 == 1))
    known = plain[:half] & plain[half:] & (rest[:half] == 0)
    return start.tolist(), np.where(known, end + up, -1).tolist()


def _plain_ns(texts: Sequence[msgspec.Raw]) -> tuple[I64, NDArray[np.int8], Bool]:
    """Of numbers in µs as they stand in the file: whole ns, what is beyond (0 where there are no more than
    three decimals), and whether it is a plain number."""
    count, joined = len(texts), b"\n".join((*texts, b""))
    codes = np.frombuffer(joined, np.uint8)
    marks = np.flatnonzero(codes - np.uint8(ord("0")) > 9)
    kinds = codes[marks]
    ends, points = marks[kinds == _BREAK], marks[kinds == _POINT]
    rest = np.zeros(count, np.int8)
    if len(ends) != count:  # in a list, or an object
        return np.zeros(count, np.int64), rest, np.zeros(count, bool)
    decimals, row = np.zeros(count, np.int64), np.searchsorted(ends, points)
    decimals[row] = ends[row] - points - 1
    length = np.diff(ends, prepend=-1) - 1
    odd = (length > _MOST_CHARACTERS) | (length - np.maximum(decimals - 3, 0) > _MOST_DIGITS)
    odd[np.searchsorted(ends, marks[(kinds != _BREAK) & (kinds != _POINT)])] = True
    if odd.any():
        ns, rest, plain = _plain_ns([_ZERO if o else t for t, o in zip(texts, odd.tolist(), strict=True)])
        return ns, rest, plain & ~odd
    if len(more := np.flatnonzero(decimals > 3)):
        fourth, end = ends[more] - decimals[more] + 3, ends[more]
        others = np.cumsum(codes != ord("0"))
        twice = 2 * (codes[fourth].astype(np.int8) - ord("0")) + (others[end - 1] > others[fourth])
        rest[more] = np.sign(twice - 10) + _HALF
        cut = np.zeros(len(codes), np.int8)
        cut[fourth], cut[end] = 1, -1
        joined = codes[np.cumsum(cut, dtype=np.int8) == 0].tobytes()
    unit = 10 ** (3 - np.minimum(decimals, 3))
    digits: I64 = np.fromstring(joined.replace(b".", b""), np.int64, sep=" ")
    return digits * unit, rest, digits < _MOST_NS / unit
