"""From the collected rows of a PyTorch trace to the Trace's tables, devices resolved."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.traces.kineto_columns import Rows
from perfdoc.traces.kineto_devices import Launches, processes
from perfdoc.traces.kineto_rows import EventRows
from perfdoc.traces.model import UNKNOWN, Copies, EventRecords, Kernels, Ranges, Syncs
from perfdoc.traces.table import I64
from perfdoc.traces.validate import check_devices


@dataclass(frozen=True, kw_only=True)
class DeviceTables:
    """The tables whose rows belong to a device or its process."""

    pairs: tuple[tuple[int, int], ...]
    """(process, ordinal) of each device, in the order of the `device` columns."""
    kernels: Kernels
    copies: Copies
    syncs: Syncs
    event_records: EventRecords


def device_tables(rows: EventRows, calls: Launches) -> DeviceTables:
    """Kernels, copies, synchronisations and event records with process and device filled in.

    A device is a (process, ordinal) that kernels or copies ran on. Raises TraceError where there are more
    than a node can have.
    """
    kernels, kernel_process = _with_process(rows.kernels, calls)
    copies, copy_process = _with_process(rows.copies, calls)
    syncs, sync_process = _with_process(rows.syncs, calls)
    records, record_process = _with_process(rows.event_records, calls)
    pairs = sorted(
        _pairs(kernel_process, kernels["ordinal"]) | _pairs(copy_process, copies["ordinal"]),
    )
    check_devices(rows.path, len(pairs))
    index = {pair: position for position, pair in enumerate(pairs)}
    del syncs["ordinal"]  # not reliable for host-side waits; the model keeps the process only
    return DeviceTables(
        pairs=tuple(pairs),
        kernels=Kernels(device=_devices(index, kernel_process, kernels.pop("ordinal")), **kernels),  # type: ignore[arg-type]
        copies=Copies(device=_devices(index, copy_process, copies.pop("ordinal")), **copies),  # type: ignore[arg-type]
        syncs=Syncs(process=sync_process, event_sync=_unknown(sync_process), **syncs),  # type: ignore[arg-type]
        event_records=EventRecords(
            process=record_process,
            device=_devices(index, record_process, records.pop("ordinal")),  # type: ignore[arg-type]
            event_sync=_unknown(record_process),
            **records,
        ),
    )


def ranges(rows: EventRows) -> Ranges:
    """Annotations and marks; PyTorch has no domains."""
    columns = rows.ranges.columns()
    return Ranges(
        domain=np.zeros(len(rows.ranges), dtype=np.int32),
        never_closed=np.zeros(len(rows.ranges), bool),
        **columns,  # type: ignore[arg-type]
    )


def first_ns(rows: EventRows) -> int | None:
    """The earliest start of any row; None without rows."""
    tables = (rows.kernels, rows.copies, rows.api_calls, rows.syncs, rows.ranges, rows.operators)
    starts = [int(table.columns()["start_ns"].min()) for table in tables if len(table)]
    return min(starts, default=None)


def _with_process(table: Rows, calls: Launches) -> tuple[dict[str, I64], I64]:
    columns = table.columns()
    return columns, processes(calls, columns["ordinal"], columns["correlation"])


def _pairs(process: I64, ordinal: I64) -> set[tuple[int, int]]:
    unique = np.unique(np.stack((process, ordinal), axis=1), axis=0) if len(process) else ()
    return {(int(pid), int(gpu)) for pid, gpu in unique}


def _devices(index: dict[tuple[int, int], int], process: I64, ordinal: I64) -> I64:
    """The device of every row; -1 for a (process, ordinal) that nothing ran on."""
    device = _unknown(process)
    for (pid, gpu), position in index.items():
        device[(process == pid) & (ordinal == gpu)] = position
    return device


def _unknown(like: I64) -> I64:
    return np.full(len(like), UNKNOWN, dtype=np.int64)
