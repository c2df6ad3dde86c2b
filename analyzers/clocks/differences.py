"""What noisy differences of clocks say: the line through those of two, and the values of all along edges.

First a spanning tree of the surest edges, which also tells what is connected; then least squares over all
edges, in which one that contradicts the rest counts little.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.records import dataclass
from perfdoc.traces.table import F64, Table, median

STEEPEST = 5e-4
"""No two clocks run apart faster than this; ns per ns."""
UTC_ERROR_NS = 50_000_000
"""How far two hosts' UTC clocks may be apart; time servers keep them within a tenth of that."""
_ROUNDS = 4
_OUTLIER_ERRORS = 4.0
"""An edge that is off by so many of its errors counts half."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Edges(Table):
    """value[to] - value[from] was measured to be `difference`, with a standard error."""

    source: I64
    target: I64
    difference: F64
    error: F64
    """Above 0."""


def components(edges: Edges, nodes: int) -> tuple[I64, I64]:
    """Component of each node, by its smallest node; and the edges of a spanning forest of the surest ones."""
    parent = list(range(nodes))

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    tree = []
    for i in np.argsort(edges.error, kind="stable").tolist():
        a, b = root(int(edges.source[i])), root(int(edges.target[i]))
        if a != b:
            parent[max(a, b)] = min(a, b)
            tree.append(i)
    return np.array([root(n) for n in range(nodes)], np.int64), np.array(tree, np.int64)


def solve(edges: Edges, nodes: int, fixed: I64) -> F64:
    """Value of each node; 0 for the `fixed` ones, of which every component has exactly one.

    A node that no edge reaches is 0.
    """
    value = _along_tree(edges, nodes, fixed)
    if not len(edges):
        return value
    for _ in range(_ROUNDS):
        off = edges.difference - (value[edges.target] - value[edges.source])
        doubt = 1.0 + (off / (_OUTLIER_ERRORS * edges.error)) ** 2
        value = _least_squares(edges, 1.0 / (edges.error**2 * doubt), value, fixed)
    return value


def _along_tree(edges: Edges, nodes: int, fixed: I64) -> F64:
    _, tree = components(edges, nodes)
    neighbours: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for i in tree.tolist():
        a, b, d = int(edges.source[i]), int(edges.target[i]), float(edges.difference[i])
        neighbours[a].append((b, d))
        neighbours[b].append((a, -d))
    value = np.zeros(nodes)
    seen = set(fixed.tolist())
    waiting = list(seen)
    while waiting:
        node = waiting.pop()
        for other, difference in neighbours[node]:
            if other not in seen:
                seen.add(other)
                value[other] = value[node] + difference
                waiting.append(other)
    return value


def _least_squares(edges: Edges, weight: F64, value: F64, fixed: I64) -> F64:
    """Minimise sum of weight * (difference - (value[target] - value[source]))^2 by conjugate gradients."""
    nodes = len(value)
    free = np.ones(nodes)
    free[fixed] = 0
    touched = np.bincount(edges.source, weight, nodes) + np.bincount(edges.target, weight, nodes)
    scale = np.where(touched > 0, touched, 1.0)

    def spread(along: F64) -> F64:
        """What a flow along each edge adds up to at each node."""
        flow = weight * along
        sums: F64 = (np.bincount(edges.target, flow, nodes) - np.bincount(edges.source, flow, nodes)) * free
        return sums

    value = value.copy()
    rest = spread(edges.difference - (value[edges.target] - value[edges.source]))
    step = rest / scale
    power = float(rest @ step)
    target = 1e-24 * power
    for _ in range(2 * nodes):
        if power <= target:
            break
        through = spread(step[edges.target] - step[edges.source])
        length = power / float(step @ through)
        value += length * step
        rest -= length * through
        power, before = float(rest @ (rest / scale)), power
        step = rest / scale + (power / before) * step
    return value


FEWEST_FOR_OFFSET = 5
"""Fewer matched ends than this do not move a clock: with one, any offset fits."""
FEWEST_FOR_DRIFT = 24
SHORTEST_FOR_DRIFT_NS = 10_000_000
_BINS = 32
_PER_BIN = 6
_TO_SIGMA = 1.4826
"""Median absolute deviation to standard deviation, for normal noise."""
_OF_MEDIAN = 1.2533
"""Standard error of a median over that of a mean."""
_SIGNIFICANT = 4.0
_SMALLEST_ERROR_NS = 1.0
_SMALLEST_OFFSET_ERROR_NS = 100.0
"""Ends differ by the length of the way that data take, which no number of them averages out."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """difference = offset_ns + drift * time, time in ns from 0."""

    offset_ns: float
    offset_error_ns: float
    drift: float | None
    """ns per ns; 0 where it is within its error, None where there are too few pairs or no clock drifts so."""
    drift_error: float


def fit_line(time_ns: F64, difference_ns: F64) -> Line:
    """Median of slopes between medians of bins, then the median of what is left."""
    count = len(time_ns)
    centre = float(median(time_ns))
    drift, drift_error = None, np.inf
    spread_ns = float(np.std(time_ns))
    if count >= FEWEST_FOR_DRIFT and float(np.ptp(time_ns)) >= SHORTEST_FOR_DRIFT_NS and spread_ns > 0:
        slope = _median_slope(time_ns, difference_ns)
        noise = deviation(difference_ns - slope * (time_ns - centre))
        drift_error = _OF_MEDIAN * max(noise, _SMALLEST_ERROR_NS) / (np.sqrt(count) * spread_ns)
        drift = slope if abs(slope) > _SIGNIFICANT * drift_error else 0.0
        if abs(drift) > STEEPEST:  # as no clocks differ: one whose time stands still drifts by -1
            drift, drift_error = None, np.inf
    rest = difference_ns - (drift or 0.0) * time_ns
    error = _OF_MEDIAN * deviation(rest) / np.sqrt(count)
    return Line(
        offset_ns=float(median(rest)),
        offset_error_ns=max(float(error), _SMALLEST_OFFSET_ERROR_NS),
        drift=drift,
        drift_error=float(drift_error),
    )


def deviation(values: F64) -> float:
    """Robust standard deviation."""
    return _TO_SIGMA * float(median(np.abs(values - median(values)))) if len(values) else 0.0


def _median_slope(time_ns: F64, difference_ns: F64) -> float:
    order = np.argsort(time_ns, kind="stable")
    bins = min(_BINS, len(order) // _PER_BIN)
    # Of equal size, so that one call takes all medians; what is left over at the end is not missed.
    parts = order[: bins * (len(order) // bins)].reshape(bins, -1)
    t, d = median(time_ns[parts]), median(difference_ns[parts])
    i, j = np.triu_indices(bins, 1)
    apart = t[j] > t[i]
    slopes = (d[j] - d[i])[apart] / (t[j] - t[i])[apart]
    return float(median(slopes)) if len(slopes) else 0.0
