"""Which runs of a kernel had the device to themselves, and which ran beside communication."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, union
from perfdoc.analyzers.base.rows import kept, picked, row_keys
from perfdoc.analyzers.contention.comparison import LONGEST_NS
from perfdoc.analyzers.device.activity import Activity
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.records import dataclass
from perfdoc.traces.model import Kernels
from perfdoc.traces.table import Bool

SUBJECTS = (KernelClass.NORM, KernelClass.GEMM, KernelClass.ATTENTION)
"""Classes that are looked at: norms, and the large kernels that share the SMs with communication too."""

BESIDE_MIN_FRAC = 0.5
"""A run counts as beside communication where communication was resident for this share of it."""
CROWDED_MIN_FRAC = 0.05
"""A run beside other compute for more than this share of it tells nothing of communication. Below lies the
overlap of a kernel with the next one on its stream (programmatic dependent launch)."""


@dataclass(frozen=True, kw_only=True)
class Signature:
    """Runs of one kernel in one launch shape, taken to do the same work each."""

    name: int
    """Index into Trace.strings."""
    kernel_class: KernelClass
    grid_blocks: int
    block_threads: int


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Runs of kernels of SUBJECTS wholly inside the window, of signatures that ran beside communication at
    least once; and how many of each class there were in all."""

    signatures: list[Signature]
    row: I64
    """Of Trace.kernels, of each run."""
    signature: I64
    """Of each run: index into `signatures`."""
    start_ns: I64
    end_ns: I64
    comm_ns: I64
    """How long communication kernels were resident during the run."""
    crowded: Bool
    """Whether other compute ran beside it."""
    runs: dict[KernelClass, int]

    @cached_property
    def duration_ns(self) -> I64:
        """Length of each run; what claims to be longer than LONGEST_NS counts as that long."""
        length: I64 = np.minimum(self.end_ns - self.start_ns, LONGEST_NS)
        return length

    @cached_property
    def alone(self) -> Bool:
        """Nothing else ran."""
        found: Bool = (self.comm_ns == 0) & ~self.crowded
        return found

    @cached_property
    def beside(self) -> Bool:
        """Communication ran for half of it or more, and no other compute."""
        found: Bool = (self.comm_ns >= BESIDE_MIN_FRAC * self.duration_ns) & ~self.crowded
        return found


def find_samples(view: DeviceView) -> Samples:
    """Sort the runs of norms and large kernels by what ran beside them.

    Communication kernels alone count: copies between GPUs run on copy engines and take no SM. A CUDA graph
    that was traced as a whole counts as other compute.
    """
    kernels, activity, window = view.trace.kernels, view.activity, view.window
    class_of_kind = np.array([k.kernel_class for k in view.kinds.kinds], np.int64)
    of_subjects = np.isin(class_of_kind, SUBJECTS)[picked(view.kinds.kind, activity.kernel_rows)]
    (rows,) = kept(of_subjects, activity.kernel_rows)
    start, end = kernels.start_ns.take(rows), kernels.end_ns.take(rows)
    inside = (start >= window.start_ns) & (end <= window.end_ns) & (end > start)
    rows, start, end = kept(inside, rows, start, end)
    classes = class_of_kind[view.kinds.kind[rows]]
    runs = {c: int((classes == c).sum()) for c in SUBJECTS}

    comm = activity.kernel_comm.covered_within(start, end)
    # Names first: most kernels of most traces are never beside communication, and need no grouping.
    name = full_names(kernels, rows)
    met = np.zeros(len(view.trace.strings), bool)
    met[name[comm > 0]] = True
    rows, start, end, comm, name = kept(met[name], rows, start, end, comm, name)
    first, signature = row_keys(name, kernels.grid_blocks[rows], kernels.block_threads[rows])
    example, names = rows[first], name[first]
    met = np.bincount(signature, weights=comm > 0, minlength=len(first)) > 0
    rows, start, end, comm, signature = kept(met[signature], rows, start, end, comm, signature)
    renumbered = np.cumsum(met) - 1
    crowd = crowded_intervals(activity).covered_within(start, end)
    return Samples(
        signatures=[
            Signature(
                name=text,
                kernel_class=KernelClass(int(class_of_kind[view.kinds.kind[row]])),
                grid_blocks=int(kernels.grid_blocks[row]),
                block_threads=int(kernels.block_threads[row]),
            )
            for row, text in zip(example[met].tolist(), names[met].tolist(), strict=True)
        ],
        row=rows,
        signature=renumbered[signature],
        start_ns=start,
        end_ns=end,
        comm_ns=comm,
        crowded=crowd > CROWDED_MIN_FRAC * (end - start),
        runs=runs,
    )


def full_names(kernels: Kernels, rows: I64) -> I64:
    """Full name of each kernel, an index into Trace.strings; the short one where the format has no other."""
    full = kernels.full_name.take(rows).astype(np.int64)
    return np.where(full > 0, full, kernels.name.take(rows))


def crowded_intervals(activity: Activity) -> Intervals:
    """When two computes or more ran at a time.

    Where intervals come by start, that is where one runs before the latest end so far: at any such time the
    one that started last and an earlier one run.
    """
    start, end = kept(activity.is_compute, activity.start_ns, activity.end_ns)
    if len(start) < 2:
        return union(start[:0], end[:0])
    until = np.minimum(end[1:], np.maximum.accumulate(end)[:-1])
    shared = until > start[1:]
    return union(*kept(shared, start[1:], until))
