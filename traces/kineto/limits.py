"""What a PyTorch trace can show, what to switch on to see the rest, and what to know of its figures."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from perfdoc.kept import table
from perfdoc.patterns import pattern_of
from perfdoc.traces.kineto.rows import EventRows
from perfdoc.traces.kineto.unpack import RECAPTURE
from perfdoc.traces.model import UNKNOWN, Capability, Note, SyncKind, Trace
from perfdoc.traces.table import among, unique

_MISSING = table(Path(__file__).resolve().with_name("limits.yaml"))
"""Capability → reason when it is missing, remedy."""

_OTHERS_CALL = pattern_of(
    r"(?:hip|musa|tops|(?:acl|cn)(?:rt)?)[A-Z]|(?:ur|ze|pi|sycl)[A-Z_]"
    r"|(?!cu(?:da)?[A-Z])[a-z]{2,8}(?:Launch|Memcpy|Memset|Malloc|(?:Stream|Device|Event)[A-Z])"
)
"""Of a runtime that is not NVIDIA's, whose tools and switches do nothing there."""
_OTHERS_NAME = pattern_of(
    r"h(?:ccl|com)[_:]|Hccl[A-Z]|aclnn[A-Z]|hpu_op$|[hn]pu::|Gaudi|Habana|HPU\b|Ascend Hardware|CANN$"
)
"""Of a collective, operator, category or process on Gaudi or Ascend, whose calls may not be in the file."""
_DEVICE_ROWS = "Profile with activities of CPU and device: ProfilerActivity.XPU, HPU, NPU, PrivateUse1."
_NOT_CUDA = {
    "event_edges": (
        "The capture does not tie stream waits to event records: PyTorch does on CUDA alone.",
        "",
    ),
    "thread_states": ("PyTorch's profiler does not record whether a thread computed or waited.", ""),
    "graph_nodes": ("Graphs were launched; their kernels are rows of their own but name no graph node.", ""),
}
_OTHER_GPUS = ("The file describes none of the GPUs that ran its kernels (deviceProperties).", "")


def capabilities(
    trace: Trace, *, launched_kernels: int, lists_gpus: bool, named: Iterable[str]
) -> dict[str, Capability]:
    """Every key of CAPABILITIES; `launched_kernels` with API calls; `named`: processes, odd categories."""
    calls = set(trace.names(unique(trace.api_calls.name)))
    others = {name[:3] for name in calls if _OTHERS_CALL.match(name)}
    others |= {name[:3] for name in (*trace.strings, *named) if _OTHERS_NAME.match(name)}
    missing = {
        **_MISSING,
        **({"gpu_identity": _OTHER_GPUS} if lists_gpus else {}),
        **(_NOT_CUDA if others else {}),
    }
    if others - {"hip"}:  # PyTorch calls AMD's activity CUDA
        missing |= {
            name: (why, _DEVICE_ROWS) for name, (why, do) in missing.items() if do == _MISSING["kernels"][1]
        }
    graph_launches = any("GraphLaunch" in name for name in calls)
    descriptions = {group.description for group in trace.groups}
    descriptions |= set(trace.names(unique(trace.payloads.group_description)))
    available = {
        "kernels": len(trace.kernels) > 0,
        "copies": len(trace.kernels) > 0 or len(trace.copies) > 0,
        "graph_nodes": bool(np.any(trace.kernels.graph_node != UNKNOWN)) or not graph_launches,
        "api_calls": len(trace.api_calls) > 0,
        "launch_correlation": launched_kernels > 0,
        "ranges": len(trace.ranges) > 0,
        "event_edges": _has_event_edges(trace),
        "collective_payloads": len(trace.payloads) > 0,
        # PyTorch writes "undefined" for a group that was made without one.
        "group_descriptions": bool(descriptions - {"", "undefined"}),
        "gpu_identity": bool(trace.devices) and all(device.gpu_name for device in trace.devices),
        "utc_clock": trace.utc_origin_ns is not None,
        "thread_states": len(trace.thread_states) > 0,
    }
    return {
        name: Capability(
            available=shown,
            reason="" if shown else missing[name][0],
            remedy="" if shown else missing[name][1],
        )
        for name, shown in available.items()
    }


def _has_event_edges(trace: Trace) -> bool:
    """Synchronisation rows were collected, and waits (if any) name their record."""
    waits = trace.syncs.kind == SyncKind.STREAM_WAIT_EVENT
    if not np.any(waits):
        return len(trace.syncs) > 0
    return len(trace.event_records) > 0 or bool(np.any(trace.syncs.source_correlation[waits] != UNKNOWN))


