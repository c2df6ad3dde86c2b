"""Offsets and drifts of the clocks that enough matched ends tie, and whether they fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.clocks.differences import FEWEST_FOR_OFFSET, components, solve
from perfdoc.analyzers.clocks.ends import Ends, drift_edges, offset_edges, pairs_of_clocks
from perfdoc.records import dataclass
from perfdoc.traces.table import F64, Bool, at_percent, median

_MOST_VIOLATIONS_FRAC = 0.05
"""Of a group's collectives that a member left before another came: more, and they are not one collective."""
_SLACK_NS = 20_000
_SLACK_NOISES = 4.0
"""Who leaves before another comes by less than this, and than so many times the scatter of the best group's
ends, may do so because clocks are off."""
PERCENT = (5.0, 95.0)
"""Percentiles of the residual."""
MANY_ENDS = 40
FEW_ENDS = 24
LEAST_DOUBT = 1.25
TICK_NS = 1_000
"""No timestamp of a GPU or of the PyTorch profiler is trusted further."""


def from_the_others(ends: Ends, end_ns: I64) -> F64:
    """Each end minus the mean of the collective's other ends."""
    relative = (end_ns - end_ns[ends.first][ends.collective]).astype(np.float64)
    count = np.bincount(ends.collective, minlength=len(ends.group)).astype(np.float64)[ends.collective]
    total = np.bincount(ends.collective, relative, len(ends.group))[ends.collective]
    difference: F64 = relative - (total - relative) / np.maximum(count - 1, 1)
    return difference


def percentiles(values: F64) -> tuple[int | None, int | None]:
    """The two of PERCENT, rounded; None where there are no values."""
    if not len(values):
        return None, None
    low, high = at_percent(values, PERCENT)
    return round(float(low)), round(float(high))


def reach_ns(values: F64) -> float:
    """How far off 0 what is left of ends lies, and so how far off what was fitted to them may be.

    From MANY_ENDS on the outermost twentieth of either side is left out: an end that is late by itself is no
    clock. Below FEW_ENDS they may all be late to one side by chance: of five a fit is off by three times what
    they still differ by about once in a thousand (Student's t). Random jobs of random clocks hold the factors
    against the truth (test_clock_residual).
    """
    if not len(values):
        return 0.0
    size = np.abs(at_percent(values, PERCENT) if len(values) >= MANY_ENDS else values)
    return float(size.max()) * max(LEAST_DOUBT, FEW_ENDS / len(values))


def violating(ends: Ends, start_ns: I64, end_ns: I64, strict: Bool) -> set[int]:
    """Groups of which too many collectives were left by someone before someone else came.

    By more than clocks that were aligned through the best group can be off; for `strict` groups, whose ranks
    were never known, that group does not count.
    """
    if not len(end_ns):
        return set()
    early = np.maximum.reduceat(start_ns, ends.first) - np.minimum.reduceat(end_ns, ends.first)
    off = np.maximum.reduceat(np.abs(from_the_others(ends, end_ns)), ends.first)
    order = np.argsort(ends.group, kind="stable")
    present, first = np.unique(ends.group[order], return_index=True)
    of_group = dict(zip(present.tolist(), np.split(order, first[1:]), strict=True))
    # With few ends it is the clocks that are wrong.
    enough = {g: c for g, c in of_group.items() if len(c) >= FEWEST_FOR_OFFSET}
    noise = min((float(median(off[c])) for c in enough.values()), default=0.0)
    slack = {g: _SLACK_NS + (0.0 if strict[g] else _SLACK_NOISES * noise) for g in enough}
    return {g for g, c in enough.items() if float(np.mean(early[c] > slack[g])) > _MOST_VIOLATIONS_FRAC}


_WORTH_FRAC = 0.6
"""A correction must bring some clock's ends this much closer to the others', or all stay on UTC: ends that
are late by chance would move clocks that are set well."""
_SMALL_OFFSET_NS = 1_000_000
"""Taken off before drifts are fitted again: 100 ppm of it is less than a clock's tick."""


def ahead(time_ns: I64, offset_ns: Any, drift: Any) -> I64:
    """How far a clock that reads this is ahead: where it should read t it reads t + offset + drift * t."""
    found: I64 = np.round((offset_ns + drift * time_ns) / (1.0 + drift)).astype(np.int64)
    return found


