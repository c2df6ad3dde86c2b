"""Texts and payloads of an Nsight export, made anew: what is known stays, the rest is replaced."""

from __future__ import annotations

import contextlib
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import msgspec

from perfdoc.redact.words import Names
from perfdoc.traces.nsys.source import NULL
from perfdoc.traces.nsys.sqlite_file import SqliteFile

NCCL_FIELDS = ("NCCL communicator ID", "No. of ranks", "Message size [bytes]", "Peer rank", "Rank", "Root")
"""Fields of NCCL's payloads that hold whole numbers."""
WARNINGS = (
    "Not all CUDA events might have been collected",
    "Not all NVTX events might have been collected",
    "events dropped",
    "Installed CUDA driver version",
)
"""What of nsys's own messages perfdoc looks for; the rest of them names paths and commands."""
EXPORT_FACTS = frozenset(
    {
        *("EXPORT_PRODUCT_NAME", "EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"),
        *("EXPORT_SCHEMA_VERSION_MAJOR", "EXPORT_SCHEMA_VERSION_MINOR", "EXPORT_SCHEMA_VERSION_MICRO"),
    }
)
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+-]{0,40}")
_PRODUCT = "NVIDIA Nsight Systems"
_GPU = re.compile(
    r"(?i)(?:nvidia|tesla|quadro|geforce|rtx|gtx|titan|amd|instinct|simulated)[ A-Za-z0-9_.-]{0,60}"
)
_MAX_JSON = 65536

Row = Mapping[str, str]


def range_text(names: Names, text: str, row: Row) -> str | None:
    """The name of a range."""
    return names.of_range(text)


def payload_json(names: Names, text: str, row: Row) -> str | None:
    """NCCL's numbers of a payload; nothing of any other."""
    if len(text) > _MAX_JSON:
        return None
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    kept = {
        field: value
        for field in NCCL_FIELDS
        if isinstance(value := found.get(field), int) and not isinstance(value, bool) and 0 <= value < 2**64
    }
    return msgspec.json.encode(kept).decode() if kept else None


def schema_name(names: Names, text: str, row: Row) -> str | None:
    """The name of a payload's field."""
    return text if text in NCCL_FIELDS else names.of_range(text)


def gpu_name(names: Names, text: str, row: Row) -> str | None:
    """A product's name; of anything else a number."""
    return text if _GPU.fullmatch(text) else names.number(text)


def numbered(names: Names, text: str, row: Row) -> str | None:
    """What tells one thing from another, and must not tell which it is."""
    return names.number(text)


def warning(names: Names, text: str, row: Row) -> str | None:
    """What of a message is known."""
    return next((w for w in WARNINGS if w in text), None)


def export_name(names: Names, text: str, row: Row) -> str | None:
    """The key of a fact about the export."""
    return text if text in EXPORT_FACTS else None


def export_value(names: Names, text: str, row: Row) -> str | None:
    """Its value."""
    if row.get("name") == "EXPORT_PRODUCT_NAME":
        return _PRODUCT if "Nsight" in text else None
    return text if row.get("name") in EXPORT_FACTS and _VERSION.fullmatch(text) else None


CLEANERS: Mapping[tuple[str, str], Callable[[Names, str, Row], str | None]] = MappingProxyType(
    {
        ("NVTX_EVENTS", "text"): range_text,
        ("NVTX_EVENTS", "jsonText"): payload_json,
        ("NVTX_PAYLOAD_SCHEMA_ENTRIES", "name"): schema_name,
        ("TARGET_INFO_GPU", "name"): gpu_name,
        ("TARGET_INFO_GPU", "uuid"): numbered,
        ("TARGET_INFO_CUDA_DEVICE", "uuid"): numbered,
        ("DIAGNOSTIC_EVENT", "text"): warning,
        **{(t, "name"): export_name for t in ("META_DATA_EXPORT", "EXPORT_META_DATA")},
        **{(t, "value"): export_value for t in ("META_DATA_EXPORT", "EXPORT_META_DATA")},
    }
)
"""By table and column."""


_HEADER = struct.Struct("<IIIIQQ")
"""Domain, reserved, schema, reserved, bytes of the payload, bytes in all."""
_BYTES = {5: 4, 18: 8, 22: 8}
"""Of the types of NCCL's fields: int, uint64, size_t."""
_MAX_BODY = 65536
_TABLE = "NVTX_PAYLOAD_SCHEMA_ENTRIES"

Fields = Mapping[tuple[int, int], Sequence[tuple[int, int]]]
"""(offset, bytes) of known fields by (domain, schema)."""


def known_fields(file: SqliteFile) -> Fields:
    """Where NCCL's numbers lie in the payloads of one export."""
    wanted = ("domainId", "schemaId", "type", "offset", "name")
    if not set(wanted) <= file.tables.get(_TABLE, frozenset()):
        return {}
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in file.rows(f'SELECT domainId, schemaId, "type", "offset", name FROM "{_TABLE}"'):
        domain, schema, kind, offset = (v if isinstance(v, int) else NULL for v in row[:4])
        if row[4] in NCCL_FIELDS and kind in _BYTES:
            found.setdefault((domain, schema), []).append((max(offset, 0), _BYTES[kind]))
    return found


def clean_blob(value: object, fields: Fields) -> bytes | None:
    """A payload with nothing but its known numbers; None where none of them is known."""
    raw = value.encode("utf-8", "replace") if isinstance(value, str) else value
    if not isinstance(raw, bytes):
        return None
    with contextlib.suppress(UnicodeDecodeError, ValueError):  # else raw bytes, not hexadecimal text
        raw = bytes.fromhex(raw.decode("ascii"))
    if len(raw) < _HEADER.size:
        return None
    domain, _, schema, _, size, _ = _HEADER.unpack_from(raw)
    known = fields.get((domain, schema))
    if not known:
        return None
    body = raw[_HEADER.size : _HEADER.size + min(size, _MAX_BODY)]
    clean = bytearray(len(body))
    for offset, count in known:
        clean[offset : offset + count] = body[offset : offset + count]
    return _HEADER.pack(domain, 0, schema, 0, len(body), _HEADER.size + len(body)) + bytes(clean[: len(body)])
