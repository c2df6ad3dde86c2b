"""A shareable copy of a PyTorch profiler trace: what perfdoc reads of every event, and nothing else."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from perfdoc.analyzers.work.inputs import is_element_type
from perfdoc.redact.nsys import Copied
from perfdoc.redact.texts import Names, gpu_name
from perfdoc.results.figures import plural
from perfdoc.traces.kineto.devices import parsed
from perfdoc.traces.kineto.document import Document, Event, Facts, decode_event, read_document
from perfdoc.traces.kineto.names import CALLS, COPIES, KERNELS, MARKS, OPERATORS, family, is_own_frame
from perfdoc.traces.kineto.repair import repair
from perfdoc.traces.kineto.values import Args, is_text

_CODE = frozenset({*KERNELS, *COPIES, *CALLS, "cuda_sync", "cuda_event"})
"""Categories of what CUDA and its profiler name."""
_FRAMES = "python_function"
_TEXTS = frozenset({*MARKS, *OPERATORS, _FRAMES})
"""Categories whose names people wrote; events of any other are left out."""
_NUMBER = re.compile(r"-?[0-9]{1,20}(?:\.[0-9]{1,12})?(?:[eE][+-]?[0-9]{1,3})?")
_NUMBER_TEXT = re.compile(r"(?:stream )?-?[0-9]{1,19}|0x[0-9a-fA-F]{1,16}")
_SYNC = re.compile(r"(?:Event|Stream|Context) Sync|Stream Wait Event|Unknown")

_PUBLISHED = {
    "call": re.compile(
        r"(?:mc|su|sdaa|musa)(?:(?:Graph)?Launch(?:Cooperative)?(?:Kernel)?(?:ExC)?|Mem(?:cpy|set)(?:Async)?|Malloc|Free"
        r"|(?:Stream|Device|Event)Synchronize|StreamWaitEvent|Event(?:Record|Query)(?:WithFlags)?)"
    ),
    "copy": re.compile(r"Mem(?:set|cpy [DHP]to[DHP])(?: \((?:(?:Device|Pageable|Pinned|->) ?){1,3}\))?"),
}
"""Names in rows of other vendors' builds, letter by letter."""

_SHAPES = ("Input Dims", "Input dims", "Input Strides")
"""Operators' arguments; of a tensor that is none, PyTorch writes an empty text."""
_TYPES, _VALUES = "Input type", "Concrete Inputs"
_SCALAR = re.compile(
    r"True|False|-?[0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,3})?"
    r"|\[(?:-?[0-9]{1,18}(?:, ?(?=-?[0-9])|(?=\]))){0,64}\]"
)
TRIPLE_ARGS = ("grid", "block")
WORD_ARGS = ("Collective name", "dtype", "Process Group Name", "Process Group Description", "cuda_sync_kind")
LIST_ARGS = ("In split size", "Process Group Ranks")
NUMBER_ARGS = tuple(
    field.encode_name
    for field in msgspec.structs.fields(Args)
    if field.type is Any and field.encode_name not in {*TRIPLE_ARGS, *WORD_ARGS, *LIST_ARGS}
)
"""All others that are read: copied where they are numbers."""
_LIST = re.compile(r"\[(?:(?:[0-9]{1,10}|\.\.\.)(?:, ?(?=[0-9.])|(?=\]))){0,5000}\]")
"""As PyTorch writes one as text, which it may shorten."""
_DEVICE = MappingProxyType({"id": int, "numSms": int, "totalGlobalMem": int, "name": str})


_ARGS = msgspec.json.Decoder(dict[str, Any])


