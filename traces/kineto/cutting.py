"""Where a long JSON text can be cut: between the events of its list, and between any two values.

Nothing here is trusted to be right about strings: what is cut is decoded, and decodes as whole entries of a
list only where the cut was between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from perfdoc.patterns import pattern_of
from perfdoc.traces.kineto import unpack
from perfdoc.traces.kineto.repair import Repairs
from perfdoc.traces.table import I64

MAX_UNCUT_BYTES = 256 << 20
"""Of one event, and of all that stands beside the events: the groups of a job of thousands take 50 MB."""

_ENTRIES = msgspec.json.Decoder(list[msgspec.Raw])
_BETWEEN = pattern_of(rb'\}\s*,(?=\s*\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|s|id)")')
_NEAR_BYTES = 64 << 10
_OPEN, _CLOSE, _COMMA = ord("{"), ord("}"), ord(",")
_LOWER = 0x20  # makes `[` a `{`, and `]` a `}`


class UncutError(msgspec.DecodeError):
    """More than `MAX_UNCUT_BYTES` without a place to cut at."""

    def __init__(self) -> None:
        super().__init__(
            f"an event, or what stands beside the events, is longer than {MAX_UNCUT_BYTES >> 20} MiB"
        )


def after_none(length: int) -> int:
    """How long a text is to be before a cut is looked for again, where so much of it had none."""
    return min(2 * length, MAX_UNCUT_BYTES + 1)


def entries(text: bytearray, start: int, skip: int) -> tuple[list[msgspec.Raw], int] | None:
    """The entries of the list whose content is at `start`, but for the first `skip` and some at the end, and
    the place after the comma behind them; None where none can be told from the next one.

    Raises DecodeError and RecursionError, places counted from `start` + 1.
    """
    near = max(start, len(text) - _NEAR_BYTES)
    guess = max((match.end() - 1 for match in _BETWEEN.finditer(text, near)), default=-1)
    if guess > start:
        try:
            return _decoded(text, start, guess)[skip:], guess + 1
        except msgspec.DecodeError:
            pass  # inside a string or an argument, or what is before it is broken
    places, kinds = _marks(memoryview(text)[start:])
    depth = np.cumsum((kinds == _OPEN).astype(np.int32) - (kinds == _CLOSE), dtype=np.int32)
    closed = np.flatnonzero(depth < 0)[:1]
    upto = int(closed[0]) if len(closed) else len(places)
    commas = np.flatnonzero((kinds[:upto] == _COMMA) & (depth[:upto] == 0))
    if not len(commas):
        return None
    cut = start + int(places[commas[-1]])
    found = _decoded(text, start, cut)
    return (found[skip:], cut + 1) if len(found) > skip else None


def _decoded(text: bytearray, start: int, end: int) -> list[msgspec.Raw]:
    with memoryview(text) as view:
        return _ENTRIES.decode(b"".join((b"[", view[start:end], b"]")))


def _marks(text: memoryview) -> tuple[I64, NDArray[np.uint8]]:
    """The commas and brackets outside strings: where they are and what (`[` and `]` as `{` and `}`)."""
    # A run of backslashes is read in pairs from its left, as `replace` does.
    codes = np.frombuffer(bytes(text).replace(b"\\\\", b"__").replace(b'\\"', b"__"), np.uint8)
    inside = np.add.accumulate(codes == ord('"'), dtype=np.uint8) & 1
    kinds: NDArray[np.uint8] = codes | np.uint8(_LOWER)
    at = np.flatnonzero(((kinds == _OPEN) | (kinds == _CLOSE) | (codes == _COMMA)) & (inside == 0))
    return at, kinds[at]


EVENTS_KEY = pattern_of(rb'"traceEvents"\s*+:\s*+\[')
_LINES = pattern_of(rb"\}[ \t\r]*+\n\s*+(?=\{)")


def head_of(path: Path) -> bytes:
    """How a file begins, unpacked."""
    with closing(unpack.unpacked(path, MAX_UNCUT_BYTES, whole=False)) as pieces:
        return next(pieces, b"")


def as_list(pieces: Iterator[bytes]) -> Iterator[bytes | bytearray]:
    """JSON lines as one list: nowhere else in JSON does an object follow another one without a comma.

    Raises UncutError, and DecodeError where one of the objects has a list of events itself.
    """
    held = bytearray(b"[")
    for piece in pieces:
        held += piece
        if len(held) > MAX_UNCUT_BYTES:
            raise UncutError
        if b"}" in piece:  # what has none is searched once, with what ends it
            text = _LINES.sub(b"},", held)
            if EVENTS_KEY.search(text):
                raise msgspec.DecodeError("a line is a trace")
            last = text.rfind(b"}")
            held = bytearray(text[last:])
            yield text[:last]
    yield held + b"]"


def repaired(pieces: Iterator[bytes]) -> Iterator[bytes | bytearray]:
    """The text after `repair`, piece by piece. Raises TooBrokenError, UncutError."""
    repairs = Repairs()
    held, enough = bytearray(), unpack.PIECE_BYTES
    for piece in pieces:
        held += piece
        if len(held) < enough:
            continue
        if len(held) > MAX_UNCUT_BYTES:
            raise UncutError
        places, kinds = _marks(memoryview(held))
        commas = places[kinds == _COMMA]
        if not len(commas):
            enough = after_none(len(held))
            continue
        cut, enough = int(commas[-1]) + 1, unpack.PIECE_BYTES
        yield repairs.repair(held[:cut])
        del held[:cut]
    yield repairs.repair(held)
