"""Runs of memory-bound kernels between GEMMs: what fusing each of them could save at most."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.traces.table import F64, Bool

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
    at, first = _runs(fusible, stream)
    if not len(at):
        return 0
    duration = duration_ns[at]
    return int(duration.sum() - np.maximum.reduceat(duration, first).sum())


def fused(fusible: Bool, stream: I64, duration_ns: I64) -> tuple[F64, Bool]:
    """What stays of each kernel where runs are fused, 1 of the longest of each and 0 of its others; and which
    kernels are in runs of several."""
    stays, several = np.ones(len(fusible)), np.zeros(len(fusible), bool)
    at, first = _runs(fusible, stream)
    if len(at):
        length = np.diff(np.append(first, len(at)))
        # By run, the longest first; of equal ones the earliest.
        run = np.repeat(np.arange(len(first)), length)
        order = np.lexsort((-duration_ns[at], run))
        stays[at] = 0.0
        stays[at[order[first]]] = 1.0
        several[at] = (length > 1)[run]
    return stays, several


def _runs(fusible: Bool, stream: I64) -> tuple[I64, I64]:
    """Fusible kernels, run by run, and at which of them each run begins. Kernels by start."""
    order = np.argsort(stream, kind="stable")
    fusible, stream = fusible[order], stream[order]
    at = np.flatnonzero(fusible)
    begins = np.ones(len(at), bool)
    begins[1:] = (at[1:] != at[:-1] + 1) | (stream[at[1:]] != stream[at[:-1]])
    return order[at], np.flatnonzero(begins)
