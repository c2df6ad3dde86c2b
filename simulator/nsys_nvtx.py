"""NVTX rows of an Nsight export: ranges, marks, domains and NCCL's payloads."""

from __future__ import annotations

from typing import Any

from perfdoc.simulator.events import RangeKind
from perfdoc.simulator.nsys_common import ExportOptions, Row, Rows, Strings, global_tid
from perfdoc.simulator.nsys_enums import NVTX_DOMAIN, NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END
from perfdoc.simulator.nsys_payload import REDUCTION_ENUM, REDUCTIONS, Schemas, payload_bytes, payload_json
from perfdoc.simulator.nsys_schemas import tables
from perfdoc.simulator.timeline import Timeline

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
