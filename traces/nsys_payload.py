"""NCCL's NVTX payloads in an Nsight export: communicator ids and message sizes.

Two spellings exist: `jsonText` (nsys 2026, one JSON object with NCCL's field names) and `binaryData`
(exports with blobs: a 32-byte header, then the payload laid out by NVTX_PAYLOAD_SCHEMA_ENTRIES).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from perfdoc.traces.arrow import distinct_texts
from perfdoc.traces.model import UNKNOWN, Payloads, Ranges
from perfdoc.traces.nsys_host import NVTX
from perfdoc.traces.nsys_source import NULL, NsysSource, read_ints
from perfdoc.traces.strings import Strings
from perfdoc.traces.table import I64

_COMMUNICATOR = "NCCL communicator ID"
_FIELDS = {
    "group_size": "No. of ranks",
    "bytes": "Message size [bytes]",
    "peer": "Peer rank",
    "rank": "Rank",
}
_HEADER = struct.Struct("<IIIIQQ")
"""domainId, reserved, schemaId, reserved, payload size, total size."""
_SCALARS = {5: "<i", 18: "<Q", 22: "<Q"}
"""NVTX payload entry types that NCCL uses: int, uint64 and size_t."""
_MAX_PAYLOAD_BYTES = 65536


def read_payloads(source: NsysSource, ranges: Ranges, source_row: I64, strings: Strings) -> Payloads:
    """One row for every range with an NCCL payload."""
    row_of = np.full(int(source_row.max()) + 1 if len(source_row) else 0, UNKNOWN, np.int64)
    row_of[source_row] = np.arange(len(source_row))
    found: dict[int, Mapping[str, Any]] = {}
    columns = source.columns(NVTX)
    if "jsonText" in columns:
        found |= _json_payloads(source, row_of)
    if "binaryData" in columns and source.columns("NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        for row, fields in _binary_payloads(source, row_of).items():
            found.setdefault(row, fields)
    rows = [
        r
        for r, fields in sorted(found.items())
        if _integer(fields.get(_COMMUNICATOR), 64) is not None or "Message size [bytes]" in fields
    ]
    empty = np.zeros(len(rows), np.int32)
    columns_out: dict[str, list[int]] = {k: [] for k in _FIELDS}
    for r in rows:
        for key, field in _FIELDS.items():
            value = _integer(found[r].get(field), 63)
            columns_out[key].append(UNKNOWN if value is None else value)
    index = np.array(rows, np.int64)
    return Payloads(
        kernel=np.full(len(rows), UNKNOWN),
        range=index,
        operation=ranges.name[index],
        communicator=np.array([_integer(found[r].get(_COMMUNICATOR), 64) or 0 for r in rows], np.uint64),
        group_name=empty,
        group_description=empty,
        dtype=empty,
        sequence=np.full(len(rows), UNKNOWN),
        **{k: np.array(v, np.int64) for k, v in columns_out.items()},
    )


def _integer(value: object, bits: int) -> int | None:
    """A non-negative integer of at most so many bits, else None: the file is not to be trusted."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**bits:
        return value
    return None


def _json_payloads(source: NsysSource, row_of: I64) -> dict[int, Mapping[str, Any]]:
    texts, code = distinct_texts(source.read(NVTX, ["jsonText"])["jsonText"])
    # Few distinct texts stand for many rows: the same communicator and size come back every step.
    decoded = [_decode(text) for text in texts]
    rows = np.flatnonzero(code >= 0)
    return {
        int(row_of[r]): fields
        for r in rows.tolist()
        if r < len(row_of) and row_of[r] != UNKNOWN and (fields := decoded[int(code[r])])
    }


def _decode(text: str) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _binary_payloads(source: NsysSource, row_of: I64) -> dict[int, Mapping[str, Any]]:
    """Payloads kept as blobs (`nsys export --include-blobs=true`)."""
    schemas = _schemas(source)
    found: dict[int, Mapping[str, Any]] = {}
    for row, cell in source.blobs(NVTX, "binaryData"):
        raw = _unhex(cell)
        if len(raw) < _HEADER.size or row >= len(row_of) or row_of[row] == UNKNOWN:
            continue
        domain, _, schema, _, payload_bytes, _ = _HEADER.unpack_from(raw)
        body = raw[_HEADER.size : _HEADER.size + min(payload_bytes, _MAX_PAYLOAD_BYTES)]
        fields = {}
        for name, offset, layout in schemas.get((domain, schema), ()):
            if 0 <= offset <= len(body) - struct.calcsize(layout):
                fields[name] = struct.unpack_from(layout, body, offset)[0]
        if fields:
            found[int(row_of[row])] = fields
    return found


def _unhex(cell: bytes) -> bytes:
    """The column is declared TEXT: some exports hold raw bytes in it, others hexadecimal text.

    A raw payload begins with a small little-endian domain id, so zero bytes tell the two apart.
    """
    try:
        return bytes.fromhex(cell.decode("ascii"))
    except (UnicodeDecodeError, ValueError):
        return cell


def _schemas(source: NsysSource) -> dict[tuple[int, int], list[tuple[str, int, str]]]:
    """Fields by (domain, schema): name, offset in the payload, struct layout."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not {"domainId", "schemaId", "type", "name", "offset"} <= source.columns(table):
        return {}
    numbers = read_ints(source, table, {"domainId": NULL, "schemaId": NULL, "type": NULL, "offset": 0})
    names = source.read(table, ["name"])["name"].to_pylist()
    schemas: dict[tuple[int, int], list[tuple[str, int, str]]] = {}
    for i, name in enumerate(names):
        layout = _SCALARS.get(int(numbers["type"][i]))
        if name and layout:
            key = (int(numbers["domainId"][i]), int(numbers["schemaId"][i]))
            schemas.setdefault(key, []).append((str(name), int(numbers["offset"][i]), layout))
    return schemas
