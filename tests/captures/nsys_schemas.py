"""Columns of the Nsight Systems export tables that the writers fill, for each generation of the schema.

Where they come from: 2022.4, 2023.4 and 2024.2 from full exports of those versions; 2024.6, 2025.1,
2026.2 and 2026.3 from real captures, of which an export writes only the tables that have rows. A
column or table is dated by the first version in which it was *seen*, so it may be a little older:
eventSyncId, for one, is absent from a 2024.6.2 export and present in a 2025.1.3 one.
"2021" is inferred, not seen: the tables of 2022.4 without kernel mangled names, NVTX jsonText and
PROCESSES.

The text of a column is `name[:type][* or !][@since][<until]`: `*` is the primary key, `!` not null;
`until` is the first version without it. Types, as Parquet exports declare them (SQLite has only
INTEGER, TEXT and REAL): none int64, u uint64, i int32, b bool, d double, f float, t text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Literal

from perfdoc.simulator.captures.nsys import column_sql

Version = tuple[int, ...]


def _version(text: str) -> Version:
    return tuple(int(part) for part in text.split("."))


@dataclass(frozen=True, kw_only=True)
class Generation:
    """One version of Nsight Systems: what its exports call themselves."""

    name: str
    product: str
    """EXPORT_PRODUCT_VERSION."""
    schema: str
    """EXPORT_SCHEMA_VERSION; empty where it is not known."""

    @property
    def version(self) -> Version:
        """Comparable form of the name; "2021" is (2021,)."""
        return _version(self.name)


GENERATIONS = {
    g.name: g
    for g in (
        Generation(name="2021", product="2021.5.2.53", schema=""),
        Generation(name="2022.4", product="2022.4.2.50", schema=""),
        Generation(name="2023.4", product="2023.4.4.54", schema=""),
        Generation(name="2024.2", product="2024.2.3.38", schema="3.11.1"),
        Generation(name="2024.6", product="2024.6.2.225", schema="3.16.1"),
        Generation(name="2025.1", product="2025.1.3.140", schema="3.17.2"),
        Generation(name="2026.2", product="2026.2.1.210", schema="3.25.0"),
        Generation(name="2026.3", product="2026.3.1.157", schema="3.27.0"),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of one generation."""

    name: str
    type: str
    """Letter of the module docstring; empty int64."""
    not_null: bool
    primary_key: bool

    @property
    def sql(self) -> str:
        """The column's definition in SQLite."""
        mark = "*" if self.primary_key else "!" if self.not_null else ""
        return column_sql(self.name, {"f": "d"}.get(self.type, self.type), mark)


_ON_DEVICE = (
    "start! end! deviceId! contextId:u! greenContextId:u@2023.4 streamId:u! correlationId globalPid:u "
)
_ENUM = "id* name:t label:t"
_NAME_VALUE = "name:t! value:t"

