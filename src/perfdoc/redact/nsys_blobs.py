"""NCCL's payloads kept as blobs: their known numbers in their places, and zeros everywhere else."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Mapping, Sequence

from perfdoc.redact.nsys_texts import NCCL_FIELDS
from perfdoc.traces.nsys.source import NULL
from perfdoc.traces.nsys.sqlite_file import SqliteFile

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