def copy_kineto(source: Path, target: Path, names: Names) -> Copied:
    """Write the copy of a trace to a file that is not there yet, packed where it is named so.

    Raises TraceError, OSError.
    """
    document = read_document(source)
    written = 0
    with gzip.open(target, "wb", compresslevel=6) if target.suffix == ".gz" else target.open("wb") as file:
        file.write(b"{" + _facts(document.facts, names) + b'"traceEvents": [\n')
        for event in _events(document, names):
            file.write((b",\n" if written else b"") + event)
            written += 1
        file.write(b"\n]}\n")
    skipped = len(document.events) - written
    left_out = f"{plural(skipped, 'event')} that perfdoc does not read" if skipped else ""
    return Copied(rows=written, left_out=left_out, words=names.replaced)


def _facts(facts: Facts, names: Names) -> bytes:
    """Devices, ranks and the clock's origin; each with its comma."""
    found: dict[str, Any] = {}
    if _is_whole(facts.schema):
        found["schemaVersion"] = facts.schema
    if isinstance(facts.device_properties, list):
        found["deviceProperties"] = [
            {
                key: gpu_name(names, value, {}) if isinstance(value, str) else value
                for key, kind in _DEVICE.items()
                if type(value := entry.get(key)) is kind and (kind is str or _is_whole(value))
            }
            for entry in facts.device_properties
            if isinstance(entry, dict)
        ]
    if (distributed := _distributed(parsed(facts.distributed), names)) is not None:
        found["distributedInfo"] = distributed
    if _is_whole(facts.base_time_ns):
        found["baseTimeNanoseconds"] = facts.base_time_ns
    return b"".join(
        msgspec.json.encode(k) + b": " + msgspec.json.encode(v) + b",\n" for k, v in found.items()
    )


def _distributed(info: Any, names: Names) -> dict[str, Any] | None:
    if not isinstance(info, dict):
        return None
    kept: dict[str, Any] = {
        key: v for key in ("rank", "world_size", "pg_count") if _is_whole(v := info.get(key))
    }
    if info.get("backend") in ("nccl", "gloo", "mpi"):
        kept["backend"] = info["backend"]
    config = parsed(info.get("pg_config"))
    entries = list(config.values()) if isinstance(config, dict) else config
    if isinstance(entries, list):
        kept["pg_config"] = [
            {
                **{k: names.of_range(str(e[k])) for k in ("pg_name", "pg_desc") if k in e},
                "ranks": [r for r in ranks if _is_whole(r)]
                if isinstance(ranks := e.get("ranks"), list)
                else [],
            }
            for e in entries
            if isinstance(e, dict)
        ]
    return kept


def _events(document: Document, names: Names) -> Iterator[bytes]:
    """Every event that is read, made anew."""
    for raw in document.events:
        event = _decoded(bytes(raw))
        if event is None or not isinstance(event.ph, str):
            continue
        clean = _clean(event, names)
        if clean is not None:
            yield clean


