"""The partition of compute: the time that each kernel owns, at the peak or lost by a cause."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64, owners_by_last_end, union
from perfdoc.analyzers.base.rows import sum_by
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.efficiency.roofline import Roofline
from perfdoc.analyzers.tables.device import samples_of
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.efficiency import CAUSES
from perfdoc.traces.table import F64, Bool

_CLOCK = pattern_of(r"(?i)GPC Clock\b")
_COVERED_MIN_FRAC = 0.5
"""Of a kernel, by samples: below, its clock is unknown."""

_QUANTILE = 0.99


def clock_frac(view: DeviceView, start_ns: I64, end_ns: I64) -> F64 | None:
    """Mean clock during each of these stretches over the highest of all but 1 % of their time; 1 where no
    sample covers half of it. None where the clock was not sampled.

    1.8 GHz until 10 us and 1.2 GHz from then on: of [8, 12) us it is 1.5 / 1.8.
    """
    found = samples_of(view, _CLOCK)
    if found is None:
        return None
    begin, end, value = found
    order = np.argsort(begin, kind="stable")
    # Times since the epoch have no nanoseconds in float64.
    origin = int(begin[order[0]])
    begin, end, mhz = begin[order] - origin, end[order] - origin, value[order].astype(np.float64)
    start_ns, end_ns = start_ns - origin, end_ns - origin
    highest = _highest(mhz, union(start_ns, end_ns).covered_within(begin, end))
    if highest <= 0:
        return None
    length = (end - begin).astype(np.float64)
    covered = _within(begin, end, length, start_ns, end_ns)
    cycles = _within(begin, end, length * mhz, start_ns, end_ns)
    known = covered >= _COVERED_MIN_FRAC * np.maximum(end_ns - start_ns, 1)
    mean = cycles / np.where(covered > 0, covered, 1.0)
    return np.where(known, np.clip(mean / highest, 0.0, 1.0), 1.0)


def _highest(clock: F64, time_ns: I64) -> float:
    """What no more than 1 % of the time is above; 0 without time. A single sample may be wrong."""
    order = np.argsort(clock, kind="stable")
    upto = np.cumsum(time_ns[order])
    if not upto[-1]:
        return 0.0
    return float(clock[order[np.searchsorted(upto, _QUANTILE * upto[-1])]])


def _within(begin: I64, end: I64, amount: F64, start_ns: I64, end_ns: I64) -> F64:
    """What samples that do not overlap hold of each stretch; a sample's amount is spread evenly over it."""
    at = np.stack((begin, end), axis=1).ravel().astype(np.float64)
    upto = np.stack((np.cumsum(amount) - amount, np.cumsum(amount)), axis=1).ravel()
    inside: F64 = np.interp(end_ns, at, upto) - np.interp(start_ns, at, upto)
    return inside


def owned_ns(start_ns: I64, end_ns: I64) -> I64:
    """Nanoseconds that each interval owns; they sum to the length of the union. start_ns ascends.

    >>> owned_ns(np.array([0, 5, 20]), np.array([10, 12, 21])).tolist()
    [5, 7, 1]
    """
    owned: I64 = np.maximum(end_ns - start_ns, 0)
    if len(owned) < 2:
        return owned
    reach = np.maximum.accumulate(end_ns)
    overlaps = np.empty(len(owned), bool)
    overlaps[0] = False
    np.less(start_ns[1:], reach[:-1], out=overlaps[1:])
    if not overlaps.any():
        return owned
    # Most kernels run alone: owners are looked for among those that overlap.
    cluster = np.cumsum(~overlaps) - 1
    in_cluster = np.flatnonzero((np.bincount(cluster) > 1)[cluster])
    begin, finish, owner = owners_by_last_end(start_ns[in_cluster], end_ns[in_cluster])
    owned[in_cluster] = sum_by(owner, finish - begin, len(in_cluster))
    return owned


def busy_sm_frac(grid_blocks: I64, sm_count: int | None) -> F64:
    """Share of SM time that blocks of equal work can fill, at best; 1 where nothing is known.

    Some SM runs ceil(blocks / SMs) of them, however many are resident at once, and the launch takes as long
    as that SM: blocks / (SMs x ceil(blocks / SMs)). 132 SMs and 140 blocks: 140 / 264, 0.53.
    """
    if not sm_count:
        return np.ones(len(grid_blocks))
    blocks = np.maximum(grid_blocks, 1)
    return np.where(grid_blocks > 0, blocks / (sm_count * np.ceil(blocks / sm_count)), 1.0)


AT_PEAK, UNKNOWN = 0, 1
PARTS = ("at_peak", "unknown", *CAUSES)
"""Where a nanosecond can go; indices into the columns of a partition."""


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What may be lost, one entry a kernel, for its whole duration."""

    recomputed: Bool
    """Forward work that is done again for the backward pass."""
    contention_ns: I64
    """What it took beyond a run without communication beside it."""
    busy_sm_frac: F64
    """Share of SM time that its blocks can fill."""
    clock_frac: F64
    """The SM clock during it, over the highest; 1 unknown."""


def partition(owned_ns: I64, duration_ns: I64, roofline: Roofline, losses: Losses) -> I64:
    """Nanoseconds of each kernel by part: one row a kernel, one column for each of PARTS.

    Rows sum to owned_ns. A kernel that others own a part of loses of each cause in proportion.
    """
    found = np.zeros((len(owned_ns), len(PARTS)), np.int64)
    share = owned_ns / np.maximum(duration_ns, 1)
    known = ~np.isnan(roofline.flops_ns)
    flops_ns = np.where(known, roofline.flops_ns, 0.0)
    best_ns = np.where(known, roofline.best_ns, 0.0)
    bytes_ns = np.where(known, np.nan_to_num(roofline.bytes_ns), 0.0)
    used_ns, given_out = np.zeros(len(owned_ns)), np.zeros(len(owned_ns), np.int64)

    def take(part: str, ns: F64) -> None:
        """Bounds between parts are rounded, so that the parts are whole and sum to what is owned."""
        nonlocal used_ns, given_out
        used_ns = np.minimum(used_ns + np.maximum(ns, 0.0), duration_ns)
        bound = np.minimum(np.rint(used_ns * share).astype(np.int64), owned_ns)
        found[:, PARTS.index(part)] = bound - given_out
        given_out = bound

    take("at_peak", best_ns)
    take("precision", flops_ns - best_ns)
    take("memory_bound", bytes_ns - flops_ns)
    take("contention", losses.contention_ns.astype(np.float64))
    take("shape", np.where(known, flops_ns * (1 / losses.busy_sm_frac - 1), 0.0))
    # At the highest clock a kernel that computes takes that share of its time; one that HBM bounds as long.
    take("clock", np.where(known & (flops_ns > bytes_ns), duration_ns * (1 - losses.clock_frac), 0.0))
    # Contention is known of kernels whose work is not.
    last = np.where(known, PARTS.index("below_roofline"), UNKNOWN)
    again = losses.recomputed
    found[again] = 0
    last[again] = PARTS.index("recomputation")
    found[np.arange(len(last)), last] += owned_ns - found.sum(axis=1)
    assert not len(found) or int(found.min()) >= 0
    return found