@dataclass(frozen=True, kw_only=True)
class Solution:
    """By clock. Clocks that enough ends tie to one another are a cluster, numbered by its smallest clock."""

    cluster: I64
    fixed: I64
    """The reference of each cluster, by its number."""
    offset_ns: F64
    """Against the cluster's reference, like drift."""
    drift: F64
    has_drift: Bool
    """Whether the drift is known against the cluster's reference."""
    by_ends: Bool
    """False where the clock is left on UTC."""

    def read(self, clock: I64, time_ns: I64) -> I64:
        """Times of clocks on the time of their clusters' references."""
        return time_ns - ahead(time_ns, self.offset_ns[clock], self.drift[clock])


def solve_clusters(ends: Ends, clock: I64, has_utc: Bool, rank_of: I64) -> Solution:
    """Offsets and drifts within every cluster.

    clock: of each row of `ends`. has_utc, rank_of: by clock. Two rounds, since a drift needs the time at
    which a difference was seen, which is off by the offsets that the first round finds.
    """
    clocks = len(has_utc)
    offset, drift = np.zeros(clocks), np.zeros(clocks)
    pairs = pairs_of_clocks(ends, clock, ends.end_ns)
    cluster, _ = components(offset_edges(pairs, drift), clocks)
    fixed = references(cluster, rank_of)
    has_drift = np.zeros(clocks, bool)
    for _ in range(2):
        drifts = drift_edges(pairs)
        drift_cluster, _ = components(drifts, clocks)
        # A clock that no drift was measured against stands still with itself only.
        together = np.bincount(drift_cluster, minlength=clocks)[drift_cluster] > 1
        has_drift = np.isin(drift_cluster, drift_cluster[fixed]) & together
        # Clocks whose drift is known against one another only are lined up with one another all the same.
        drift = solve(drifts, clocks, references(drift_cluster, rank_of))
        offset += solve(offset_edges(pairs, drift), clocks, fixed)
        if np.abs(offset).max(initial=0) <= _SMALL_OFFSET_NS:
            break
        pairs = pairs_of_clocks(ends, clock, ends.end_ns - np.round(offset).astype(np.int64)[clock])
    by_ends = _worth_correcting(ends, clock, cluster, offset, drift) | _without_utc(cluster, has_utc)
    return Solution(
        cluster=cluster,
        fixed=fixed,
        offset_ns=np.where(by_ends, np.round(offset), 0.0),
        drift=np.where(by_ends, drift, 0.0),
        has_drift=has_drift,
        by_ends=by_ends,
    )


def references(cluster: I64, rank_of: I64) -> I64:
    """The clock of the lowest rank of each cluster, by the clusters' numbers."""
    order = np.argsort(rank_of, kind="stable")
    _, first = np.unique(cluster[order], return_index=True)
    return order[first]


def _without_utc(cluster: I64, has_utc: Bool) -> Bool:
    """Clocks of clusters of several in which not all are on UTC, so that offsets must come from the ends."""
    lacking = np.bincount(cluster, ~has_utc, len(cluster)) > 0
    several = np.bincount(cluster, minlength=len(cluster)) > 1
    return (lacking & several)[cluster]


def _worth_correcting(ends: Ends, clock: I64, cluster: I64, offset: F64, drift: F64) -> Bool:
    """Clocks of clusters in which the ends of one clock at least lie clearly closer to the others'.

    Only ends within a cluster count: what other clusters' clocks differ by is not its own.
    """
    inside = within_clusters(ends, cluster[clock])
    clock = clock[inside[ends.collective]]
    ends = ends.take(inside)
    raw = from_the_others(ends, ends.end_ns)
    corrected = from_the_others(ends, ends.end_ns - ahead(ends.end_ns, offset[clock], drift[clock]))
    worth = np.zeros(int(cluster.max(initial=-1)) + 1, bool)
    order = np.argsort(clock, kind="stable")
    present, first = np.unique(clock[order], return_index=True)
    for k, mine in zip(present.tolist(), np.split(order, first[1:]), strict=False):
        before, after = (np.abs(at_percent(d[mine], PERCENT)).max() for d in (raw, corrected))
        if after < _WORTH_FRAC * before:
            worth[cluster[k]] = True
    return worth[cluster]


def within_clusters(ends: Ends, cluster: I64) -> Bool:
    """By collective: all its rows are of one cluster. `cluster`: of each row."""
    if not len(ends.group):
        return np.empty(0, bool)
    least, most = (f.reduceat(cluster, ends.first) for f in (np.minimum, np.maximum))
    return np.asarray(least == most, bool)