# Table -> (first version, first version without it or "", columns).
_TABLES: dict[str, tuple[str, str, str]] = {
    "StringIds": ("2021", "", "id:i* value:t!"),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "2021",
        "",
        _ON_DEVICE + "demangledName:u! shortName:u! mangledName:u@2022.4 launchType cacheConfig "
        "registersPerThread! gridX:i! gridY:i! gridZ:i! blockX:i! blockY:i! blockZ:i! "
        "staticSharedMemory:i! dynamicSharedMemory:i! localMemoryPerThread:i! "
        "localMemoryTotal:i! gridId! sharedMemoryExecuted graphNodeId:u "
        "sharedMemoryLimitConfig qmdBulkReleaseDone@2026.2 qmdPreexitDone@2026.2 "
        "qmdLastCtaDone@2026.2 graphId@2026.2 clusterX@2026.2 clusterY@2026.2 clusterZ@2026.2 "
        "clusterSchedulingPolicy@2026.2 maxPotentialClusterSize@2026.2 "
        "maxActiveClusters@2026.2 sharedMemoryRequestedPercentage@2026.2 "
        "tensorSizeMinusOneElements:t!@2026.2",
    ),
    "CUPTI_ACTIVITY_KIND_MEMCPY": (
        "2021",
        "",
        _ON_DEVICE + "bytes:u! copyKind:u! deprecatedSrcId srcKind dstKind srcDeviceId srcContextId "
        "dstDeviceId dstContextId migrationCause graphNodeId:u virtualAddress:u "
        "copyCount@2025.1",
    ),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("2021", "", _ON_DEVICE + "value! bytes:u! graphNodeId:u memKind"),
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
        "2021",
        "",
        _ON_DEVICE + "deprecatedSyncType@2025.1 syncType! eventId! eventSyncId@2025.1",
    ),
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
        "2021",
        "",
        "timestamp@2026.2 deviceId! contextId:u! greenContextId:u@2023.4 streamId:u! "
        "correlationId globalPid:u eventId! eventSyncId@2025.1",
    ),
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": ("2024.2", "", _ON_DEVICE + "graphId! graphExecId!"),
    "CUDA_GRAPH_EVENTS": (
        "2021",
        "",
        "start! end! eventClass! globalTid:u nameId:u! graphNodeId:u!<2024.2 "
        "originalGraphNodeId:u<2024.2 graphId@2024.2 originalGraphId@2024.2 "
        "graphExecId@2024.2",
    ),
    "CUDA_GRAPH_NODE_EVENTS": (
        "2024.2",
        "",
        "start! end! eventClass! globalTid:u nameId:u! graphNodeId:u! originalGraphNodeId:u",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "2021",
        "",
        "start! end! eventClass! globalTid:u correlationId nameId:u! returnValue! callchainId",
    ),
    "SCHED_EVENTS": (
        "2021",
        "",
        "start! cpu! isSchedIn:b! globalTid:u threadState@2025.1 threadBlock@2025.1",
    ),
    "OSRT_API": (
        "2021",
        "",
        "start! end! eventClass! globalTid:u nameId:u! returnValue! nestingLevel callchainId! "
        "argumentsId!@2026.2",
    ),
    "NVTX_EVENTS": (
        "2021",
        "",
        "start! end eventType! rangeId:u category:u color text:t globalTid:u endGlobalTid:u "
        "textId domainId:u uint64Value:u int64Value doubleValue:d uint32Value int32Value:i "
        "floatValue:f jsonTextId@2022.4 jsonText:t@2022.4 binaryData:t@2025.1",
    ),
    "NVTX_PAYLOAD_SCHEMAS": (
        "2026.2",
        "",
        "domainId schemaId name:t type flags numEntries payloadSize alignTo",
    ),
    "NVTX_PAYLOAD_SCHEMA_ENTRIES": (
        "2026.2",
        "",
        "domainId! schemaId! idx! flags type name:t description:t arrayOrUnionDetail offset",
    ),
    "NVTX_PAYLOAD_ENUMS": ("2026.2", "", "domainId schemaId name:t numEntries size"),
    "NVTX_PAYLOAD_ENUM_ENTRIES": ("2026.2", "", "domainId! schemaId! idx! name:t value isFlag"),
    "TARGET_INFO_GPU": (
        "2021",
        "",
        "vmId! id! name:t busLocation:t isDiscrete:b l2CacheSize totalMemory:u "
        "memoryBandwidth:u clockRate smCount pwGpuId uuid:t luid:u chipName:t cuDevice:i "
        "ctxswDevPath:t ctrlDevPath:t revision nodeMask constantMemory maxIPC "
        "maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm "
        "maxRegistersPerSm threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm "
        "maxThreadsPerBlock maxBlockDimX maxBlockDimY maxBlockDimZ maxGridDimX maxGridDimY "
        "maxGridDimZ computeMajor computeMinor smMajor smMinor",
    ),
    "TARGET_INFO_CUDA_DEVICE": ("2025.1", "", "gpuId cudaId! pid! uuid:t@2026.2 numMultiprocessors@2026.2"),
    "TARGET_INFO_CUDA_NULL_STREAM": (
        "2021",
        "2023.4",
        "streamId! hwId! vmId! processId! deviceId! contextId!",
    ),
    "TARGET_INFO_CUDA_CONTEXT_INFO": (
        "2023.4",
        "",
        "nullStreamId! hwId! vmId! processId! deviceId! contextId! parentContextId "
        "isGreenContext:b numMultiprocessors@2026.2 numTpcs@2026.2 tpcMask:t@2026.2 "
        "workqueueResourceId@2026.2 workqueueConcurrencyLimit@2026.2 "
        "workqueueSharingScope@2026.2",
    ),
    "TARGET_INFO_CUDA_STREAM": ("2021", "", "streamId! hwId! vmId! processId! contextId! priority! flag!"),
    "TARGET_INFO_SESSION_START_TIME": ("2021", "", "utcEpochNs:u utcTime:t localTime:t systemClockNs@2026.1"),
    "PROCESSES": ("2022.4", "", "globalPid:u pid:u name:t"),
    "ThreadNames": ("2021", "", "nameId:u! priority:u globalTid:u"),
    "ANALYSIS_DETAILS": ("2021", "", "globalVid:u! duration:u! startTime:u! stopTime:u!"),
    "DIAGNOSTIC_EVENT": (
        "2024.2",
        "",
        "timestamp! timestampType:i! source:i! severity:i! text:t! globalPid:u",
    ),
    "ENUM_NSYS_EVENT_TYPE": ("2021", "", _ENUM),
    "ENUM_NSYS_EVENT_CLASS": ("2021", "", _ENUM),
    "ENUM_CUDA_MEMCPY_OPER": ("2021", "", _ENUM),
    "ENUM_CUPTI_SYNC_TYPE": ("2021", "", _ENUM),
    "EXPORT_META_DATA": ("2021", "2023.4", _NAME_VALUE),
    "META_DATA_CAPTURE": ("2023.4", "", _NAME_VALUE),
    "META_DATA_EXPORT": ("2023.4", "", _NAME_VALUE),
}