_FEWEST = 20
_FASTEST_NS, _SHORTEST_NS = 1_000_000, 500_000
"""The fastest launch call of a capture takes some 3 us, and its shortest kernel 1 us."""
_SLOWEST_NS = 500


def off_scale(trace: Trace) -> list[Note]:
    """Told of a file whose times are in another unit than microseconds, which other tools write and read."""
    names = trace.strings
    launching = [i for i in trace.call_names.tolist() if "LaunchKernel" in names[i]]
    rows = np.flatnonzero(among(trace.api_calls.name, launching))
    if len(rows) < _FEWEST or len(trace.kernels) < _FEWEST:
        return []
    took = trace.api_calls.end_ns[rows] - trace.api_calls.start_ns[rows]
    kernels = trace.kernels.end_ns - trace.kernels.start_ns
    if took.min() >= _FASTEST_NS and kernels.min() >= _SHORTEST_NS:
        said, unit = "a millisecond or more", "nanoseconds"
    elif took.max() < _SLOWEST_NS and np.median(kernels) < _SLOWEST_NS:
        said, unit = "half a microsecond at most", "milliseconds or seconds"
    else:
        return []
    return [
        Note(
            code="off-scale",
            message=f"Every launch call takes {said}, which cannot be: the times seem to be in {unit}, where "
            "ts and dur are microseconds. All times here are wrong by that factor; shares are not.",
            remedy="Give the file as the profiler wrote it, or convert ts and dur to microseconds.",
        )
    ]


_EXTRAS = {
    "stacks": "Python calls (with_stack)",
    "shapes": "operator shapes (record_shapes)",
    "memory": "every allocation (profile_memory)",
}


def recorded(rows: EventRows) -> list[str]:
    """What was recorded besides the activity, the costliest first."""
    extras = rows.extras | ({"shapes"} if rows.inputs.any else set())
    return [words for extra, words in _EXTRAS.items() if extra in extras]


_LISTED = 5
_SHOWN_CHARACTERS = 40


def notes(
    rows: EventRows,
    *,
    repaired_file: bool,
    broken_off: bool,
    kernels: int,
    launched_kernels: int,
    host_processes: int,
    clock_disagrees: bool,
) -> tuple[Note, ...]:
    """The notes of one file; `launched_kernels` counts kernels whose API call is in the capture."""
    host_only = rows.unknown - rows.unknown_on_device
    candidates = (
        (
            (repaired_file and not broken_off) or rows.repaired,
            "json-repaired",
            "The file is not valid JSON (control characters, bare quotes, bad escapes, nan or inf); it was "
            "read after repair, and some names may differ from the program's.",
            "Use a newer PyTorch, which writes valid JSON, or record with with_stack=False.",
        ),
        (
            broken_off,
            "broken-off",
            "The file breaks off: its last events, and what stands behind them, are missing.",
            RECAPTURE,
        ),
        (rows.ignored, "ignored-events", f"{rows.ignored} entries of traceEvents are no events.", ""),
        (
            rows.unknown_on_device,
            "unknown-device-rows",
            "Rows with a stream are of categories that are not read, so the device may have been busy where "
            f"it looks idle: {_counts(rows.unknown_on_device)}.",
            "",
        ),
        (host_only, "unknown-categories", f"Categories that are not read: {_counts(host_only)}.", ""),
        (
            kernels > launched_kernels,
            "kernels-without-launch",
            f"{kernels - launched_kernels} of {kernels} kernels have no API call in the capture (launched "
            "before it began, through calls that are not recorded, or ids were lost).",
            "",
        ),
        (
            host_processes > 1,
            "several-processes",
            f"The file holds {host_processes} processes: GPU numbers are known, ranks are not.",
            "Profile each rank into a file of its own.",
        ),
        (
            clock_disagrees,
            "clock-origin-unclear",
            "The file states baseTimeNanoseconds but its times are epoch times already, or the base is no "
            "time: UTC is unknown.",
            "",
        ),
    )
    return tuple(Note(code=code, message=said, remedy=do) for there, code, said, do in candidates if there)


def _counts(categories: dict[str, int]) -> str:
    ordered = sorted(categories.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{name[:_SHOWN_CHARACTERS]!r} ({count})" for name, count in ordered[:_LISTED]]
    return ", ".join(shown) + (f" and {len(ordered) - _LISTED} more" if len(ordered) > _LISTED else "")
