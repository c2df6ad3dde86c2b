"""The compute of one device against its roofline."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from functools import partial
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.base.ceilings import ceilings_of
from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import sum_by
from perfdoc.analyzers.contention.cost import Excess
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.efficiency.bounds import KernelBounds, bounds_of, fused, fusible_ns, is_fusible
from perfdoc.analyzers.efficiency.partition import (
    PARTS,
    UNKNOWN,
    Losses,
    busy_sm_frac,
    clock_frac,
    owned_ns,
    partition,
)
from perfdoc.analyzers.efficiency.roofline import Roofline, believed, rooflines
from perfdoc.analyzers.efficiency.tables import Operators, class_efficiency, efficiency_of, operators_of
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernels.attributed import AttributedKernels
from perfdoc.analyzers.kernels.part_names import PARTS as MODEL_PARTS
from perfdoc.analyzers.kernels.part_names import Phase
from perfdoc.analyzers.work.kernels import kernel_work
from perfdoc.analyzers.work.operator_work import NONE, KernelWork
from perfdoc.results.ceilings import Ceilings
from perfdoc.results.efficiency import ClassEfficiency, KernelEfficiency, OperatorEfficiency
from perfdoc.results.kernels import PHASES
from perfdoc.traces.table import F64, Bool

MATRIX = ("gemm", "grouped_gemm", "attention", "convolution")
"""Kinds of operators, and classes of kernels, whose FLOPs are held against a peak; memory bounds others."""
GRAPH = "cuda_graph"
"""Class of whole CUDA graphs, whose kernels are unseen."""
_AT_ONCE = 1 << 18
"""Kernels taken together, so that two million need no gigabyte."""
BoundsUntil: TypeAlias = Callable[[int], KernelBounds | None]
"""What kernels that start before a time would take at their bounds."""


def device_efficiency(
    view: DeviceView, kernels: AttributedKernels | None, excess: Excess, compute_ns: int
) -> tuple[KernelEfficiency, BoundsUntil]:
    """The partition of a device's compute; and what gives the bounds of its kernels.

    kernels: as attributed_kernels has them. excess: as norm_contention has it. compute_ns: the ledger's leaf,
    which the parts sum to.
    """
    if view.activity.on_host:
        return KernelEfficiency.missing("the rank trains on the CPU, which runs no kernels"), _no_bounds
    if not compute_ns:
        return KernelEfficiency.missing("nothing computed inside the window"), _no_bounds
    ceilings = ceilings_of(view.facts, view.device.gpu_name)
    rows: list[ClassEfficiency] = []
    operators: list[OperatorEfficiency] = []
    at_bounds: BoundsUntil = _no_bounds
    notes: list[str] = []
    fusible, known_ns = 0, 0
    if kernels is not None:
        computing = _Computing(view, kernels, excess)
        work = kernel_work(view, computing.rows, kernels)
        roofline = computing.roofline(work, ceilings, view.facts.dtype)
        if (right := believed(work, roofline.too_fast, computing.whole_ns)) is not work:
            work, roofline = right, computing.roofline(right, ceilings, view.facts.dtype)
        rows, idle_sms_ns = computing.table(work, roofline, ceilings)
        known_ns = int(computing.owned_ns[~np.isnan(roofline.flops_ns)].sum())
        found = operators_of(work, roofline, computing.inside_ns, computing.whole_ns)
        operators = found.rows
        at_bounds = partial(computing.bounds, found, idle_sms_ns)
        fusible = min(computing.fusible_ns, compute_ns)
        if fast := int(roofline.too_fast.sum()):
            notes.append(
                f"{fast:,} kernels are faster than their FLOPs at the peak, so their work or the peak is "
                "wrong: they count as unknown"
            )
        if known_ns and computing.clock_frac is None:
            notes.append("the SM clock was not sampled: what it takes is part of what is below the roofline")
        if ceilings.reason:
            notes.append(f"no rates of this device: {ceilings.reason}")
        notes += [f"the work of kernels is not known: {work.reason}"] if work.reason else work.notes
    seen_ns = sum(r.time_ns for r in rows)
    if graphs_ns := compute_ns - seen_ns:
        parts = {"unknown": graphs_ns}
        rows.append(
            class_efficiency(
                GRAPH, kernels=0, parts_ns=parts, known_ns=0, flops=None, bytes_=None, roofline_ns=0
            )
        )
    assert min(r.time_ns for r in rows) >= 0
    assert sum(r.time_ns for r in rows) == compute_ns, (rows, compute_ns)
    said = _said(ceilings, {o.dtype for o in operators if o.kernel_class in MATRIX}, view.facts.dtype)
    efficiency = efficiency_of(
        rows,
        compute_ns=compute_ns,
        known_ns=known_ns,
        fusible_ns=fusible,
        operators=operators,
        ceilings=said,
        notes=notes,
    )
    return efficiency, at_bounds


def _no_bounds(_until_ns: int) -> None:
    return None


class _Computing:
    """The kernels of the window that are not communication, by start; one entry each."""

    def __init__(self, view: DeviceView, kernels: AttributedKernels, excess: Excess) -> None:
        mine = np.flatnonzero(~kernels.is_comm)
        self.rows = kernels.rows[mine]
        self.classes = kernels.classes[mine]
        self.part, self.phase = kernels.found.part[mine], kernels.found.phase[mine]
        self.inside_ns = kernels.duration_ns[mine]
        """Durations clipped to the window."""
        table, window = view.trace.kernels, view.window
        start, end = table.start_ns[self.rows], table.end_ns[self.rows]
        self.whole_ns: I64 = end - start
        self.owned_ns = owned_ns(np.maximum(start, window.start_ns), np.minimum(end, window.end_ns))
        self._view = view
        self.stream = table.stream[self.rows]
        self.blocks = table.grid_blocks[self.rows]
        self.sm_count = view.device.sm_count
        self.clock_frac = clock_frac(view, start, end)
        self.excess_ns = np.zeros(len(mine), np.int64)
        if len(excess.row):
            by_row = np.zeros(len(table), np.int64)
            by_row[excess.row] = excess.ns
            self.excess_ns = by_row[self.rows]

    def roofline(self, work: KernelWork, ceilings: Ceilings, job_dtype: str | None) -> Roofline:
        """Of each kernel."""
        matrix = np.empty(0, bool) if work.of_none else _is_matrix(work, self.classes)
        return rooflines(work, matrix, self.whole_ns, ceilings, job_dtype)

    def table(
        self, work: KernelWork, roofline: Roofline, ceilings: Ceilings
    ) -> tuple[list[ClassEfficiency], I64]:
        """Time and work by class, part of the model and phase; and of each kernel's owned_ns, what
        SMs without blocks lose in GEMMs."""
        idle_sms_ns = np.zeros(len(self.rows), np.int64)
        code = (self.classes * len(MODEL_PARTS) + self.part) * len(PHASES) + self.phase
        size = len(KernelClass) * len(MODEL_PARTS) * len(PHASES)
        parts = np.zeros((size, len(PARTS)), np.int64)
        known = ~np.isnan(roofline.flops_ns)
        again = self.phase == Phase.RECOMPUTE
        told = known | again | (self.excess_ns > 0)
        parts[:, UNKNOWN] = sum_by(code[~told], self.owned_ns[~told], size)
        for chunk in np.array_split(np.flatnonzero(told), 1 + int(told.sum()) // _AT_ONCE):
            found = partition(
                self.owned_ns[chunk],
                self.whole_ns[chunk],
                roofline.at(chunk),
                Losses(
                    recomputed=again[chunk],
                    contention_ns=self.excess_ns[chunk],
                    busy_sm_frac=self._busy_sms(chunk, ceilings),
                    clock_frac=np.ones(len(chunk)) if self.clock_frac is None else self.clock_frac[chunk],
                ),
            )
            gemm = self.classes[chunk] == KernelClass.GEMM
            idle_sms_ns[chunk] = np.where(gemm, found[:, PARTS.index("shape")], 0)
            for column in range(len(PARTS)):
                parts[:, column] += sum_by(code[chunk], found[:, column], size)
        kernels = np.bincount(code, minlength=size)
        at = np.flatnonzero(known)
        code, inside_ns = code[at], self.inside_ns[at]
        share = inside_ns / np.maximum(self.whole_ns[at], 1)
        known_ns = sum_by(code, inside_ns, size)
        needs_ns = np.bincount(code, weights=roofline.at(at).needs_ns * share, minlength=size)
        flops, moved = (_sums(code, column[at] * share, size) for column in (work.flops, work.bytes))
        rows = []
        for c in np.flatnonzero(kernels).tolist():
            kernel_class, rest = divmod(c, len(MODEL_PARTS) * len(PHASES))
            part, phase = divmod(rest, len(PHASES))
            rows.append(
                class_efficiency(
                    KernelClass(kernel_class).name.lower(),
                    MODEL_PARTS[part],
                    PHASES[phase],
                    kernels=int(kernels[c]),
                    parts_ns=dict(zip(PARTS, parts[c].tolist(), strict=True)),
                    known_ns=int(known_ns[c]),
                    flops=float(flops[c]) or None,
                    bytes_=float(moved[c]) or None,
                    roofline_ns=round(float(needs_ns[c])),
                )
            )
        return rows, idle_sms_ns

    @property
    def fusible_ns(self) -> int:
        """What fusing runs of memory-bound kernels could save at most."""
        return fusible_ns(self._fusible, self.stream, self.inside_ns)

    @property
    def _fusible(self) -> Bool:
        # A transducer's loss goes from frame to frame: no fusion shortens that.
        steps = np.array([k.label == "transducer" for k in self._view.kinds.kinds], bool)
        mine: Bool = is_fusible(self.classes) & (self.phase != Phase.OPTIMIZER)
        mine &= ~steps[self._view.kinds.kind[self.rows]]
        return mine

    def bounds(self, operators: Operators, idle_sms_ns: I64, until_ns: int) -> KernelBounds | None:
        """What stays of the time of each kernel that starts by then at its bounds. idle_sms_ns: as of
        `table`."""
        view = self._view
        count = bisect_left(self.rows, until_ns, key=view.trace.kernels.start_ns.__getitem__)
        row = np.full(len(view.trace.kernels), NONE, np.int64)
        of_activity = view.activity.kernel[: np.searchsorted(view.activity.start_ns, until_ns)]
        row[of_activity[of_activity >= 0]] = np.flatnonzero(of_activity >= 0)
        operator = np.full(count, NONE, np.int64)
        mine = operators.kernel < count
        operator[operators.kernel[mine]] = operators.row[mine]
        stays, in_run = fused(self._fusible[:count], self.stream[:count], self.inside_ns[:count])
        idle_sms = idle_sms_ns[:count] / np.maximum(self.owned_ns[:count], 1)
        return bounds_of(row[self.rows[:count]], operators.rows, operator, idle_sms, stays, in_run)

    def _busy_sms(self, chunk: I64, ceilings: Ceilings) -> np.ndarray:
        """Blocks of attention do unequal work: causal masks leave some with little."""
        gemm = np.isin(self.classes[chunk], (KernelClass.GEMM, KernelClass.CONVOLUTION))
        return np.where(gemm, busy_sm_frac(self.blocks[chunk], self.sm_count or ceilings.sm_count), 1.0)


def _said(ceilings: Ceilings, dtypes: Collection[str], job_dtype: str | None) -> list[str]:
    """Those that kernels of these dtypes are held against, in words."""
    short = {"bf16", "fp16"} if not {"fp32", "tf32"}.isdisjoint(dtypes) else set[str]()
    against = {*dtypes, *short, *({job_dtype} if dtypes else ())}
    said = [ceiling.text for dtype, ceiling in ceilings.flops.items() if dtype in against]
    return said + ([ceilings.memory.text] if ceilings.memory is not None else [])


def _is_matrix(work: KernelWork, classes: I64) -> Bool:
    """By the operator where it is known, else by the kernel's name."""
    by_class = np.array([k.name.lower() in MATRIX for k in KernelClass], bool)[classes]
    by_operator = np.array([o.kind in MATRIX for o in work.operators] + [False], bool)[work.operator]
    return np.where(work.operator >= 0, by_operator, by_class)


def _sums(code: I64, values: F64, size: int) -> F64:
    """Of those that are known."""
    which = ~np.isnan(values)
    sums: F64 = np.bincount(code[which], weights=values[which], minlength=size).astype(np.float64)
    return sums
