"""The SQLite file that `nsys export` makes: the tables of Nsight Systems 2026.3, filled by whole columns."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from perfdoc.profiling.whole_file import whole_file
from perfdoc.records import dataclass

PRODUCT_VERSION, SCHEMA_VERSION = "2026.3.1.157", "3.27.0"
NO_ID = 2**32 - 1
"""What CUPTI writes for "no stream" and "no event"."""
MACHINE = 1 << 48
"""Nsight packs hardware (8 bits), virtual machine (8), pid (24) and tid (24) into one number."""
DEFAULT_STREAM = 7
"""The id that CUPTI gives to a context's null stream."""
NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, NVTX_DOMAIN = 34, 59, 60, 75
CLASS_RUNTIME, CLASS_DRIVER, CLASS_GRAPH_NODE = 0, 1, 77
STREAM_WAITS_FOR_EVENT, DEVICE_WAIT = 2, 4
"""CUPTI's types of a synchronisation."""

_Times = TypeVar("_Times", int, NDArray[np.int64])


@dataclass(frozen=True, kw_only=True)
class Clock:
    """How the clock of one rank's file runs against true time (ns)."""

    session_start_ns: int = 0
    """True time at which the file's time 0 lies."""
    utc_error_ns: int = 0
    """How far the UTC time that the file gives for its time 0 is ahead of the truth."""
    drift_ppb: int = 0
    """Nanoseconds that the clock gains in a true second."""

    def local(self, true_ns: _Times) -> _Times:
        """Time in the file, rounded down; never runs backwards. Of one time or of an array."""
        elapsed = true_ns - self.session_start_ns
        assert np.min(elapsed, initial=0) >= 0, f"{true_ns} lies before the session"
        return elapsed + elapsed * self.drift_ppb // 10**9


Columns: TypeAlias = Mapping[str, NDArray[Any] | Sequence[Any] | int]
"""Columns of equal length; a value that is no sequence or array (an int, a string) fills its column."""

_ON_DEVICE = "start! end! deviceId! contextId! greenContextId streamId! correlationId globalPid "
_NAME_VALUE = "name:t! value:t"
_COLUMNS = {
    "StringIds": "id* value:t!",
    "CUPTI_ACTIVITY_KIND_KERNEL": _ON_DEVICE
    + "demangledName! shortName! mangledName launchType cacheConfig registersPerThread! gridX! gridY! gridZ! "
    "blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! localMemoryPerThread! "
    "localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig qmdBulkReleaseDone "
    "qmdPreexitDone qmdLastCtaDone graphId clusterX clusterY clusterZ clusterSchedulingPolicy "
    "maxPotentialClusterSize maxActiveClusters sharedMemoryRequestedPercentage tensorSizeMinusOneElements:t!",
    "CUPTI_ACTIVITY_KIND_MEMCPY": _ON_DEVICE
    + "bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId dstDeviceId dstContextId "
    "migrationCause graphNodeId virtualAddress copyCount",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": _ON_DEVICE + "deprecatedSyncType syncType! eventId! eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp deviceId! contextId! greenContextId streamId! correlationId "
    "globalPid eventId! eventSyncId",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! "
    "callchainId",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text:t globalTid endGlobalTid textId "
    "domainId uint64Value int64Value doubleValue:d uint32Value int32Value floatValue:d jsonTextId jsonText:t "
    "binaryData:t",
    "TARGET_INFO_GPU": "vmId! id! name:t busLocation:t isDiscrete l2CacheSize totalMemory memoryBandwidth "
    "clockRate smCount pwGpuId uuid:t luid chipName:t cuDevice ctxswDevPath:t ctrlDevPath:t revision "
    "nodeMask constantMemory maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin "
    "maxShmemPerSm maxRegistersPerSm threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm "
    "maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ "
    "computeMajor computeMinor smMajor smMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid! uuid:t numMultiprocessors",
    "TARGET_INFO_CUDA_CONTEXT_INFO": "nullStreamId! hwId! vmId! processId! deviceId! contextId! "
    "parentContextId isGreenContext numMultiprocessors numTpcs tpcMask:t workqueueResourceId "
    "workqueueConcurrencyLimit workqueueSharingScope",
    "TARGET_INFO_CUDA_STREAM": "streamId! hwId! vmId! processId! contextId! priority! flag!",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:t localTime:t systemClockNs",
    "PROCESSES": "globalPid pid name:t",
    "ThreadNames": "nameId! priority globalTid",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "META_DATA_CAPTURE": _NAME_VALUE,
    "META_DATA_EXPORT": _NAME_VALUE,
}
"""The columns of a table: `name[:t text or :d real][! not null or * primary key]`."""


