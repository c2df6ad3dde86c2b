"""What the bytes of an event look like, once one with the same keys has been read.

Opcodes begin with different bytes, so a pattern over them matches in one way or not at all: what it finds are
the opcodes that a reading one by one would find. Repetitions are possessive: no match takes more than a look
at each byte.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


def _of_length(opcode: bytes, most: int) -> bytes:
    """An opcode with one byte for the length, and that many bytes."""
    return opcode + rb"(?:\x00|" + b"|".join(rb"\x%02x.{%d}" % (n, n) for n in range(1, most + 1)) + b")"


_REFERENCE = rb"(?:h.|j.{4})"
_INTEGER = rb"(?:K.|M..|J.{4}|" + _of_length(rb"\x8a", 8) + rb")"
_TEXT = rb"(?:h.|j.{4}|" + _of_length(rb"\x8c", 255) + rb"\x94)"
_FRAMES = rb"\]\x94(?:\((?:h.|j.{4})++e|(?:h.|j.{4})a)"
_STACK = rb"(?:h.|j.{4}|" + _FRAMES + rb"|\]\x94)"
_PAIR = rb"(?:h.|j.{4}|" + _INTEGER + _INTEGER + rb"\x86\x94)"

_COLUMNS = {
    "action": ("action", _REFERENCE),
    "addr": ("address", _INTEGER),
    "device_free": ("address", _INTEGER),
    "size": ("size", _INTEGER),
    "stream": ("stream", _INTEGER),
    "time_us": ("time", _INTEGER),
    "user_metadata": ("label", _TEXT),
    "frames": ("frames", _STACK),
}
"""Key in the file → name of the group, and what it holds."""
_GROUPS = ("action", "address", "size", "stream", "time", "label", "frames")
_OPTIONAL = ("stream", "time", "label", "frames")
"""Groups that are empty where the events have no such key."""

match_frames = re.compile(_FRAMES + rb"(?!\()", re.DOTALL).match
"""A whole list of things that the file has defined before: picklers write long lists in several parts."""


@dataclass(frozen=True, kw_only=True)
class EventPattern:
    """Events with certain keys in a certain order."""

    match: Callable[[bytes, int], re.Match[bytes] | None]
    groups: tuple[int, ...]
    """Groups of the action, address, size, stream, time, label and frames."""
    before: tuple[int, ...]
    """Groups in front of the frames that may define a text or a pair, which then gets a place in the memo."""
    behind: tuple[int, ...]

    @classmethod
    def of(cls, found: Mapping[Any, Any], text_places: Mapping[str, int]) -> EventPattern | None:
        """The pattern of events like this one; None where they are not of a form that one can tell.

        text_places: where in the memo the keys are, which is how later events name them.
        """
        if any(key not in text_places for key in found) or ("addr" in found and "device_free" in found):
            return None
        names: list[str] = []
        parts = [rb"\}\x94\("]
        for key, value in found.items():
            name, form = _COLUMNS.get(key) or _other(value, len(names))
            if not form:
                return None
            names.append(name)
            parts.append(re.escape(_encoded(text_places[key])) + b"(?P<%s>%s)" % (name.encode(), form))
        if not set(names).issuperset(_GROUPS[:3]):
            return None
        parts.append(b"u")
        parts += [b"(?P<%s>)" % name.encode() for name in _OPTIONAL if name not in names]
        pattern = re.compile(b"".join(parts), re.DOTALL)
        index = pattern.groupindex
        defining = sorted(index[n] for n in names if n == "label" or n.startswith("define"))
        return cls(
            match=pattern.match,
            groups=tuple(index[name] for name in _GROUPS),
            before=tuple(group for group in defining if group < index["frames"]),
            behind=tuple(group for group in defining if group > index["frames"]),
        )


def _other(value: object, number: int) -> tuple[str, bytes]:
    """A group for a key that is not read, going by its first value."""
    if isinstance(value, str):
        return f"define{number}", _TEXT
    if isinstance(value, tuple):
        return f"define{number}", _PAIR
    if value is None or isinstance(value, bool):
        return f"other{number}", rb"[N\x88\x89]"
    return f"other{number}", _INTEGER if isinstance(value, int) else b""


def _encoded(place: int) -> bytes:
    """How a pickler refers to a place of the memo."""
    return b"h%c" % place if place < 256 else b"j" + place.to_bytes(4, "little")


def reference(raw: bytes) -> int:
    """The place that a reference names."""
    return raw[1] if raw[0] == 0x68 else int.from_bytes(raw[1:5], "little")


def references(raw: bytes) -> list[int]:
    """The places that the items of a list name."""
    places, at, end = [], 3 if raw[2:3] == b"(" else 2, len(raw) - 1
    while at < end:
        width = 2 if raw[at] == 0x68 else 5
        places.append(reference(raw[at : at + width]))
        at += width
    return places


def is_reference(raw: bytes) -> bool:
    """Whether these are the bytes of a reference."""
    return raw[0] in b"hj"


def is_text(raw: bytes) -> bool:
    """Whether these are the bytes of a text and of its place in the memo."""
    return raw[0] == 0x8C


def text_bytes(raw: bytes) -> bytes:
    """The text itself."""
    return raw[2:-1]


def decoded(raw: bytes) -> int:
    """The value of an integer's opcode."""
    op = raw[0]
    if op == 0x8A:
        return int.from_bytes(raw[2:], "little", signed=True)
    return int.from_bytes(raw[1:], "little", signed=op == 0x4A)


def pair_of(raw: bytes) -> tuple[int, ...]:
    """The numbers of a pair's opcodes."""
    first = raw[1] + 2 if raw[0] == 0x8A else {0x4B: 2, 0x4D: 3, 0x4A: 5}[raw[0]]
    return decoded(raw[:first]), decoded(raw[first:-2])
