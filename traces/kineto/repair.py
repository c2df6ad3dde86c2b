"""Repairing JSON that Kineto is known to break, in a few times the memory of the text."""

from __future__ import annotations

import codecs
import re

import msgspec

from perfdoc.patterns import pattern_of

_CHUNK_BYTES = 1 << 20
MAX_REPAIRS = 1 << 24
"""Places. Each takes about a microsecond."""

_CONTROLS_TO_SPACE = bytes(32 if byte < 32 else byte for byte in range(256))
_LITERAL = rb"-?\b(?:nan|NaN|inf|Infinity)\b"
# Every repetition is possessive: what lies between two places that need repair is one match, however much it
# is, and is never looked at again.
_GOOD_ESCAPE = (
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})"
)
_GOOD_STRING = rb'"(?:[^"\\]++|' + _GOOD_ESCAPE + rb')*+"'
_BETWEEN = pattern_of(rb'(?:[^"nNiI-]++|' + _GOOD_STRING + rb"|(?!" + _LITERAL + rb")[nNiI-])*+")
_TOKEN = pattern_of(rb'"(?:[^"\\]++|\\.)*+"|' + _LITERAL, re.DOTALL)
_GOOD_TEXT = pattern_of(rb"(?:[^\\]++|" + _GOOD_ESCAPE + rb")*+")
_LONE_SURROGATE = pattern_of(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")


class TooBrokenError(msgspec.DecodeError):
    """More places are broken than are repaired."""


class Repairs:
    """Repairs of one text, which may come in pieces that are cut outside its strings."""

    def __init__(self) -> None:
        self._count = 0

    def repair(self, data: bytes | bytearray) -> bytes | bytearray:
        """As `repair`; `MAX_REPAIRS` is of all pieces."""
        text = _as_utf8(data.translate(_CONTROLS_TO_SPACE))
        view, repaired = memoryview(text), bytearray()
        kept, at, before = 0, 0, self._count
        while True:
            token = _TOKEN.match(text, _end_of(_BETWEEN, text, at, len(text)))
            if token is None:  # the end, or a quote that nothing closes
                break
            at = token.end()
            if text[token.start()] != ord('"'):
                repaired += view[kept : token.start()]
                repaired += b"null"
                kept, self._count = at, self._count + 1
            else:
                place = token.start()
                while (place := _end_of(_GOOD_TEXT, text, place, at)) < at:
                    repaired += view[kept:place]
                    lone = _LONE_SURROGATE.match(text, place, at)
                    repaired += rb"\ufffd" if lone else rb"\\"
                    kept = place = lone.end() if lone else place + 1
                    self._count += 1
                    if self._count > MAX_REPAIRS:
                        break
            if self._count > MAX_REPAIRS:
                raise TooBrokenError
        if self._count == before:
            return text
        repaired += view[kept:]
        return repaired


def repair(data: bytes | bytearray) -> bytes | bytearray:
    r"""JSON as writers meant it, where Kineto is known to have broken the rules.

    Control characters become spaces (between values they mean nothing, in strings they are illegal),
    bytes that are not UTF-8 and lone surrogates become U+FFFD, a backslash that starts no escape is
    doubled (`C:\path`), and `nan` and `inf` in place of a value become null (Kineto divided bytes by a
    zero duration). Strings are recognised as such, so their text is not mistaken for values. A quote
    left unescaped inside a name cannot be told from the end of the name and stays an error; what follows
    a quote that nothing closes stays as it is.

    Raises TooBrokenError after `MAX_REPAIRS` places.
    """
    return Repairs().repair(data)


def _end_of(pattern: re.Pattern[bytes], text: bytes | bytearray, start: int, end: int) -> int:
    """Where a pattern that matches anywhere stops."""
    match = pattern.match(text, start, end)
    assert match is not None
    return match.end()


def _as_utf8(data: bytes | bytearray) -> bytes | bytearray:
    """With what is not UTF-8 replaced."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    if data.isascii():
        return data
    decoded = bytearray()
    for at in range(0, len(data), _CHUNK_BYTES):
        decoded += decoder.decode(data[at : at + _CHUNK_BYTES]).encode()
    decoded += decoder.decode(b"", final=True).encode()
    return decoded
