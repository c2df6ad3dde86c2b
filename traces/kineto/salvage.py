"""Reading what is whole of a trace whose JSON is not: it breaks off, or some of its texts hold bare quotes.

PyTorch writes an event as an object whose keys come in one order or another, but are always the same few:
that tells where the next one begins, whatever stands in a text before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from perfdoc.traces.kineto import cutting, unpack
from perfdoc.traces.kineto.cutting import UncutError, after_none

_KEYS = rb'"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"\s*+:'
_BEGIN = re.compile(rb'"traceEvents"\s*+:\s*+\[|\A\s*+\[(?=\s*+\{)')
_NEXT = re.compile(rb"\}\s*+,?+\s*+(?=\{\s*+" + _KEYS + rb")")
_END = re.compile(rb"\}\s*+,?+\s*+\](?=\s*+(?:[,}]|\Z))")
_MOST_ENDS = 16
_AT_ONCE = 4096

Sink = Callable[[Sequence[bytes]], None]


def salvaged(pieces: Iterator[bytes | bytearray], sink: Sink) -> tuple[bytes, bytes | None] | None:
    """Hand every piece of text that can be an event to `sink`, some thousand at once.

    The text in front of the events, and what follows their list (None where it breaks off before); None
    where there are none. Raises UncutError.
    """
    text, head, enough, any_event = bytearray(), None, unpack.PIECE_BYTES, False
    for piece in pieces:
        text += piece
        if len(text) < enough:
            continue
        if head is None:
            head = _head(text)
        cut = head is not None and _cut(text, sink)
        any_event, enough = any_event or cut, unpack.PIECE_BYTES if cut else after_none(len(text))
        if len(text) > cutting.MAX_UNCUT_BYTES:
            raise UncutError
    head = _head(text) if head is None else head
    if head is None:
        return None
    any_event |= _cut(text, sink)
    for number, end in enumerate(_END.finditer(text)):
        # A bracket may close in a text; the last event is the one that ends first and is whole.
        if number == _MOST_ENDS:
            break
        sink([bytes(text[: end.start() + 1])])
        return head, bytes(text[end.end() :])
    last = bytes(text).rstrip(b" \t\r\n,")
    if last.endswith(b"}}"):
        sink([last])
        any_event = True
    return (head, None) if any_event else None


def _head(text: bytearray) -> bytes | None:
    begin = _BEGIN.search(text)
    if begin is None:
        return None
    head = bytes(text[: begin.end()])
    del text[: begin.end()]
    return head


def _cut(text: bytearray, sink: Sink) -> bool:
    """Hand over all events but the last, and take them out of the text; whether there were any."""
    at, found = 0, []
    for match in _NEXT.finditer(text):
        found.append(bytes(text[at : match.start() + 1]))
        at = match.end()
        if len(found) == _AT_ONCE:
            sink(found)
            found = []
    if found:
        sink(found)
    del text[:at]
    return at > 0


_TOKEN = re.compile(rb'[{}\[\]"]')
_QUOTE = re.compile(rb'\\.|"', re.DOTALL)
_ENDS_KEY = re.compile(rb'"\s*+:')
_ENDS_ITEM = re.compile(rb'"\s*+[,\]]')
_ENDS_OBJECT = rb'"\s*+(?:\}\s*+(?:[,}\]]|\Z)|,\s*+'
_ENDS_FIELD = re.compile(_ENDS_OBJECT + _KEYS + rb")")
_ENDS_ARGUMENT = re.compile(_ENDS_OBJECT + rb'"[^"\n]{1,64}+"\s*+:)')


def requoted(event: bytes) -> bytes:
    r"""An event with the bare quotes inside its texts escaped.

    A quote ends a text where what follows can only follow a text: after a field of the event a comma and
    another of its fields, or the end of the object. `"name": "{"a": "b"}(12): f", "pid": 1` has one reading.
    """
    out, at, kept = bytearray(), 0, 0
    open_brackets: list[int] = []
    is_key = False
    while (token := _TOKEN.search(event, at)) is not None:
        at, mark = token.end(), event[token.start()]
        if mark in b"{[":
            open_brackets.append(mark)
            continue
        if mark in b"}]":
            del open_brackets[-1:]
            continue
        if not open_brackets:
            break
        before = event[: token.start()].rstrip()[-1:]
        is_key = open_brackets[-1] == ord("{") and before in (b"{", b",")
        ends = (
            _ENDS_KEY
            if is_key
            else _ENDS_ITEM
            if open_brackets[-1] == ord("[")
            else _ENDS_FIELD
            if len(open_brackets) == 1
            else _ENDS_ARGUMENT
        )
        while (quote := _QUOTE.search(event, at)) is not None:
            at = quote.end()
            if quote.group() != b'"':
                continue
            if ends.match(event, quote.start()):
                break
            out += event[kept : quote.start()] + b"\\"
            kept = quote.start()
        else:
            return event
    return bytes(out + event[kept:]) if kept else event
