"""Larger buckets for the reduction of gradients: fewer collectives, each of which starts when its last
gradients are ready."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit, with_durations
from perfdoc.simulator.replay.edits.latency import fitted_line
from perfdoc.simulator.replay.rebuilt import Rebuilt

_UNCERTAINTY_FRAC = 1.0
"""The line is fitted to few sizes, bytes beyond the largest seen are extrapolated, and gathers of weights are
taken like reductions: on a simulated job whose truth is known it found a thirteenth of the gain."""


def rebucketed(bucket_bytes: int, *, dimension: str = "dp") -> Edit:
    """Consecutive collectives of one rank are merged until a bucket is full; the last one of a
    bucket carries it, and takes latency + bytes / bandwidth by the trace's own collectives.

    ValueError for a size below 1. Smaller buckets than the trace's are refused when applied: when parts of a
    bucket would be ready another edit works out (split.py).
    """
    if bucket_bytes < 1:
        raise ValueError(f"rebucketed: {bucket_bytes} bytes")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph = rebuilt.graph
        ours = (graph.kind == TaskKind.COMMUNICATION) & (rebuilt.bytes > 0)
        ours &= rebuilt.dimension == DIMENSIONS.index(dimension)
        rows = np.flatnonzero(ours)
        latency_ns, ns_per_byte = fitted_line(rebuilt.bytes[rows], graph.duration_ns[rows])
        if len(rows) and bucket_bytes < np.median(rebuilt.bytes[rows]):
            raise ValueError(f"buckets of {bucket_bytes:,} bytes are smaller than those of the capture")
        duration = graph.duration_ns.copy()
        for i, frame in enumerate(rebuilt.ranks):
            mine = rows[graph.rank[rows] == i]
            mine = mine[np.argsort(rebuilt.start_ns[mine], kind="stable")]
            bounds = np.sort(np.concatenate((frame.step_starts_ns, frame.optimizer_starts_ns)))
            part = np.searchsorted(bounds, rebuilt.launch_ns[mine], "right")
            bucket = _buckets(rebuilt.bytes[mine], part, bucket_bytes)
            total = np.bincount(bucket, rebuilt.bytes[mine])
            last = np.append(bucket[1:] != bucket[:-1], True) if len(bucket) else np.empty(0, bool)
            merged = np.bincount(bucket)[bucket] > 1
            takes = np.round(latency_ns + ns_per_byte * total[bucket]).astype(np.int64)
            duration[mine] = np.where(merged, np.where(last, takes, 0), duration[mine])
        return with_durations(rebuilt, duration)

    return Edit(
        name=f"{dimension} buckets of {bucket_bytes:,} bytes",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=(f"exposed_comm.{dimension}",),
        assumptions=(
            "a collective takes latency + bytes / bandwidth, as those of the capture do",
            "a bucket starts when the last of what it holds would have",
            "only collectives between the same two starts of step or optimizer are merged",
        ),
    )


def _buckets(size_bytes: I64, part: I64, bucket_bytes: int) -> I64:
    """Number of the bucket of each collective: a new one where the old is full or another part begins."""
    found = np.empty(len(size_bytes), np.int64)
    held, bucket, before = 0, -1, -1
    for i, (size, of_part) in enumerate(zip(size_bytes.tolist(), part.tolist(), strict=True)):
        if of_part != before or held + size > bucket_bytes:
            held, bucket, before = 0, bucket + 1, of_part
        held += size
        found[i] = bucket
    return found
