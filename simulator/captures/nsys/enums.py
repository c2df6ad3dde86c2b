"""Values of the ENUM tables that an Nsight export carries and that a reader may look up."""

from __future__ import annotations

_COPY = (
    *("UNKNOWN", "HTOD", "DTOH", "HTOA", "ATOH", "ATOA", "ATOD", "DTOA", "DTOD", "HTOH", "PTOP"),
    *("UVM_HTOD", "UVM_DTOH", "UVM_DTOD"),
)
_END = {"H": "Host", "D": "Device", "A": "Array", "P": "Peer"}


def _copy_label(kind: str) -> str:
    if kind == "UNKNOWN":
        return "Unknown"
    ends = kind.removeprefix("UVM_")
    label = f"{_END[ends[0]]}-to-{_END[ends[-1]]}"
    return f"Unified {label}" if ends != kind else label


_SYNC = {
    0: ("UNKNOWN", "Unknown"),
    1: ("EVENT_SYNCHRONIZE", "Event sync"),
    2: ("STREAM_WAIT_EVENT", "Stream wait sync"),
    3: ("STREAM_SYNCHRONIZE", "Stream sync"),
    4: ("CONTEXT_SYNCHRONIZE", "Context sync"),
}

NVTX_MARK, NVTX_PUSH_POP, NVTX_START_END, NVTX_DOMAIN = 34, 59, 60, 75
CLASS_RUNTIME, CLASS_DRIVER, CLASS_GRAPH_NODE = 0, 1, 77

ENUM_ROWS: dict[str, list[tuple[int, str, str]]] = {
    "ENUM_CUDA_MEMCPY_OPER": [
        (i, f"CUDA_MEMCPY_KIND_{kind}", _copy_label(kind)) for i, kind in enumerate(_COPY)
    ],
    "ENUM_CUPTI_SYNC_TYPE": [
        (i, f"CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_{name}", label) for i, (name, label) in _SYNC.items()
    ],
    "ENUM_NSYS_EVENT_TYPE": [
        (i, name, name)
        for i, name in (
            (0, "Unknown"),
            (32, "NvtxEvents"),
            (33, "NvtxCategory"),
            (NVTX_MARK, "NvtxMark"),
            (35, "NvtxPushRange"),
            (36, "NvtxPopRange"),
            (37, "NvtxStartRange"),
            (38, "NvtxEndRange"),
            (39, "NvtxThread"),
            (NVTX_PUSH_POP, "NvtxPushPopRange"),
            (NVTX_START_END, "NvtxStartEndRange"),
            (NVTX_DOMAIN, "NvtxDomainCreate"),
            (76, "NvtxDomainDestroy"),
        )
    ],
    "ENUM_NSYS_EVENT_CLASS": [
        (CLASS_RUNTIME, "TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
        (CLASS_DRIVER, "TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
        (CLASS_GRAPH_NODE, "TRACE_PROCESS_EVENT_CUDA_GRAPH_NODE_CREATION", "CUDA graph node creation"),
    ],
}

EARLY_SYNC_CODES = {4: 0, 1: 1, 3: 2, 2: 3}
"""CUPTI's synchronisation type -> the code that exports before 2026 wrote.

Seen in real files: a device wait is 0 in 2024.6.2's syncType, and 0, 1, 2 are device, event and stream
waits in 2025.1.3's deprecatedSyncType (whose syncType is 0 throughout), whatever ENUM_CUPTI_SYNC_TYPE
of the same file says. 3 for a stream's wait on an event is inferred: the one value left.
"""

API_VERSIONS = {
    "cudaLaunchKernel": "7000",
    "cudaLaunchKernelExC": "11060",
    "cudaMemcpyAsync": "3020",
    "cudaMemsetAsync": "3020",
    "cudaMalloc": "3020",
    "cudaFree": "3020",
    "cudaHostAlloc": "3020",
    "cudaEventRecord": "3020",
    "cudaEventRecordWithFlags": "11010",
    "cudaEventQuery": "3020",
    "cudaEventSynchronize": "3020",
    "cudaStreamWaitEvent": "3020",
    "cudaStreamSynchronize": "3020",
    "cudaDeviceSynchronize": "3020",
    "cudaGraphLaunch": "10000",
    "cudaStreamIsCapturing": "10000",
}
"""Nsight appends `_v` and the CUDA version of the entry point to a runtime call's name."""
