"""Timelines made by hand."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.results import DIMENSIONS, IDLE_CAUSES, Diagnosis, Timeline, TimelineRank, TimelineTrack
from tests.reports import build

LEAVES = [
    "compute",
    *(f"exposed_comm.{d}" for d in DIMENSIONS),
    "exposed_memcpy",
    *(f"idle.{c}" for c in IDLE_CAUSES),
]
GEMM = "nvjet_hsh_256x128"


def track(kind: str, codes: list[str], rows: list[tuple[int, int, str]], names: list[str]) -> TimelineTrack:
    """Rows are (start, duration, code); names are given in turn."""
    return TimelineTrack(
        kind=kind,  # type: ignore[arg-type]
        codes=codes,
        names=names,
        start_ns=[a for a, _, _ in rows],
        duration_ns=[n for _, n, _ in rows],
        code=[codes.index(c) for _, _, c in rows],
        name=[i % len(names) if names else -1 for i in range(len(rows))],
        stretches=[1 + i % 3 for i in range(len(rows))],
        count=list(range(len(rows))),
    )


def ledger(segments: int) -> TimelineTrack:
    """Segments of 10 us and 30 us by turns, leaves in turn; they tile the step."""
    rows, at = [], 0
    for i in range(segments):
        length = 10_000 if i % 2 else 30_000
        rows.append((at, length, LEAVES[i % 3 if i % 5 else 9]))
        at += length
    return track("ledger", LEAVES, rows, [])


def rank(number: int, segments: int = 60) -> TimelineRank:
    """One rank with every track; each begins 5 us after the one before."""
    made = ledger(segments)
    length = sum(made.duration_ns)
    passes = [(i * length // 8, length // 9, "forward" if i < 4 else "backward") for i in range(8)]
    return TimelineRank(
        rank=number,
        label=f"rank {number}",
        step="perfdoc.step 2",
        start_ns=1_000 + number,
        duration_ns=length,
        offset_ns=5_000 * number,
        aligned=True,
        tracks=[
            made,
            track("compute", ["gemm", "norm"], [(0, 30_000, "gemm"), (40_000, 20_000, "norm")], [GEMM, "ln"]),
            track("communication", ["dp", "tp"], [(20_000, 50_000, "dp")], ["all_reduce"]),
            track(
                "host", ["launch", "gc"], [(0, 5_000, "launch"), (60_000, 9_000, "gc")], ["cudaLaunchKernel"]
            ),
            track("passes", ["forward", "backward"], passes, ["0", "1", "2", "3"]),
        ],
    )


def timeline(ranks: int = 2, segments: int = 60) -> Timeline:
    """A step of so many ranks."""
    return Timeline(
        state="measured",
        reason="",
        remedy="",
        step="perfdoc.step 2",
        resolution_ns=1_500,
        ranks=[rank(i, segments) for i in range(ranks)],
        left_out=0,
        notes=["a note about it"],
    )


def with_timeline(ranks: int = 2, segments: int = 60) -> Diagnosis:
    """A diagnosis with a timeline."""
    return replace(build.two_ranks(), timeline=timeline(ranks, segments))
