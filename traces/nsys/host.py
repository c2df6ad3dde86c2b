"""What the host did: CUDA calls, NVTX ranges, synchronisations and event records of an Nsight export."""

from __future__ import annotations

import numpy as np

from perfdoc.records import dataclass
from perfdoc.traces.model import UNKNOWN, ApiCalls, EventRecords, RangeKind, Ranges, SyncKind, Syncs
from perfdoc.traces.nsys.columns import Column, nulls
from perfdoc.traces.nsys.ids import Ids, process_of
from perfdoc.traces.nsys.source import NO_TIME, NULL, NsysSource, ints_of, read_ints
from perfdoc.traces.table import I32, I64, distinct
from perfdoc.traces.validate import known_correlations, times_fit

NVTX = "NVTX_EVENTS"
NVTX_COLUMNS = ("start", "end", "eventType", "text", "textId", "globalTid", "domainId")
API = "CUPTI_ACTIVITY_KIND_RUNTIME"

_MARK, _PUSH_POP, _START_END, _DOMAIN = 34, 59, 60, 75
"""ENUM_NSYS_EVENT_TYPE; the numbers are the same in every generation seen (2022.4 to 2026.3)."""
_TEXT_MARK, _TEXT_PUSH_POP, _TEXT_START_END = 65, 70, 71
"""Ranges imported from NVTXT files."""
_KINDS = {
    _MARK: RangeKind.MARK,
    _TEXT_MARK: RangeKind.MARK,
    _PUSH_POP: RangeKind.PUSH_POP,
    _TEXT_PUSH_POP: RangeKind.PUSH_POP,
    _START_END: RangeKind.START_END,
    _TEXT_START_END: RangeKind.START_END,
}
_NO_EVENT = 4294967295
"""CUPTI's invalid id in 32-bit event and stream fields."""
API_COLUMNS = {"start": 0, "end": NO_TIME, "globalTid": NULL, "correlationId": NULL, "nameId": NULL}
"""What is read of the table of calls, and what stands for NULL in it."""


def read_api_calls(source: NsysSource, ids: Ids) -> ApiCalls:
    """Runtime and driver calls (both are in the runtime table, told apart by their event class).

    A call whose end is unknown is taken for an instant.
    """
    c = read_ints(source, API, API_COLUMNS)
    endless = c["end"] == NO_TIME
    return ApiCalls(
        start_ns=c["start"],
        end_ns=np.where(endless, c["start"], c["end"]) if endless.any() else c["end"],
        thread=ids.threads_of(c["globalTid"]),
        correlation=known_correlations(c["correlationId"]),
        name=ids.names_of(c["nameId"]),
    )


