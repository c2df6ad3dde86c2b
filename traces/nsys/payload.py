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

from perfdoc.traces.model import UNKNOWN, Ranges
from perfdoc.traces.more_tables import Payloads
from perfdoc.traces.nsys.host import NVTX
from perfdoc.traces.nsys.source import NULL, NsysSource, read_ints
from perfdoc.traces.table import I64, Strings

PAYLOAD_COLUMNS = ("jsonText",)
"""What is read of NVTX_EVENTS as a whole column."""
COMMUNICATOR = "NCCL communicator ID"
FIELDS = {"group_size": "No. of ranks", "bytes": "Message size [bytes]", "peer": "Peer rank", "rank": "Rank"}
"""NCCL's names of what is read."""
HEADER = struct.Struct("<IIIIQQ")
"""domainId, reserved, schemaId, reserved, payload size, total size."""
_SCALARS = {5: "<i", 18: "<Q", 22: "<Q"}
"""NVTX payload entry types that NCCL uses: int, uint64 and size_t."""
MAX_PAYLOAD_BYTES = 65536


def read_payloads(source: NsysSource, ranges: Ranges, source_row: I64, strings: Strings) -> Payloads:
    """One row for every range with an NCCL payload. `source_row`: each range's row in NVTX_EVENTS."""
    columns = source.columns(NVTX)
    cells = [np.full(0, -1, np.int64)], [np.full(0, -1, np.int64)]
    decoded: list[Mapping[str, Any]] = []
    if "jsonText" in columns:
        texts, code = source.read(NVTX, PAYLOAD_COLUMNS)["jsonText"].distinct_texts()
        rows = np.flatnonzero(code >= 0)
        cells[0].append(rows)
        cells[1].append(code[rows])
        decoded += [_decode(text) for text in texts]
    if "binaryData" in columns and source.columns("NVTX_PAYLOAD_SCHEMA_ENTRIES"):
        blobs = source.blobs(NVTX, "binaryData")
        distinct_cells = {cell: i for i, cell in enumerate(dict.fromkeys(cell for _, cell in blobs))}
        cells[0].append(np.array([row for row, _ in blobs], np.int64))
        cells[1].append(np.array([distinct_cells[cell] for _, cell in blobs], np.int64) + len(decoded))
        schemas = read_schemas(source)
        decoded += [_unpack(cell, schemas) for cell in distinct_cells]

    # Few distinct payloads stand for many rows, since the same communicators and sizes come back every
    # step: each is judged once.
    useful = np.array([_is_nccl(fields) for fields in decoded], bool)
    facts = {
        key: np.array([_integer(f.get(field), 63, UNKNOWN) for f in decoded], np.int64)
        for key, field in FIELDS.items()
    }
    communicators = np.array([_integer(f.get(COMMUNICATOR), 64, 0) for f in decoded], np.uint64)
    row_of = np.full(int(source_row.max(initial=-1)) + 1, UNKNOWN, np.int64)
    row_of[source_row] = np.arange(len(source_row))
    event, code = np.concatenate(cells[0]), np.concatenate(cells[1])
    inside = event < len(row_of)
    event, code = event[inside], code[inside]
    keep = useful[code] & (row_of[event] != UNKNOWN) if len(decoded) else np.zeros(len(code), bool)
    at, first = np.unique(row_of[event[keep]], return_index=True)
    code = code[keep][first]
    empty = np.zeros(len(at), np.int32)
    return Payloads(
        kernel=np.full(len(at), UNKNOWN),
        range=at,
        operation=ranges.name[at],
        communicator=communicators[code],
        group_name=empty,
        group_description=empty,
        dtype=empty,
        **dict.fromkeys(
            ("sequence", "sent_bytes", "received_bytes", "most_sent_bytes"), np.full(len(at), UNKNOWN)
        ),
        **{key: values[code] for key, values in facts.items()},
    )


def _is_nccl(fields: Mapping[str, Any]) -> bool:
    return _integer(fields.get(COMMUNICATOR), 64, -1) >= 0 or FIELDS["bytes"] in fields


def _integer(value: object, bits: int, otherwise: int) -> int:
    """A non-negative integer of at most so many bits: the file is not to be trusted."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**bits:
        return value
    return otherwise


def _decode(text: str) -> Mapping[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _unpack(cell: bytes, schemas: Mapping[tuple[int, int], list[tuple[str, int, str]]]) -> Mapping[str, Any]:
    """Fields of a payload kept as a blob (`nsys export --include-blobs=true`)."""
    raw = unhex(cell)
    if len(raw) < HEADER.size:
        return {}
    domain, _, schema, _, payload_bytes, _ = HEADER.unpack_from(raw)
    body = raw[HEADER.size : HEADER.size + min(payload_bytes, MAX_PAYLOAD_BYTES)]
    return {
        name: struct.unpack_from(layout, body, offset)[0]
        for name, offset, layout in schemas.get((domain, schema), ())
        if 0 <= offset <= len(body) - struct.calcsize(layout)
    }


def unhex(cell: bytes) -> bytes:
    """The column is declared TEXT: some exports hold raw bytes in it, others hexadecimal text.

    A raw payload begins with a small little-endian domain id, so zero bytes tell the two apart.
    """
    try:
        return bytes.fromhex(cell.decode("ascii"))
    except (UnicodeDecodeError, ValueError):
        return cell


def read_schemas(source: NsysSource) -> dict[tuple[int, int], list[tuple[str, int, str]]]:
    """Fields by (domain, schema): name, offset in the payload, struct layout."""
    table = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
    if not {"domainId", "schemaId", "type", "name", "offset"} <= source.columns(table):
        return {}
    numbers = read_ints(source, table, {"domainId": NULL, "schemaId": NULL, "type": NULL, "offset": 0})
    names = source.read(table, ["name"])["name"].to_list()
    schemas: dict[tuple[int, int], list[tuple[str, int, str]]] = {}
    for i, name in enumerate(names):
        layout = _SCALARS.get(int(numbers["type"][i]))
        if name and layout:
            key = (int(numbers["domainId"][i]), int(numbers["schemaId"][i]))
            schemas.setdefault(key, []).append((str(name), int(numbers["offset"][i]), layout))
    return schemas
