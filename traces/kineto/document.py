"""The JSON of a PyTorch profiler trace: taking it apart, events first, and repairing what is known broken.

A file of gigabytes is never whole in memory: events are cut out of its list a batch at a time, and what is
left, the keys around an almost empty list, is decoded as the small file that it is. Events stay undecoded
slices of their batch (msgspec.Raw): one odd event would hide which one it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from itertools import islice
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np

from perfdoc.records import dataclass
from perfdoc.traces.errors import TraceError
from perfdoc.traces.foreign import document_of
from perfdoc.traces.kineto import cutting, unpack
from perfdoc.traces.kineto.cutting import EVENTS_KEY, UncutError, after_none, as_list, entries, repaired
from perfdoc.traces.kineto.repair import repair
from perfdoc.traces.kineto.unpack import NOT_A_TRACE, RECAPTURE, unpacked
from perfdoc.traces.kineto.values import Number

MAX_JSON_BYTES = 64 << 30
"""Largest trace after decompression that is read: 2 GB of `.json.gz` unpack to 52 GB (26 times) at most."""
MAX_HELD_BYTES = 8 << 30
"""Largest trace whose events are all held at once."""


class _File(msgspec.Struct, gc=False):
    """The keys of the file that are read; others are skipped."""

    events: msgspec.Raw = msgspec.field(name="traceEvents", default=msgspec.Raw())
    schema: Any = msgspec.field(name="schemaVersion", default=None)
    device_properties: Any = msgspec.field(name="deviceProperties", default=None)
    older_properties: Any = msgspec.field(name="computeProperties", default=None)
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    base_time_ns: Any = msgspec.field(name="baseTimeNanoseconds", default=None)


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What a trace file says beside its events."""

    schema: Any
    device_properties: Any
    distributed: Any
    base_time_ns: Any
    repaired: bool
    """The file was not valid JSON and was read after `repair`."""
    broken_off: bool = False
    """The file ends before its list of events does."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A trace file taken apart: events as undecoded JSON, and the facts about the whole."""

    events: list[msgspec.Raw]
    facts: Facts


class Reader(Protocol):
    """What takes the events of a file, batch by batch."""

    def read(self, events: list[msgspec.Raw]) -> None:
        """TraceError names the first one that cannot be true."""


_FILE = msgspec.json.Decoder(_File)
_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])
_Reader = TypeVar("_Reader", bound=Reader)


class _Held:
    def __init__(self) -> None:
        self.events: list[msgspec.Raw] = []

    def read(self, events: list[msgspec.Raw]) -> None:
        self.events += events


def read_document(path: Path, max_bytes: int = MAX_HELD_BYTES) -> Document:
    """Open and take apart one trace file, as `read_events`, with all its events."""
    facts, held = read_events(path, _Held, max_bytes, all_of_it=True)
    return Document(events=held.events, facts=facts)


def read_events(
    path: Path, reader: Callable[[], _Reader], max_bytes: int = MAX_JSON_BYTES, *, all_of_it: bool = False
) -> tuple[Facts, _Reader]:
    """Have the events of one trace file, plain or gzip (told by its first bytes), read in batches.

    A new `reader` is made wherever the events begin anew. Events a line each are read as a list of them; what
    is not valid JSON after repairs, else event by event, those that can be; all_of_it: a file with one that
    cannot is refused. Raises TraceError for a missing or oversized file, for no trace, and what a reader did.
    """
    try:
        with closing(unpacked(path, max_bytes, whole=all_of_it)) as pieces:
            return _Pass(path, reader).take(pieces)
    except msgspec.DecodeError as error:
        first = error
    with path.open("rb") as file:
        other = document_of(file.read(_HEAD_BYTES))
    if other is None and ("trailing" in str(first) or isinstance(first, UncutError)):
        with suppress(msgspec.DecodeError), closing(unpacked(path, max_bytes, whole=all_of_it)) as pieces:
            return _Pass(path, reader).take(as_list(pieces))
    try:
        if not _is_truncated(first):
            with closing(unpacked(path, max_bytes, whole=all_of_it)) as pieces:
                return _Pass(path, reader, repaired=True).take(repaired(pieces))
    except msgspec.DecodeError:
        pass
    for _ in unpacked(path, max_bytes, whole=all_of_it):
        pass  # where the gzip file is damaged, that is why
    if not all_of_it:
        from perfdoc.traces.kineto.salvage import salvaged

        made = reader()
        with closing(unpacked(path, max_bytes, whole=False)) as pieces:
            try:
                found = salvaged(pieces, lambda events: made.read([msgspec.Raw(e) for e in events]))
            except UncutError:
                found = None
        if found is not None:
            return _facts_around(*found), made
    if _is_truncated(first):
        raise TraceError(path, "the JSON is truncated: it ends in the middle.", RECAPTURE)
    raise TraceError(path, *(other or (f"the JSON cannot be read: {first}.", RECAPTURE)))


