"""Memory snapshots and replays made by hand, for the renderers to show."""

from __future__ import annotations

from perfdoc.results import MemoryAnalysis
from perfdoc.results.memory import DeviceMemory, MemoryComposition, MemoryLayout, MemorySite, ProcessMemory
from tests.reports.fill import filled

GIB = 1024**3


def memory() -> MemoryAnalysis:
    """20 and 21 GiB at the peaks of two devices; a process of 3 GiB."""
    return MemoryAnalysis(
        state="measured",
        reason="",
        remedy="",
        devices=[device(None, 20 * GIB), device(1, 21 * GIB)],
        processes=[
            filled(
                ProcessMemory,
                path="memory/rank0.jsonl",
                state="measured",
                samples=9,
                peak_resident_bytes=3 * GIB,
            )
        ],
    )


def device(rank: int | None, peak_bytes: int) -> DeviceMemory:
    """One whose peak is divided, with a history that is known in part."""
    return filled(
        DeviceMemory,
        path="memory/rank0.pickle",
        rank=rank,
        device=rank or 0,
        state="measured",
        notes=["the history begins in a step"],
        peak_allocated_bytes=peak_bytes,
        peak_reserved_bytes=peak_bytes + GIB,
        composition=filled(
            MemoryComposition,
            state="partial",
            reason="no range names the optimizer",
            category_bytes={"parameters": 15 * GIB, "unknown": peak_bytes - 15 * GIB},
            range_bytes={"forward": peak_bytes},
            evidence_bytes={"stack": peak_bytes},
        ),
        layout=filled(
            MemoryLayout,
            state="measured",
            reserved_bytes=peak_bytes + GIB,
            inactive_split_bytes=GIB // 2,
            cached_bytes=GIB // 2,
        ),
        sites=[
            MemorySite(function="forward", file="/site-packages/model.py", line=17, bytes=9 * GIB, count=3),
            MemorySite(function="step", file="optimizer.py", line=None, bytes=GIB, count=1),
        ],
        oom_events=1,
    )
