"""What each run beside communication took beyond its kernel's runs alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.contention.comparison import Compared
from perfdoc.analyzers.contention.samples import Samples
from perfdoc.analyzers.contention.verdicts import Judged


@dataclass(frozen=True, kw_only=True)
class Excess:
    """By run of a kernel that is slower beside communication for certain."""

    row: I64
    """Of Trace.kernels."""
    ns: I64


NO_EXCESS = Excess(row=np.empty(0, np.int64), ns=np.empty(0, np.int64))


def excess_of(samples: Samples, found: Compared, verdicts: Sequence[Mapping[int, Judged]]) -> Excess:
    """The runs' excesses over the median alone; those of a signature sum to its cost.

    Some runs beside communication are shorter than the median alone, which the cost counts: what is longer is
    scaled down by it.
    """
    slower = np.zeros(len(samples.signatures), bool)
    slower[[i for judged in verdicts for i, j in judged.items() if j.verdict == "slower"]] = True
    if not slower.any():
        return NO_EXCESS
    (runs,) = np.nonzero(samples.beside & slower[samples.signature])
    of = samples.signature[runs]
    beyond = (samples.duration_ns[runs] - found.median_ns[0][of]).astype(np.float64)
    longer = np.maximum(beyond, 0.0)
    total, positive = (np.bincount(of, weights=w, minlength=len(slower)) for w in (beyond, longer))
    scale = np.maximum(total, 0.0) / np.maximum(positive, 1.0)
    return Excess(row=samples.row[runs], ns=(longer * scale[of]).astype(np.int64))