def _facts_around(head: bytes, tail: bytes | None) -> Facts:
    """What the keys in front of the events and behind them say, as far as they can be read."""
    file = _File()
    for rest in (tail, b"" if _is_list(head) else b"}"):
        try:
            text = bytes(repair(head + b"]" + (rest or b"")))
            file = _File() if _is_list(head) else _FILE.decode(text)
            break
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return _facts_of(file, repaired=True, broken_off=tail is None)


def _facts_of(file: _File, *, repaired: bool, broken_off: bool = False) -> Facts:
    return Facts(
        schema=file.schema,
        device_properties=file.older_properties if file.device_properties is None else file.device_properties,
        distributed=file.distributed,
        base_time_ns=file.base_time_ns,
        repaired=repaired,
        broken_off=broken_off,
    )


class _Pass:
    """One time through a file."""

    def __init__(self, path: Path, new: Callable[[], Any], *, repaired: bool = False) -> None:
        self._path, self._new, self._repaired = path, new, repaired
        self._text = bytearray()
        """What is not read yet, behind the keys in front of the events."""
        self._start: int | None = None
        """Where the content of the list of events begins in the text."""
        self._taken = 0
        """Bytes that were read and cut out of the text at `_start`; `_GONE` stands for them."""
        self._reader = new()
        self._refused: TraceError | None = None
        self._any = False
        """Whether any entry was an object."""

    def take(self, pieces: Iterator[bytes | bytearray]) -> tuple[Facts, Any]:
        text, enough = self._text, unpack.PIECE_BYTES
        for piece in pieces:
            text += piece
            if len(text) >= enough:
                enough = unpack.PIECE_BYTES if self._cut() else after_none(len(text))
        return self._rest(bytes(text))

    def _cut(self) -> bool:
        """Read what is whole of the events, and take it out of the text."""
        text = self._text
        if self._start is None:
            self._start = _events_begin(text)
        if len(text) - (self._start or 0) > cutting.MAX_UNCUT_BYTES:
            raise UncutError
        found = None
        if self._start is not None:
            try:
                found = entries(text, self._start, self._skip)
            except msgspec.DecodeError as error:
                raise self._placed(error, self._start - 1) from None
            except RecursionError:
                raise self._too_deep() from None
        if self._start is None or found is None:
            return False
        events, end = found
        self._read(events)
        self._taken += end - self._start - (len(_GONE) if self._taken else 0)
        text[self._start : end] = _GONE
        return True

    @property
    def _skip(self) -> int:
        return 1 if self._taken else 0

    def _read(self, events: list[msgspec.Raw]) -> None:
        """An event that cannot be true matters only where the rest of the file is JSON."""
        self._any = self._any or any(bytes(memoryview(event)[:1]) == b"{" for event in events)
        if self._refused is None:
            try:
                self._reader.read(events)
            except TraceError as error:
                self._refused = error

    def _rest(self, text: bytes) -> tuple[Facts, Any]:
        """The file without what was cut out of it."""
        try:
            file, events, at = self._decoded(text)
        except msgspec.DecodeError as error:
            raise self._placed(error, 0) from None
        except RecursionError:
            raise self._too_deep() from None
        if self._taken and at + 1 == self._start:
            events = events[self._skip :]
        elif self._taken:  # another list of the same name follows, which stands in place of this one
            self._reader, self._refused = self._new(), None
        self._read(events)
        if _is_list(text) and not self._any:
            raise TraceError(self._path, "a JSON list without events is no profiler trace.", NOT_A_TRACE)
        if self._refused is not None:
            raise self._refused
        return _facts_of(file, repaired=self._repaired), self._reader

    def _decoded(self, text: bytes) -> tuple[_File, list[msgspec.Raw], int]:
        """The keys, the events and where their list begins."""
        try:
            if _is_list(text):
                events = _EVENTS.decode(text)
                return _File(), events, text.index(b"[")
            file = _FILE.decode(text)
            if not bytes(memoryview(file.events)[:1]):
                if b'"perfdoc_version"' in text[:4096]:
                    raise TraceError(self._path, "is what perfdoc wrote, and no trace.", _GIVE_CAPTURE)
                other = document_of(text[:_HEAD_BYTES])
                raise TraceError(self._path, *(other or (_NO_EVENTS, NOT_A_TRACE)))
            return file, _EVENTS.decode(file.events), _place(file.events, text)
        except msgspec.ValidationError as error:
            raise TraceError(self._path, f"no profiler trace: {error}.", NOT_A_TRACE) from None
        except UnicodeDecodeError as error:
            # Only in the few decoded header fields; events are decoded one by one later.
            raise msgspec.DecodeError(f"invalid UTF-8: {error.reason}") from None

    def _placed(self, error: msgspec.DecodeError, at: int) -> msgspec.DecodeError:
        """The error of a text that begins at `at` of ours, with its place in the file."""

        def in_file(match: re.Match[str]) -> str:
            place = at + int(match[1])
            gone = self._taken if self._start is not None and place >= self._start else 0
            return f"byte {place + (gone - len(_GONE) if gone else 0)}"

        return msgspec.DecodeError(re.sub(r"byte (\d+)", in_file, str(error)))

    def _too_deep(self) -> TraceError:
        return TraceError(self._path, "JSON nested too deeply for a profiler trace.", NOT_A_TRACE)


