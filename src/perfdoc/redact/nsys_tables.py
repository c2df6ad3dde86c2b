"""What of an Nsight Systems export goes into a copy: the tables and columns that perfdoc reads."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_TIMES = ("start", "end")
_ON_DEVICE = (*_TIMES, "deviceId", "contextId", "streamId", "correlationId", "globalPid")

NUMBERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CUPTI_ACTIVITY_KIND_KERNEL": (
            *_ON_DEVICE,
            *("demangledName", "shortName", "mangledName", "graphNodeId", "registersPerThread"),
            *("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"),
            *("staticSharedMemory", "dynamicSharedMemory"),
        ),
        "CUPTI_ACTIVITY_KIND_MEMCPY": (
            *_ON_DEVICE,
            *("bytes", "copyKind", "srcKind", "dstKind", "srcDeviceId", "dstDeviceId", "graphNodeId"),
        ),
        "CUPTI_ACTIVITY_KIND_MEMSET": (*_ON_DEVICE, "bytes", "graphNodeId", "memKind"),
        "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": (*_ON_DEVICE, "graphId", "graphExecId"),
        "CUPTI_ACTIVITY_KIND_RUNTIME": (
            *(*_TIMES, "eventClass", "globalTid", "correlationId", "nameId", "returnValue"),
        ),
        "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": (
            *(*_ON_DEVICE, "syncType", "deprecatedSyncType", "eventId", "eventSyncId"),
        ),
        "CUPTI_ACTIVITY_KIND_CUDA_EVENT": (
            *("timestamp", "deviceId", "contextId", "streamId", "correlationId", "globalPid"),
            *("eventId", "eventSyncId"),
        ),
        "NVTX_EVENTS": (
            *(*_TIMES, "eventType", "rangeId", "category", "color", "globalTid", "endGlobalTid", "textId"),
            "domainId",
        ),
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": ("domainId", "schemaId", "idx", "type", "offset"),
        "ThreadNames": ("nameId", "priority", "globalTid"),
        "TARGET_INFO_GPU": (
            *("id", "isDiscrete", "l2CacheSize", "totalMemory", "memoryBandwidth", "clockRate", "smCount"),
            *("cuDevice", "computeMajor", "computeMinor", "smMajor", "smMinor"),
        ),
        "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid", "numMultiprocessors"),
        "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
        "ANALYSIS_DETAILS": ("duration", "startTime", "stopTime"),
        "DIAGNOSTIC_EVENT": ("timestamp", "timestampType", "severity"),
    }
)
"""Columns whose whole numbers are copied. Whatever else is in them is left out."""

TEXTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "NVTX_EVENTS": ("text", "jsonText", "binaryData"),
        "NVTX_PAYLOAD_SCHEMA_ENTRIES": ("name",),
        "TARGET_INFO_GPU": ("name", "uuid"),
        "TARGET_INFO_CUDA_DEVICE": ("uuid",),
        "DIAGNOSTIC_EVENT": ("text",),
        "META_DATA_EXPORT": ("name", "value"),
        "EXPORT_META_DATA": ("name", "value"),
    }
)
"""Columns of text, each of which is made anew: see perfdoc.redact.nsys_texts."""

CODE_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "CUPTI_ACTIVITY_KIND_KERNEL": ("demangledName", "shortName", "mangledName"),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
    }
)
"""Columns that refer to StringIds for the name of a kernel or of a call."""

RANGE_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"NVTX_EVENTS": ("textId",), "ThreadNames": ("nameId",)}
)
"""Columns that refer to StringIds for a name that people wrote."""

THREADS = ("ThreadNames", "globalTid")
"""Names are copied of threads that did something in the copy: an export lists the whole machine's."""
ACTIVE: Mapping[str, str] = MappingProxyType(
    {"CUPTI_ACTIVITY_KIND_RUNTIME": "globalTid", "NVTX_EVENTS": "globalTid"}
)
"""Columns that say which threads did something."""

TABLES = tuple(dict.fromkeys((*NUMBERS, *TEXTS)))
