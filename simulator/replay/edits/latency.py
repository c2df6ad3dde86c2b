"""What a message costs however short it is, from the capture's own messages."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.simulator.engine import TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.rebuilt import Rebuilt

_SIZES_MIN = 2
_MUCH_SHORTER = 16
"""A message of so much less is all latency."""


def line_of(rebuilt: Rebuilt, dimension: str) -> tuple[float, float]:
    """(latency in ns, ns per byte) of the messages of a dimension.

    Where they are all of one size, the usual short message of any dimension stands for the latency.
    ValueError where the capture tells neither.
    """
    known = (rebuilt.graph.kind == TaskKind.COMMUNICATION) & (rebuilt.bytes > 0)
    ours = known & (rebuilt.dimension == DIMENSIONS.index(dimension))
    if not ours.any():
        raise ValueError(f"the capture shows no {dimension} communication whose size is known")
    size, took = rebuilt.bytes[ours], rebuilt.graph.duration_ns[ours]
    if len(np.unique(size)) >= _SIZES_MIN:
        return fitted_line(size, took)
    short = known & (rebuilt.bytes * _MUCH_SHORTER <= size[0])
    # A group of one rank sends nothing.
    short &= rebuilt.graph.duration_ns > 0
    if not short.any():
        raise ValueError("collectives of two sizes are needed to tell latency from bandwidth")
    usual = float(np.median(took))
    latency_ns = min(float(np.median(rebuilt.graph.duration_ns[short])), usual)
    return latency_ns, (usual - latency_ns) / float(size[0])


def latency_of(rebuilt: Rebuilt, dimension: str) -> float:
    """The latency alone."""
    return line_of(rebuilt, dimension)[0]


def fitted_line(size_bytes: I64, duration_ns: I64) -> tuple[float, float]:
    """(latency in ns, ns per byte) by least squares over the median of each size; neither below 0.

    ValueError where there are fewer than two sizes.
    """
    sizes = np.unique(size_bytes)
    if len(sizes) < _SIZES_MIN:
        raise ValueError("collectives of two sizes are needed to tell latency from bandwidth")
    typical = np.array([np.median(duration_ns[size_bytes == s]) for s in sizes])
    slope, latency = (float(x) for x in np.polyfit(sizes.astype(np.float64), typical, 1))
    if slope < 0:
        return float(typical.mean()), 0.0
    if latency < 0:  # a line through the origin
        return 0.0, float((typical * sizes).sum() / (sizes.astype(np.float64) ** 2).sum())
    return latency, slope
