"""NCCL's NVTX payloads as Nsight exports them: JSON text, or bytes with tables that describe them."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass

from perfdoc.simulator.events import NcclPayload

INT32, UINT64, SIZE = 5, 18, 22
"""NVTX payload entry types."""
_STATIC_SCHEMAS = 1 << 24
REDUCTION_ENUM = _STATIC_SCHEMAS + 20
REDUCTIONS = ("Sum", "Product", "Max", "Min", "Avg")

# Field of NcclPayload -> (name in the export, entry type, struct code, bytes).
_FIELDS = {
    "communicator": ("NCCL communicator ID", UINT64, "Q", 8),
    "bytes": ("Message size [bytes]", SIZE, "Q", 8),
    "ranks": ("No. of ranks", INT32, "i", 4),
    "rank": ("Rank", INT32, "i", 4),
    "device": ("CUDA device", INT32, "i", 4),
    "reduction": ("Reduction operation", REDUCTION_ENUM, "i", 4),
    "root": ("Root", INT32, "i", 4),
    "peer": ("Peer rank", INT32, "i", 4),
}

# NCCL numbers its schemas by call; calls that are not listed share the numbers after the last one.
_CALLS = {
    "ncclCommInitRank": 0,
    "ncclCommDestroy": 2,
    "ncclAllGather": 4,
    "ncclAllReduce": 5,
    "ncclBroadcast": 6,
    "ncclReduceScatter": 7,
    "ncclReduce": 8,
    "ncclSend": 9,
    "ncclRecv": 10,
    "ncclCommInitRankConfig": 11,
    "ncclCommFinalize": 14,
}


def payload_json(payload: NcclPayload) -> str:
    """The text of NVTX_EVENTS.jsonText."""
    fields = {name: getattr(payload, key) for key, (name, *_) in _FIELDS.items()}
    return json.dumps(
        {name: value for name, value in fields.items() if value is not None}, separators=(",", ":")
    )


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The layout of one call's payload."""

    schema_id: int
    fields: tuple[str, ...]

    def entries(self) -> list[tuple[int, str, int, int]]:
        """(index, name, type, byte offset) of each field."""
        rows, offset = [], 0
        for index, key in enumerate(self.fields):
            name, kind, _, width = _FIELDS[key]
            rows.append((index, name, kind, offset))
            offset += width
        return rows

    @property
    def payload_bytes(self) -> int:
        """Size of the payload, padded to eight bytes as in C."""
        return -(-sum(_FIELDS[key][3] for key in self.fields) // 8) * 8


class Schemas:
    """Gives every call and set of fields its schema."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, tuple[str, ...]], Schema] = {}
        self._used: set[int] = set()

    def of(self, call: str, payload: NcclPayload) -> Schema:
        """The schema for a call's payload, made on first use."""
        fields = tuple(key for key in _FIELDS if getattr(payload, key) is not None)
        known = self._known.get((call, fields))
        if known is None:
            schema_id = _STATIC_SCHEMAS + _CALLS.get(call, 32)
            while schema_id in self._used or schema_id == REDUCTION_ENUM:
                schema_id += 32
            self._used.add(schema_id)
            known = self._known[call, fields] = Schema(schema_id=schema_id, fields=fields)
        return known

    def all(self) -> list[Schema]:
        """Every schema made so far."""
        return list(self._known.values())


def payload_bytes(schema: Schema, domain_id: int, payload: NcclPayload) -> bytes:
    """The bytes of NVTX_EVENTS.binaryData.

    A little-endian header of four 64-bit numbers (domain, schema, payload size, and a fourth that
    public readers describe differently, as total size or as offset; written as the offset, 32), then
    the payload in C layout. ValueError for a value that its field cannot hold.
    """
    codes, values = "", []
    for key in schema.fields:
        value = getattr(payload, key)
        if key == "reduction":
            if value not in REDUCTIONS:
                raise ValueError(f"payload: reduction {value!r} is none of {', '.join(REDUCTIONS)}")
            value = REDUCTIONS.index(value)
        codes += _FIELDS[key][2]
        values.append(value)
    try:
        body = struct.pack("<" + codes, *values).ljust(schema.payload_bytes, b"\0")
    except struct.error as error:
        raise ValueError(f"payload: {payload} does not fit its fields ({error})") from None
    return struct.pack("<4Q", domain_id, schema.schema_id, len(body), 32) + body
