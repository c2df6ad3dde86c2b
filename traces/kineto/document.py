"""The JSON of a PyTorch profiler trace: opening, bounding, decoding, and repairing what is known broken.

Events stay undecoded slices of the file (msgspec.Raw): decoding all of them at once would hold several
times the size of the file, and one odd event would hide which one it is.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from perfdoc.traces.errors import TraceError
from perfdoc.traces.kineto.repair import repair
from perfdoc.traces.kineto.values import Number

MAX_JSON_BYTES = 8 << 30
"""Largest trace after decompression that is read."""
_MAX_UNPACKED = 128
"""Times the size of a gzip file. Traces unpack to 26 times theirs at most, zeros to a thousand times."""
_FREE_UNPACKED_BYTES = 64 << 20
_LEAST_BYTES_A_COMMA = 4
"""Of a trace of more than `_FREE_UNPACKED_BYTES`; the densest seen has 7. An entry of a list takes 56 bytes
of memory, however short it is."""

_CHUNK_BYTES = 16 << 20
_GZIP_MAGIC = b"\x1f\x8b"
_BOM = b"\xef\xbb\xbf"
_RECAPTURE = "Export the trace again (the profiler writes the end of the file last)."
_NOT_A_TRACE = "Give the file that torch.profiler's export_chrome_trace or tensorboard_trace_handler wrote."


class _File(msgspec.Struct, gc=False):
    """The keys of the file that are read; others are skipped."""

    events: msgspec.Raw = msgspec.field(name="traceEvents", default=msgspec.Raw())
    schema: Any = msgspec.field(name="schemaVersion", default=None)
    device_properties: Any = msgspec.field(name="deviceProperties", default=None)
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    base_time_ns: Any = msgspec.field(name="baseTimeNanoseconds", default=None)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A trace file taken apart: events as undecoded JSON, and the facts about the whole."""

    events: list[msgspec.Raw]
    schema: Any
    device_properties: Any
    distributed: Any
    base_time_ns: Any
    repaired: bool
    """The file was not valid JSON and was read after `repair`."""


_FILE = msgspec.json.Decoder(_File)
_EVENTS = msgspec.json.Decoder(list[msgspec.Raw])


def read_document(path: Path, max_bytes: int = MAX_JSON_BYTES) -> Document:
    """Open and take apart one trace file, plain or gzip (told by its first bytes).

    Raises TraceError for a missing, truncated, oversized or malformed file and for JSON that is no
    trace. The file is opened for reading only.
    """
    data = _read(path, max_bytes)
    try:
        return _decode(path, data, repaired=False)
    except msgspec.DecodeError as error:
        if _is_truncated(error):
            raise _truncated(path) from None
        first = error
    try:
        repaired = repair(data)
        del data
        return _decode(path, repaired, repaired=True)
    except msgspec.DecodeError as error:
        if _is_truncated(error):
            raise _truncated(path) from None
        raise TraceError(path, f"the JSON cannot be read: {first}.", _RECAPTURE) from None


_GIVE_CAPTURE = "Give the captures themselves, or the run directory; perfdoc diff compares diagnoses."


def _decode(path: Path, data: bytes | bytearray, *, repaired: bool) -> Document:
    try:
        if data[:64].lstrip().startswith(b"["):
            file, events = _File(), _EVENTS.decode(data)
            if not any(bytes(event).startswith(b"{") for event in events):
                raise TraceError(path, "a JSON list without events is no profiler trace.", _NOT_A_TRACE)
        else:
            file = _FILE.decode(data)
            if not bytes(memoryview(file.events)[:1]):
                if b'"perfdoc_version"' in data[:4096]:
                    raise TraceError(path, "is what perfdoc wrote, and no trace.", _GIVE_CAPTURE)
                raise TraceError(path, "JSON without traceEvents is no profiler trace.", _NOT_A_TRACE)
            events = _EVENTS.decode(file.events)
    except msgspec.ValidationError as error:
        raise TraceError(path, f"no profiler trace: {error}.", _NOT_A_TRACE) from None
    except RecursionError:
        raise TraceError(path, "JSON nested too deeply for a profiler trace.", _NOT_A_TRACE) from None
    except UnicodeDecodeError as error:
        # Only in the few decoded header fields; events are decoded one by one later.
        raise msgspec.DecodeError(f"invalid UTF-8: {error.reason}") from None
    return Document(
        events=events,
        schema=file.schema,
        device_properties=file.device_properties,
        distributed=file.distributed,
        base_time_ns=file.base_time_ns,
        repaired=repaired,
    )


def _read(path: Path, max_bytes: int) -> bytearray:
    try:
        with path.open("rb") as file:
            is_gzip = file.read(2) == _GZIP_MAGIC
            file.seek(0)
            if is_gzip:
                packed = os.fstat(file.fileno()).st_size
                max_bytes = min(max_bytes, max(_FREE_UNPACKED_BYTES, _MAX_UNPACKED * packed))
            data = _collect(path, _chunks(file, is_gzip), max_bytes)
    except EOFError:
        raise TraceError(path, "the gzip file is truncated.", _RECAPTURE) from None
    except (gzip.BadGzipFile, zlib.error) as error:
        raise TraceError(path, f"the gzip file is damaged: {error}.", "Copy or export it again.") from None
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}.", "Check the path.") from None
    if not data or data.isspace():
        raise TraceError(path, "the file is empty.", _RECAPTURE)
    if data.startswith(_BOM):
        del data[: len(_BOM)]
    if len(data) > _FREE_UNPACKED_BYTES and data.count(b",") * _LEAST_BYTES_A_COMMA > len(data):
        raise TraceError(path, "holds lists of next to nothing, and is no profiler trace.", _NOT_A_TRACE)
    return data


def _chunks(file: BinaryIO, is_gzip: bool) -> Iterator[bytes]:
    if is_gzip:
        with gzip.GzipFile(fileobj=file) as unpacked:
            while chunk := unpacked.read(_CHUNK_BYTES):
                yield chunk
    else:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def _collect(path: Path, chunks: Iterator[bytes], max_bytes: int) -> bytearray:
    collected = bytearray()
    for chunk in chunks:
        if len(collected) + len(chunk) > max_bytes:
            raise TraceError(
                path,
                f"holds more than {max_bytes:,} bytes of JSON, the most that is read.",
                "Profile fewer steps (torch.profiler.schedule) or without with_stack and record_shapes.",
            )
        collected += chunk
        if len(collected) == len(chunk) and chunk[:64].lstrip(_BOM + b" \t\r\n").startswith(b"\0"):
            # A disk's hole or a packed one: not worth reading to its end.
            raise TraceError(path, "begins with zeros, and is no JSON.", _RECAPTURE)
    return collected


def _is_truncated(error: msgspec.DecodeError) -> bool:
    return "truncated" in str(error)


def _truncated(path: Path) -> TraceError:
    return TraceError(path, "the JSON is truncated: it ends in the middle.", _RECAPTURE)


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
