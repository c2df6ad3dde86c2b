"""Runs of memory-bound kernels between GEMMs: what fusing each of them could save at most."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.traces.table import Bool

_FUSIBLE = (
    *(KernelClass.ELEMENTWISE, KernelClass.COPY, KernelClass.NORM, KernelClass.SOFTMAX),
    *(KernelClass.REDUCTION, KernelClass.QUANTISATION, KernelClass.RANDOM, KernelClass.LOSS),
)


def is_fusible(classes: I64) -> Bool:
    """Kernels that a compiler or a library fuses with their neighbours."""
    table = np.zeros(len(KernelClass), bool)
    table[list(_FUSIBLE)] = True
    return table[classes]


def fusible_ns(fusible: Bool, stream: I64, duration_ns: I64) -> int:
    """What runs of fusible kernels take beyond the longest of each. Kernels by start.

    One kernel in the place of a run reads and writes at least what one of them does, so that the longest is
    left: 10, 30 and 20 us between two GEMMs of a stream save at most 30 us.
    """
    order = np.argsort(stream, kind="stable")
    fusible, stream, duration = fusible[order], stream[order], duration_ns[order]
    at = np.flatnonzero(fusible)
    if len(at) < 2:
        return 0
    begins = np.empty(len(at), bool)
    begins[0] = True
    begins[1:] = (at[1:] != at[:-1] + 1) | (stream[at[1:]] != stream[at[:-1]])
    first = np.flatnonzero(begins)
    duration = duration[at]
    return int(duration.sum() - np.maximum.reduceat(duration, first).sum())
