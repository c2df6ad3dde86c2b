"""How much of each kernel's time stays at the bounds that advice names; the replay takes it from there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.efficiency.gemms import best_frac, bound_by_flops, padded
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.records import dataclass
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.traces.table import F32, F64, Bool

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


BOUNDS = ("padded_gemms", "full_waves", "gemms_at_best", "fused_runs")
"""Columns of KernelBounds:

padded_gemms: GEMMs of odd sizes as fast as others of the capture, see gemms.padded.
full_waves: GEMMs without the time in which SMs have no blocks.
gemms_at_best: GEMMs that FLOPs bound at the share of the roofline that the best of them reaches.
fused_runs: of runs of memory-bound kernels the longest alone.
"""


@dataclass(frozen=True, kw_only=True, eq=False)
class KernelBounds:
    """Kernels of a device of which one of the bounds says something."""

    row: I64
    """Of Activity, ascending."""
    stays_frac: F32
    """Of its duration: one row a kernel, one column for each of BOUNDS; 1 where a bound says nothing."""
    in_run: Bool
    """Whether it is one of a run of memory-bound kernels, the longest included."""
    padded_by_peers: bool
    """Whether `padded_gemms` is at the rate of other GEMMs of the capture; else at the roofline."""

    def stays(self, row: I64, bound: str) -> F64:
        """Of the durations of some rows of Activity."""
        found, there = self._places(row)
        of_bound = self.stays_frac[found, BOUNDS.index(bound)]
        stays: F64 = np.where(there, of_bound, 1.0).astype(np.float64)
        return stays

    def of_runs(self, row: I64) -> Bool:
        """`in_run` of some rows of Activity."""
        found, there = self._places(row)
        return there & self.in_run[found]

    def has(self, bound: str) -> bool:
        """Whether it says something of any kernel."""
        return bool((self.stays_frac[:, BOUNDS.index(bound)] < 1).any())

    def _places(self, row: I64) -> tuple[I64, Bool]:
        """Where each row is, and whether it is; there is at least one."""
        found = np.minimum(np.searchsorted(self.row, row), len(self.row) - 1)
        return found, self.row[found] == row


def operators_at_bound(operators: Sequence[OperatorEfficiency]) -> tuple[F64, bool]:
    """For each operator, and last for what is of none, what stays of its time by the two bounds of operators:
    columns padded_gemms and gemms_at_best. And whether the first is by peers."""
    odd = padded(operators)
    best = best_frac(operators)
    held = {id(o) for o in bound_by_flops(operators)} if best else set[int]()
    at_best = [min((o.roofline_frac or 0.0) / best, 1.0) if id(o) in held else 1.0 for o in operators]
    return np.array([(*odd.stays_frac, 1.0), (*at_best, 1.0)], np.float64).T, odd.by_peers


def bounds_of(
    row: I64,
    operators: Sequence[OperatorEfficiency],
    operator: I64,
    idle_sms_frac: F64,
    fused_frac: F64,
    in_run: Bool,
) -> KernelBounds | None:
    """row: of Activity; operator: index into `operators`, -1 none; one entry a kernel. None where no bound
    says anything of any kernel.

    idle_sms_frac: of its time, in which SMs have no blocks. fused_frac, in_run: see runs.fused.
    """
    of_operator, by_peers = operators_at_bound(operators)
    stays = np.ones((len(row), len(BOUNDS)), np.float32)
    stays[:, BOUNDS.index("padded_gemms")] = of_operator[operator, 0]
    stays[:, BOUNDS.index("full_waves")] = 1 - idle_sms_frac
    stays[:, BOUNDS.index("gemms_at_best")] = of_operator[operator, 1]
    stays[:, BOUNDS.index("fused_runs")] = fused_frac
    said = np.flatnonzero(in_run | (stays < 1).any(axis=1))
    said = said[np.argsort(row[said], kind="stable")]
    if not len(said):
        return None
    return KernelBounds(row=row[said], stays_frac=stays[said], in_run=in_run[said], padded_by_peers=by_peers)