def _decoded(content: bytes) -> Event | None:
    try:
        return decode_event(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            return decode_event(repair(content))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


def _clean(event: Event, names: Names) -> bytes | None:
    category = event.cat
    of_other = _of_other(event) if event.ph == "X" else None
    if of_other is not None:
        category, name, args = of_other
    elif event.ph == "M":
        if event.name != "thread_name":
            return None
        thread = _arguments(event.args).get("name")
        args = {"name": names.of_range(thread)} if isinstance(thread, str) else {}
        name = "thread_name"
    elif event.ph in ("X", "i", "I") and category in _CODE | _TEXTS and is_text(event.name):
        name = _name(category, event.name, names)
        args = {}
        if category in _CODE:
            args = _clean_arguments(_arguments(event.args), names)
        elif category in OPERATORS and b'"input dims"' in bytes(event.args).lower():
            args = _inputs(_arguments(event.args))
    else:
        return None
    fields: dict[str, Any] = {"ph": event.ph}
    if of_other is not None or category in _CODE | _TEXTS:
        fields["cat"] = category
    fields |= {"name": name, "pid": _place(event.pid, names), "tid": _place(event.tid, names)}
    for key, value in (("ts", event.ts), ("dur", event.dur)):
        if _is_whole(value) or (isinstance(value, str) and _NUMBER.fullmatch(value)):
            fields[key] = msgspec.Raw(str(value).encode())
    if args:
        fields["args"] = args
    return msgspec.json.encode(fields)


def _of_other(event: Event) -> tuple[str, str, dict[str, Any]] | None:
    """Category, name and numbers of a row of another vendor's build; None of any other, which may be
    anybody's: nothing is copied that people may have written."""
    if not (of := family(event.cat)) or not isinstance(event.cat, str) or not isinstance(event.name, str):
        return None
    read = ("correlation",) if of == "call" else ("device", "stream")
    args = {k: v for k, v in _arguments(event.args).items() if k in (*read, "bytes") and _is_whole(v)}
    whole = _is_whole(event.pid) and _is_whole(event.tid) and all(name in args for name in read)
    known = whole and _PUBLISHED[of].fullmatch(event.name)
    return (f"other_{event.cat.rpartition('_')[2]}", event.name, args) if known else None


def _name(category: str | None, name: str, names: Names) -> str:
    """Of Python's frames those alone keep words that perfdoc reads."""
    if category in KERNELS:
        return names.of_kernel(name)
    if category in CALLS:
        return names.of_call(name)
    if category == _FRAMES and not is_own_frame(name):
        return "frame"
    return names.of_range(name)


def _is_whole(value: object) -> bool:
    """A whole number of 64 bits: a longer one could hold a text."""
    return type(value) is int and -(2**63) <= value < 2**64


def _inputs(args: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of an operator's arguments: sizes, element types that are known, numbers."""
    found = {k: v for k, v in args.items() if k in _SHAPES and _is_shape(v)}
    for key, kept in ((_TYPES, is_element_type), (_VALUES, lambda text: _SCALAR.fullmatch(text) is not None)):
        if isinstance(args.get(key), list):
            found[key] = _kept(args[key], kept)
    return found


def _kept(value: object, is_kept: Callable[[str], bool], depth: int = 0) -> Any:
    """Texts that may stay, in lists; an empty text for all others."""
    if isinstance(value, list) and depth < 4:
        return [_kept(v, is_kept, depth + 1) for v in value]
    return value if isinstance(value, str) and is_kept(value) else ""


def _is_shape(value: object, depth: int = 0) -> bool:
    """Lists of whole numbers, in lists."""
    if isinstance(value, list):
        return depth < 4 and all(_is_shape(v, depth + 1) for v in value)
    return _is_whole(value) or value == ""


def _place(value: Any, names: Names) -> Any:
    """A process or a thread: a number, or a name such as `stream 7`."""
    if _is_whole(value):
        return value
    return names.of_range(value) if is_text(value) else None


def _arguments(raw: msgspec.Raw) -> Mapping[str, Any]:
    content = bytes(raw)
    for attempt in (content, repair(content)):
        try:
            return _ARGS.decode(attempt)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return {}


def _clean_arguments(args: Mapping[str, Any], names: Names) -> dict[str, Any]:
    """Arguments that are read, each of its own form."""
    clean: dict[str, Any] = {}
    for key in NUMBER_ARGS:
        value = args.get(key)
        if _is_whole(value) or (isinstance(value, str) and _NUMBER_TEXT.fullmatch(value)):
            clean[key] = value
    for key in TRIPLE_ARGS:
        value = args.get(key)
        if isinstance(value, list) and len(value) <= 3 and all(map(_is_whole, value)):
            clean[key] = value
    for key in WORD_ARGS:
        value = args.get(key)
        if _is_whole(value):
            clean[key] = value
        elif isinstance(value, str):
            clean[key] = value if _SYNC.fullmatch(value) else names.of_range(value)
    for key in LIST_ARGS:
        value = args.get(key)
        numbers = isinstance(value, list) and all(map(_is_whole, value))
        if numbers or (isinstance(value, str) and _LIST.fullmatch(value)):
            clean[key] = value
    return clean
