"""The SM clock during kernels, where Nsight sampled it."""

from __future__ import annotations

import re

import numpy as np

from perfdoc.analyzers.base.intervals import I64, union
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.tables.metrics import samples_of
from perfdoc.traces.table import F64

_CLOCK = re.compile(r"(?i)GPC Clock\b")
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