_COLUMN = re.compile(
    r"(?P<name>\w+)(:(?P<type>\w))?(?P<mark>[*!])?(@(?P<since>[\d.]+))?(<(?P<until>[\d.]+))?"
)


def _lives(version: Version, since: str | None, until: str | None) -> bool:
    return (not since or version >= _version(since)) and (not until or version < _version(until))


@cache
def tables(generation: str) -> Mapping[str, tuple[Column, ...]]:
    """The tables of a generation with their columns in order. ValueError for a name not in GENERATIONS."""
    if generation not in GENERATIONS:
        raise ValueError(f"generation {generation!r} is none of {', '.join(GENERATIONS)}")
    version = GENERATIONS[generation].version
    found: dict[str, tuple[Column, ...]] = {}
    for table, (since, until, spec) in _TABLES.items():
        if not _lives(version, since, until):
            continue
        columns = []
        for token in spec.split():
            match = _COLUMN.fullmatch(token)
            assert match, token
            if _lives(version, match["since"], match["until"]):
                column = Column(
                    name=match["name"],
                    type=match["type"] or "",
                    not_null=match["mark"] is not None,
                    primary_key=match["mark"] == "*",
                )
                columns.append(column)
        found[table] = tuple(columns)
    return MappingProxyType(found)


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """Ways in which exports of one generation differ from each other."""

    text: Literal["inline", "interned", "mixed"] = "mixed"
    """Where NVTX names go: NVTX_EVENTS.text, StringIds, or StringIds only where a domain is named."""
    payloads: Literal["auto", "json", "binary", "none"] = "auto"
    """NCCL payloads as jsonText, as binaryData with schema tables, or lost; auto: what that version does."""
    domain_rows: bool = True
    """Whether NVTX_EVENTS names the domains (captures that start late do not)."""
    event_records: bool = True
    """Whether CUPTI_ACTIVITY_KIND_CUDA_EVENT is there (it is not unless asked for)."""
    api_calls: bool = True
    """Whether CUPTI_ACTIVITY_KIND_RUNTIME is there."""


DEFAULT_OPTIONS = ExportOptions()