def read_syncs(source: NsysSource) -> Syncs:
    """Synchronisation rows.

    Their deviceId is not used: real exports give 0 for every device. Nor is syncType, whose codes changed
    (2024.6 and 2025.1 count from 0 for a device, later ones from 1 for an event) while the file's own
    ENUM table did not: which of stream and event are set tells the kind in every generation seen.
    """
    columns = {
        "start": 0,
        "end": NO_TIME,
        "globalPid": NULL,
        "streamId": NULL,
        "correlationId": NULL,
        "eventId": NULL,
        "eventSyncId": NULL,
    }
    c = read_ints(source, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", columns)
    stream, event = _no_event(c["streamId"]), _no_event(c["eventId"])
    on_stream, on_event = stream != UNKNOWN, event != UNKNOWN
    kind = np.select(
        [on_stream & on_event, on_event, on_stream],
        [SyncKind.STREAM_WAIT_EVENT, SyncKind.EVENT_SYNCHRONIZE, SyncKind.STREAM_SYNCHRONIZE],
        SyncKind.DEVICE_SYNCHRONIZE,
    ).astype(np.int8)
    unknown = np.full(len(c["start"]), UNKNOWN, np.int64)
    return Syncs(
        start_ns=c["start"],
        end_ns=np.where(c["end"] == NO_TIME, c["start"], c["end"]),
        process=_processes(c["globalPid"]),
        stream=stream,
        correlation=known_correlations(c["correlationId"]),
        kind=kind,
        event=event,
        event_sync=_no_event(c["eventSyncId"], zero_is_none=True),
        source_stream=unknown,
        source_correlation=unknown,
    )


def read_event_records(source: NsysSource, ids: Ids) -> EventRecords:
    """Event records, where the capture traced them (`--cuda-event-trace`)."""
    columns = {
        "deviceId": 0,
        "globalPid": NULL,
        "streamId": NULL,
        "correlationId": NULL,
        "eventId": NULL,
        "eventSyncId": NULL,
        "timestamp": 0,
    }
    c = read_ints(source, "CUPTI_ACTIVITY_KIND_CUDA_EVENT", columns)
    return EventRecords(
        process=_processes(c["globalPid"]),
        device=ids.devices_of(c["globalPid"], c["deviceId"]),
        stream=_no_event(c["streamId"]),
        correlation=known_correlations(c["correlationId"]),
        event=_no_event(c["eventId"]),
        event_sync=_no_event(c["eventSyncId"], zero_is_none=True),
        time_ns=np.where(
            (c["timestamp"] > 0) & times_fit(c["timestamp"], c["timestamp"]), c["timestamp"], UNKNOWN
        ),
    )


@dataclass(frozen=True, kw_only=True)
class NvtxRows:
    """Ranges, and for each of them its row in NVTX_EVENTS (payloads are looked up by it)."""

    ranges: Ranges
    source_row: I64
    open_ranges: int
    """Ranges without an end; they were closed at the end of the capture."""
    bad_rows: int
    """Rows that end before they start; left out."""
    impossible_times: int
    """Rows with times that cannot be true; left out."""


def read_ranges(source: NsysSource, ids: Ids, capture_end_ns: int) -> NvtxRows:
    """NVTX ranges and marks of every domain."""
    present = [c for c in NVTX_COLUMNS if c in source.columns(NVTX)]
    table = source.read(NVTX, present) if "start" in present else {"start": nulls(0)}
    defaults = dict.fromkeys(("start", "end", "eventType", "domainId"), 0)
    c = ints_of(source, NVTX, table, {**defaults, "globalTid": NULL, "textId": NULL})
    start, event, tid, domain = c["start"], c["eventType"], c["globalTid"], c["domainId"]
    is_open = ~table["end"].valid if "end" in table else np.ones(len(start), bool)
    name = _names(ids, table.get("text"), c["textId"])

    kind = np.full(len(start), UNKNOWN, np.int8)
    for code, value in _KINDS.items():
        kind[event == code] = value
    end = np.where(is_open, np.maximum(start, capture_end_ns), c["end"])
    end = np.where(kind == RangeKind.MARK, start, end)
    beyond = (kind != UNKNOWN) & ~times_fit(start, end)
    bad = (kind != UNKNOWN) & (end < start) & ~beyond
    keep = np.flatnonzero((kind != UNKNOWN) & ~bad & ~beyond)
    domain_names = _domain_names(event, tid, domain, name)
    return NvtxRows(
        ranges=Ranges(
            start_ns=start[keep],
            end_ns=end[keep],
            thread=ids.threads_of(tid[keep]),
            name=name[keep],
            domain=_look_up(domain_names, process_of(tid[keep]), domain[keep]),
            kind=kind[keep],
            never_closed=(is_open & (kind != RangeKind.MARK))[keep],
        ),
        source_row=keep,
        open_ranges=int(np.count_nonzero((is_open & (kind != RangeKind.MARK))[keep])),
        bad_rows=int(np.count_nonzero(bad)),
        impossible_times=int(np.count_nonzero(beyond)),
    )


def _names(ids: Ids, text: Column | None, text_ids: I64) -> I32:
    """Names given inline (PyTorch's range_push) or interned (registered strings)."""
    name = ids.names_of(text_ids)
    if text is None or not text.valid.any():
        return name
    texts, code = text.distinct_texts()
    index = np.array(ids.strings.intern_each(texts), np.int32)
    return np.where(code >= 0, index[np.maximum(code, 0)], name)


def _domain_names(event: I64, tid: I64, domain: I64, name: I32) -> dict[tuple[int, int], int]:
    """Names of domains by (process, domain id): ids are only unique inside a process."""
    rows = np.flatnonzero(event == _DOMAIN)
    keys = zip(process_of(tid[rows]).tolist(), domain[rows].tolist(), strict=True)
    return dict(zip(keys, name[rows].tolist(), strict=True))


def _look_up(names: dict[tuple[int, int], int], process: I64, domain: I64) -> I32:
    """The domain name of every row; each pair that occurs is looked up once."""
    if not len(process):
        return np.empty(0, np.int32)
    processes, process_code = distinct(process)
    domains, domain_code = distinct(domain)
    pairs, code = distinct(process_code * len(domains) + domain_code)
    keys = zip(processes[pairs // len(domains)].tolist(), domains[pairs % len(domains)].tolist(), strict=True)
    return np.array([names.get(key, 0) for key in keys], np.int32)[code]


def _processes(global_pid: I64) -> I64:
    return np.where(global_pid == NULL, UNKNOWN, process_of(global_pid))


def _no_event(values: I64, *, zero_is_none: bool = False) -> I64:
    none = (values == _NO_EVENT) | (values < 0)
    if zero_is_none:
        none |= values == 0
    return np.where(none, UNKNOWN, values)
