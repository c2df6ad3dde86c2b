"""A device that others have too: kernels of several processes at a time, or in turn (time slices).

The kernel at one place of a step does the same work in each step. Where some runs take far longer, all by
about as much or for longer than the kernel itself takes, while the rest of their step is as long as ever and
nothing of this process runs beside them, the device did something else meanwhile, or paused.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, Intervals, union
from perfdoc.analyzers.base.rows import kept, occurrence, picked, row_keys
from perfdoc.analyzers.contention.samples import CROWDED_MIN_FRAC, crowded_intervals, full_names
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.records import dataclass
from perfdoc.results.figures import brief, plural, share
from perfdoc.results.losses import WORTH_A_VERDICT_FRAC, largest_loss
from perfdoc.results.quality import TAKEN
from perfdoc.results.ranks import Ledger
from perfdoc.traces import Note
from perfdoc.traces.table import unique

_SUBJECTS = (
    *(KernelClass.GEMM, KernelClass.NORM, KernelClass.ELEMENTWISE, KernelClass.OPTIMIZER),
    *(KernelClass.REDUCTION, KernelClass.SOFTMAX, KernelClass.CONVOLUTION, KernelClass.COPY),
)
"""Whose work follows from their launch; attention's, and that of experts, from the batch as well."""
MIN_STEPS, MIN_RUNS = 5, 8
_LONGER_NS, _LONGER_FRAC = 300_000, 0.3
"""By so much, and by such a share: a time slice is 1 to 2 ms and more."""
_AS_EVER = 1.05
"""A step of which half takes more times as long has other work, or lower clocks."""
_MOST, _ALIKE_FRAC = 0.75, 0.25
"""Of the runs, so near to what the median run takes longer, or for longer than the kernel itself takes."""
_RARE = 0.45
"""Of the runs at a place: with more of them long, which is usual is not known."""
_IN_A_ROW = 0.5
"""Of the runs, followed by one that takes longer too: a longer micro-batch has longer kernels only."""
_OWED, _SLICE_NS = 6, 2_000_000
"""Runs that a kind owes by its time, and has none: others' work differs. Longer ones are always hit."""
_SPREAD = 0.6
"""Of the places that runs dealt out by chance would hit: at few alone the work differs from step to step."""
_SHARED_FRAC = 0.1
"""Of the time in which the process computes."""


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What a device loses to others, in words, where that is more than it loses otherwise."""

    frac: float
    """Of the window; of what is shared, of the time in which the process computes."""
    said: str


def taken_notes(found: Sequence[Taken]) -> list[Note]:
    """Told of the device that loses most."""
    most = max(found, key=lambda one: one.frac, default=None)
    remedy = (
        "See what else has that GPU meanwhile (`nvidia-smi pmon`; nsys --gpuctxsw=true shows contexts take "
        "turns), and give each process a GPU of its own."
    )
    return [Note(code=TAKEN, message=most.said, remedy=remedy)] if most else []


def taken(view: DeviceView, ledger: Ledger) -> Taken | None:
    """By kernels of other processes on the same GPU, else by runs that take longer than others."""
    computes = view.activity.kernel_compute.clip(view.window.start_ns, view.window.end_ns)
    frac = _others(view).overlap_ns(computes) / max(computes.total_ns, 1)
    lost = max(WORTH_A_VERDICT_FRAC, largest_loss([ledger])[1])
    if frac <= max(_SHARED_FRAC, lost):
        return _interrupted(view, ledger.total * lost)
    said = f"The GPU is shared: in {share(frac)} of the time in which this process computes, "
    return Taken(frac=frac, said=f"{said}kernels of another one run too, so that each may take longer.")


def _others(view: DeviceView) -> Intervals:
    """When kernels of other processes run on the same GPU; instances of one (MIG) are apart."""
    trace, mine = view.trace, view.device
    same = [d.uuid == mine.uuid is not None and d.process != mine.process for d in trace.devices]
    if not any(same) or "MIG" in (mine.gpu_name or ""):
        return EMPTY
    rows = np.flatnonzero(np.array(same)[trace.kernels.device])
    return union(trace.kernels.start_ns[rows], trace.kernels.end_ns[rows])


def _interrupted(view: DeviceView, least_ns: float) -> Taken | None:
    """By the kernels at each place of the steps; None where they lose less than that."""
    kernels, activity, steps = view.trace.kernels, view.activity, view.window.step_list
    begins = np.array([step.start_ns for step in steps], np.int64)
    if len(begins) < MIN_STEPS or activity.on_host:
        return None
    asked = np.isin([kind.kernel_class for kind in view.kinds.kinds], _SUBJECTS)
    (rows,) = kept(asked[picked(view.kinds.kind, activity.kernel_rows)], activity.kernel_rows)
    start, took = kernels.start_ns.take(rows), kernels.end_ns.take(rows) - kernels.start_ns.take(rows)
    # Names first: few kernels of most traces are long enough.
    name, long = full_names(kernels, rows), np.zeros(len(view.trace.strings), bool)
    long[name[took > _LONGER_NS]] = True
    inside = long[name] & (start >= begins[0]) & (start < view.window.end_ns)
    rows, start, took, name = kept(inside, rows, start, took, name)
    order = np.argsort(start, kind="stable")
    rows, start, took, name = rows[order], start[order], took[order], name[order]
    kind = row_keys(name, kernels.grid_blocks[rows], kernels.block_threads[rows])[1]
    step = np.searchsorted(begins, start, "right") - 1
    place = row_keys(kind, occurrence(kind, step))[1]
    start, took, kind, step, place = kept(
        np.bincount(place)[place] == len(begins) if len(place) else place > 0, start, took, kind, step, place
    )
    table = np.lexsort((step, place)).reshape(-1, len(begins))  # a row a place, a column a step
    usual = np.partition(took[table], len(begins) // 4, axis=1)[:, [len(begins) // 4]]
    longer = took[table] - usual
    much = longer > _LONGER_FRAC * usual
    hit = (longer > _LONGER_NS) & much
    of, time_ns = kind[table[:, 0]], (usual * (usual < _SLICE_NS)).ravel()
    time, met = np.bincount(of, time_ns), np.bincount(of, hit.sum(axis=1))
    if (met[time * met.sum() > _OWED * time.sum()] == 0).any():
        return None
    hit &= hit.mean(axis=1, keepdims=True) <= _RARE
    hit &= np.median(took[table] / np.maximum(usual, 1), axis=0) <= _AS_EVER if hit.any() else False
    at, more = table[hit], longer[hit]
    in_a_row = np.isin(at + 1, table[much]).mean() if len(at) else 0.0
    other = activity.comm | activity.copies | crowded_intervals(activity)
    alone = other.covered_within(start[at], start[at] + took[at]) <= CROWDED_MIN_FRAC * took[at]
    at, more = kept(alone, at, more)
    if len(at) < MIN_RUNS or more.sum() < least_ns or in_a_row > _IN_A_ROW:
        return None
    places, runs = np.bincount(kind) / len(begins), np.bincount(kind[at], minlength=int(kind.max()) + 1)
    by_chance = (places * (1 - (1 - 1 / np.maximum(places, 1)) ** runs)).sum()
    if len(unique(place[at])) < _SPREAD * by_chance:
        return None
    median, kinds = np.median(more), len(unique(kind[at]))
    alike = (np.abs(more - median) <= _ALIKE_FRAC * median).mean() >= _MOST
    if not alike and (2 * more >= took[at]).mean() < _MOST:
        return None
    frac, count = float(more.sum()) / view.window.duration_ns, len(steps)
    cost = f"{brief(more.sum() / count)} of the {brief(view.window.duration_ns / count)} step, {share(frac)}"
    said = f"{cost}: some kernels take {brief(median)} longer than at the same place of other steps"
    who = "is shared, or pauses" if kinds > 1 else "may be shared, or their work differs"
    where = f"{len(at):,} of {table.size:,} such kernels, of {plural(kinds, 'kind')}, in "
    where += f"{len(unique(step[at]))} of {len(steps)} steps; nothing of this process runs beside them."
    return Taken(frac=frac, said=f"{said}: the GPU {who}. {where}")
