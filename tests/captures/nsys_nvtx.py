"""NVTX rows of an Nsight export: ranges, marks, domains, and NCCL's payloads as JSON or as bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from perfdoc.simulator.captures.nsys import (
    NVTX_DOMAIN,
    NVTX_MARK,
    NVTX_PUSH_POP,
    NVTX_START_END,
    Strings,
    global_tid,
)
from tests.captures.events import NcclPayload, RangeKind
from tests.captures.nsys_schemas import ExportOptions, tables
from tests.captures.timeline import Timeline

Row: TypeAlias = dict[str, Any]
"""One row of an export, by column; a column that is missing is NULL."""
Rows: TypeAlias = Sequence[Row]
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


_EVENT_TYPES = {
    RangeKind.PUSH_POP: NVTX_PUSH_POP,
    RangeKind.START_END: NVTX_START_END,
    RangeKind.MARK: NVTX_MARK,
}


def payload_form(generation: str, options: ExportOptions) -> str:
    """json, binary or none. ValueError where the generation has no place for the form asked for."""
    schema = tables(generation)
    possible = {
        "json": any(c.name == "jsonText" for c in schema["NVTX_EVENTS"]),
        "binary": "NVTX_PAYLOAD_SCHEMAS" in schema,
        "none": True,
    }
    if options.payloads == "auto":
        # Exports up to 2024.2 have the jsonText column and yet lose NCCL's payload.
        return "json" if possible["binary"] else "none"
    if not possible[options.payloads]:
        raise ValueError(f"generation {generation} cannot hold payloads as {options.payloads}")
    return options.payloads


def nvtx_rows(
    timeline: Timeline, generation: str, options: ExportOptions, strings: Strings
) -> dict[str, Rows]:
    """NVTX_EVENTS and, with binary payloads, the NVTX_PAYLOAD tables."""
    form = payload_form(generation, options)
    domains: dict[tuple[int, str], int] = {}
    schemas: dict[tuple[int, int], Schemas] = {}
    rows: list[Row] = []
    for number, r in enumerate(timeline.ranges, start=1):
        known = domains.get((r.pid, r.domain))
        if known is None:
            # Domain ids count up per process, so one id may stand for different domains.
            known = 0 if not r.domain else sum(pid == r.pid and name != "" for pid, name in domains) + 1
            domains[r.pid, r.domain] = known
            if known and options.domain_rows:
                rows.append(
                    _row(
                        start=r.start_ns,
                        eventType=NVTX_DOMAIN,
                        text=r.domain,
                        globalTid=global_tid(r.pid, r.tid),
                        domainId=known,
                    )
                )
        interned = options.text == "interned" or (options.text == "mixed" and r.domain != "")
        json_text = binary = None
        if r.payload is not None and form == "json":
            json_text = payload_json(r.payload)
        elif r.payload is not None and form == "binary":
            of_domain = schemas.setdefault((r.pid, known), Schemas())
            binary = payload_bytes(of_domain.of(r.name, r.payload), known, r.payload)
        rows.append(
            _row(
                start=r.start_ns,
                end=None if r.kind is RangeKind.MARK else r.end_ns,
                eventType=_EVENT_TYPES[r.kind],
                rangeId=number if r.kind is RangeKind.START_END else None,
                text=None if interned else r.name,
                textId=strings(r.name) if interned else None,
                globalTid=global_tid(r.pid, r.tid),
                endGlobalTid=None if r.end_tid is None else global_tid(r.pid, r.end_tid),
                domainId=known,
                jsonText=json_text,
                binaryData=binary,
            )
        )
    return {"NVTX_EVENTS": rows, **_schema_rows(schemas)}


def _row(**values: Any) -> Row:
    names = ("end", "rangeId", "text", "textId", "endGlobalTid", "jsonText", "binaryData")
    return dict.fromkeys(names) | values


def _schema_rows(schemas: dict[tuple[int, int], Schemas]) -> dict[str, Rows]:
    """Every process repeats its schemas, as real exports do."""
    heads, entries, enums, values = [], [], [], []
    for (_, domain), known in schemas.items():
        key: dict[str, Any] = {"domainId": domain}
        for schema in known.all():
            head = {"schemaId": schema.schema_id, "type": 1, "numEntries": len(schema.fields)}
            heads.append(key | head | {"payloadSize": schema.payload_bytes})
            for index, name, kind, offset in schema.entries():
                entry = {"idx": index, "type": kind, "name": name, "offset": offset or None}
                entries.append(key | {"schemaId": schema.schema_id} | entry)
        if any("reduction" in schema.fields for schema in known.all()):
            enum = key | {"schemaId": REDUCTION_ENUM}
            enums.append(enum | {"numEntries": len(REDUCTIONS), "size": 4})
            # The first value of an enum is NULL in real exports, as the first offset of a schema is.
            values += [
                enum | {"idx": i, "name": name, "value": i or None} for i, name in enumerate(REDUCTIONS)
            ]
    return {
        "NVTX_PAYLOAD_SCHEMAS": heads,
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": entries,
        "NVTX_PAYLOAD_ENUMS": enums,
        "NVTX_PAYLOAD_ENUM_ENTRIES": values,
    }
