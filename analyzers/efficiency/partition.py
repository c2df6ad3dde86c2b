"""The partition of compute: the time that each kernel owns, at the peak or lost by a cause."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.efficiency.roofline import Roofline
from perfdoc.results.efficiency import CAUSES
from perfdoc.traces.table import F64, Bool

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
