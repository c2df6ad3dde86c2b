"""Messages of a capture: which follow one another, and what they cost however short they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import F64, unique

_SIZES_MIN = 2
_APART = 1.1
"""Sizes closer than this give no line."""
FULL_FRAC = 1.001
"""Parts of a bucket are cut to whole elements on every rank."""
_MUCH_SHORTER = 16
"""A message of so much less is all latency."""


def line_of(rebuilt: Rebuilt, dimension: str) -> tuple[float, float]:
    """(latency in ns, ns per byte) of the messages of a dimension.

    Where they are all of one size, the shortest message of any dimension stands for the latency.
    ValueError where the capture tells neither.
    """
    known = (rebuilt.graph.kind == TaskKind.COMMUNICATION) & (rebuilt.bytes > 0)
    ours = known & (rebuilt.dimension == DIMENSIONS.index(dimension))
    if not ours.any():
        raise ValueError(f"the capture shows no {dimension} communication of known size")
    size, took = rebuilt.bytes[ours], rebuilt.graph.duration_ns[ours]
    if len(unique(size)) >= _SIZES_MIN:
        return fitted_line(size, took)
    short = known & (rebuilt.bytes * _MUCH_SHORTER <= size[0])
    # A group of one rank sends nothing.
    short &= rebuilt.graph.duration_ns > 0
    if not short.any():
        raise ValueError("two collective sizes are needed to separate latency from bandwidth")
    short &= rebuilt.bytes == rebuilt.bytes[short].min()
    usual = float(np.median(took))
    latency_ns = min(float(np.median(rebuilt.graph.duration_ns[short])), usual)
    return latency_ns, (usual - latency_ns) / float(size[0])


def bucket_lines(rebuilt: Rebuilt, rows: I64, dimension: str) -> Callable[[int, float], int]:
    """What a message of so many bytes would take in the place of one that is there (task, bytes -> ns).

    By the line through those of its kind (it reduces or not) and stream; where these are of one size, of its
    kind; else of all. ValueError where the capture tells none.
    """
    graph = rebuilt.graph
    kind, stream = rebuilt.reduces[rows], graph.resource[rows]
    lines: dict[tuple[int, int | None], tuple[float, float] | None] = {}

    def line(of_kind: int, of_stream: int | None) -> tuple[float, float] | None:
        key = of_kind, of_stream
        if key not in lines:
            mine = rows[(kind == of_kind) & ((stream == of_stream) if of_stream is not None else True)]
            size = rebuilt.bytes[mine]
            several = len(size) and size.min() * _APART < size.max()
            lines[key] = fitted_line(size, graph.duration_ns[mine]) if several else None
        return lines[key]

    usual = line_of(rebuilt, dimension) if len(rows) else (0.0, 0.0)

    def takes_ns(task: int, size_bytes: float) -> int:
        own = int(rebuilt.reduces[task])
        found = line(own, int(graph.resource[task])) or line(own, None) or usual
        return round(found[0] + found[1] * size_bytes)

    return takes_ns


def latency_of(rebuilt: Rebuilt, dimension: str) -> float:
    """The latency alone."""
    return line_of(rebuilt, dimension)[0]


def latency_of_any(rebuilt: Rebuilt, dimension: str) -> float:
    """The latency of a dimension's messages; where they do not tell it, the smallest that those of another
    do; 0 where none does."""
    others = [d for d in DIMENSIONS if d != dimension]
    for some in ([dimension], others):
        found = []
        for name in some:
            with suppress(ValueError):
                found.append(latency_of(rebuilt, name))
        if found:
            return min(found)
    return 0.0


def beyond_latency(took_ns: I64, latency_ns: float, factor: float | I64 | F64) -> F64:
    """What messages take whose time beyond the latency is so many times as long."""
    fixed = np.minimum(latency_ns, took_ns)
    return np.asarray(fixed + (took_ns - fixed) * factor)


def fitted_line(size_bytes: I64, duration_ns: I64) -> tuple[float, float]:
    """(latency in ns, ns per byte) by least squares over the median of each size; neither below 0.

    ValueError where there are fewer than two sizes.
    """
    sizes = unique(size_bytes)
    if len(sizes) < _SIZES_MIN:
        raise ValueError("two collective sizes are needed to separate latency from bandwidth")
    typical = np.array([np.median(duration_ns[size_bytes == s]) for s in sizes])
    slope, latency = (float(x) for x in np.polyfit(sizes.astype(np.float64), typical, 1))
    if slope < 0:
        return float(typical.mean()), 0.0
    if latency < 0:  # a line through the origin
        return 0.0, float((typical * sizes).sum() / (sizes.astype(np.float64) ** 2).sum())
    return latency, slope


def usual_bytes(size_bytes: I64) -> float:
    """Of the full buckets: what is left over of a chunk is smaller."""
    return float(np.median(size_bytes[size_bytes * 2 > size_bytes.max()]))


def sequences(rebuilt: Rebuilt, rows: I64) -> Iterator[I64]:
    """Consecutive collectives: of one rank, stream and kind, by start."""
    graph = rebuilt.graph
    kind = rebuilt.reduces[rows] == 0
    order = np.lexsort((rebuilt.start_ns[rows], kind, graph.resource[rows], graph.rank[rows]))
    rows, kind = rows[order], kind[order]
    if not len(rows):
        return
    same = np.ones(len(rows) - 1, bool)
    for column in (graph.rank[rows], graph.resource[rows], kind):
        same &= column[1:] == column[:-1]
    yield from np.split(rows, np.flatnonzero(~same) + 1)