_GIVE_CAPTURE = "Give the captures themselves, or the run directory; perfdoc diff compares diagnoses."
_NO_EVENTS = "JSON without traceEvents is no profiler trace."
_HEAD_BYTES = 1 << 16
_GONE = b"0,"
"""In place of events that were cut out: an entry, so that a comma may follow and a list that ends may not."""
_HEADS = 16
"""Keys of that name in other objects or strings, in front of the events; behind more they are not cut."""


def _is_list(text: bytes | bytearray) -> bool:
    return text[:64].lstrip().startswith(b"[")


def _events_begin(text: bytearray) -> int | None:
    """Where the content of the list of events begins; None where that is not in the text yet."""
    if _is_list(text):
        return text.index(b"[") + 1
    for match in islice(EVENTS_KEY.finditer(text), _HEADS):  # each costs what stands in front of it
        head = bytes(text[: match.end()]) + b"]}"
        try:
            events = _FILE.decode(head).events
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # in a string or in another object
        if bytes(events) and _place(events, head) == match.end() - 1:
            return match.end()
    return None


def _place(part: msgspec.Raw, text: bytes) -> int:
    """Where a part that was not copied begins in the text that it was decoded from."""
    begins = [np.frombuffer(memoryview(p), np.uint8).ctypes.data for p in (part, text)]
    return begins[0] - begins[1]


def _is_truncated(error: msgspec.DecodeError) -> bool:
    return "truncated" in str(error)


class Event(msgspec.Struct, gc=False):
    """The fields of a trace event that are read; `args` stays undecoded until its category is known."""

    ph: str = ""
    cat: str | None = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = None
    args: msgspec.Raw = msgspec.Raw()


decode_event = msgspec.json.Decoder(Event, float_hook=Number).decode


class _Category(msgspec.Struct, gc=False):
    ph: Any = ""
    cat: Any = None


_CATEGORY = msgspec.json.Decoder(_Category)


def has_category(content: bytes) -> bool:
    """Whether an event that did not decode has a phase and category of the right kind.

    Without them it is of none of the categories that are read, and can be ignored.
    """
    try:
        category = _CATEGORY.decode(repair(content))
    except (msgspec.DecodeError, RecursionError):
        return True
    return isinstance(category.ph, str) and isinstance(category.cat, (str, type(None)))