def column_sql(name: str, kind: str, mark: str) -> str:
    """A column's definition in SQLite, which knows only INTEGER, TEXT and REAL."""
    sql = f'"{name}" {({"t": "TEXT", "d": "REAL"}).get(kind, "INTEGER")}'
    return sql + (" NOT NULL" if mark else "") + (" PRIMARY KEY" if mark == "*" else "")


_COLUMN = re.compile(r"(\w+)(?::(\w))?([*!]?)")
TABLES: Mapping[str, Sequence[str]] = {
    table: [column_sql(*match.groups(default="")) for match in _COLUMN.finditer(columns)]
    for table, columns in _COLUMNS.items()
}
"""The tables that are written here: their columns' definitions."""


def global_pid(pid: int) -> int:
    """Nsight's serial form of a process id."""
    return MACHINE | pid << 24


def global_tid(pid: int, tid: int) -> int:
    """Nsight's serial form of a thread id."""
    return global_pid(pid) | tid


class Strings:
    """StringIds under construction."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        """The id of a string, the same for equal strings."""
        return self._ids.setdefault(text, len(self._ids))

    def columns(self) -> Columns:
        """The table's."""
        return {"id": list(self._ids.values()), "value": list(self._ids)}


def export_meta(product_version: str, schema_version: str) -> Columns:
    """META_DATA_EXPORT; schema_version: empty where it is not known."""
    meta = {
        "EXPORT_PRODUCT_NAME": "NVIDIA Nsight Systems",
        "EXPORT_PRODUCT_VERSION": product_version,
        "EXPORT_PRODUCT_DATE": ".".join(product_version.split(".")[:2]),
    }
    if schema_version:
        meta["EXPORT_SCHEMA_VERSION"] = schema_version
        for part, number in zip(("MAJOR", "MINOR", "MICRO"), schema_version.split("."), strict=True):
            meta[f"EXPORT_SCHEMA_VERSION_{part}"] = number
    meta |= {"EXPORT_PLATFORM": "linux-desktop", "EXPORT_ARCH": "x64"}
    return {"name": list(meta), "value": list(meta.values())}


_BATCH = 65536
"""Rows turned into Python tuples at a time: bounds memory when columns are arrays."""


def write_export(
    path: Path, tables: Mapping[str, Sequence[str]], rows: Mapping[str, Columns], *, force: bool = False
) -> Path:
    """Make these tables (definitions of columns) and write their rows; a table that has none stays empty.

    CaptureError where the file is there, unless `force`. A column that is not named is NULL.
    """
    with whole_file(Path(path), replace=force) as part:
        connection = sqlite3.connect(part)
        # Nobody sees the file before it is whole, so no table needs to reach the disk before the next one.
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA journal_mode = OFF")
        try:
            create_tables(connection, tables)
            for table, columns in rows.items():
                write_rows(connection, table, columns)
            connection.commit()
        finally:
            connection.close()
    return Path(path)


def create_tables(connection: sqlite3.Connection, tables: Mapping[str, Sequence[str]]) -> None:
    """Make tables, each by the definitions of its columns."""
    for name, columns in tables.items():
        connection.execute(f'CREATE TABLE "{name}" ({", ".join(columns)})')


def write_rows(connection: sqlite3.Connection, table: str, columns: Columns) -> int:
    """Append rows; returns how many. Table and column names come from code, not from data."""
    wide = {
        n: v for n, v in columns.items() if isinstance(v, Sequence | np.ndarray) and not isinstance(v, str)
    }
    lengths = {len(values) for values in wide.values()}
    if len(lengths) != 1:
        raise ValueError(f"write_rows: columns of {table} have lengths {sorted(lengths)}")
    names = ", ".join(f'"{name}"' for name in columns)
    statement = f'INSERT INTO "{table}" ({names}) VALUES ({", ".join("?" * len(columns))})'
    (length,) = lengths
    for start in range(0, length, _BATCH):
        stop = min(start + _BATCH, length)
        parts = [
            _plain(wide[name][start:stop]) if name in wide else [value] * (stop - start)
            for name, value in columns.items()
        ]
        connection.executemany(statement, zip(*parts, strict=True))
    return length


def _plain(values: Any) -> Any:
    return values.tolist() if isinstance(values, np.ndarray) else values
