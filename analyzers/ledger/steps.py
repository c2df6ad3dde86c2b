"""The ledger of a window and of every step in it: the window's ledger cut at the steps' bounds.

Every leaf is a set of disjoint stretches of time, so cutting them gives all steps in one pass, and the steps
sum to the window's ledger exactly, leaf by leaf.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, owners_by_last_end, union
from perfdoc.analyzers.base.rows import kept, sum_by
from perfdoc.analyzers.device.activity import DIMENSIONS, Activity, Communication
from perfdoc.analyzers.device.idle import Gaps, IdleInputs, find_gaps, idle_by_cause
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.records import dataclass
from perfdoc.results.quality import MEASURED, Measured
from perfdoc.results.ranks import ExposedComm, Idle, Ledger


def build_ledger(
    activity: Activity, start_ns: int, end_ns: int, idle: IdleInputs, gaps: Gaps | None = None
) -> Ledger:
    """Partition [start, end) of one device. gaps: as find_gaps has them for these bounds, where at hand."""
    compute = activity.compute.clip(start_ns, end_ns)
    comm = activity.comm.clip(start_ns, end_ns)
    busy = activity.busy.clip(start_ns, end_ns)
    work_ns = compute.total_ns + comm.total_ns - compute.overlap_ns(comm)
    exposed = exposed_by_dimension(activity.communication, compute, start_ns, end_ns)
    # Two ways to the same figure: the owners' segments must cover exactly what compute leaves uncovered.
    assert sum(exposed.values()) == work_ns - compute.total_ns, (exposed, work_ns)
    gaps = find_gaps(activity, start_ns, end_ns) if gaps is None else gaps
    ledger = Ledger(
        compute=compute.total_ns,
        exposed_comm=ExposedComm(**exposed),
        exposed_memcpy=busy.total_ns - work_ns,
        idle=Idle(**idle_by_cause(gaps, start_ns, end_ns, idle)),
    )
    leaves = ledger.by_leaf
    assert min(leaves.values()) >= 0, leaves
    assert ledger.total == end_ns - start_ns, f"ledger sums to {ledger.total} of {end_ns - start_ns} ns"
    return ledger


def exposed_by_dimension(
    communication: Communication, compute: Intervals, start_ns: int, end_ns: int
) -> dict[str, int]:
    """Exposed nanoseconds of [start, end) by dimension.

    Where several communications are exposed at once, a nanosecond goes to one that compute provably waited
    for, and among equals to the one that ends last.
    """
    exposed = np.zeros(len(DIMENSIONS), np.int64)
    for begin, finish, dimension, covered in exposed_pieces(communication, compute):
        begin, finish = np.clip(begin, start_ns, end_ns), np.clip(finish, start_ns, end_ns)
        exposed += sum_by(dimension, finish - begin - covered.covered_within(begin, finish), len(DIMENSIONS))
    return {name: int(exposed[i]) for i, name in enumerate(DIMENSIONS)}


def exposed_pieces(
    communication: Communication, compute: Intervals
) -> Iterator[tuple[I64, I64, I64, Intervals]]:
    """Who owns exposed time: (start, end, index into DIMENSIONS, what of it is not exposed or not theirs)."""
    for begin, finish, row, covered in exposed_owners(communication, compute):
        yield begin, finish, communication.dimension[row], covered


def exposed_owners(
    communication: Communication, compute: Intervals
) -> Iterator[tuple[I64, I64, I64, Intervals]]:
    """As exposed_pieces, with the owner's row of `communication` in place of its dimension.

    First what compute provably waited for, then the rest; each nanosecond to the one that ends last, and
    once. Not clipped to a window, so that it can be cut at the bounds of steps.
    """

    def owned(rows: I64, begin_ns: I64) -> tuple[I64, I64, I64]:
        begin, finish, owner = owners_by_last_end(begin_ns, communication.end_ns[rows])
        return begin, finish, rows[owner]

    covered, since = compute, communication.blocked_since_ns
    if since is not None:
        begin = np.maximum(communication.start_ns, since)
        rows = np.flatnonzero(begin < communication.end_ns)
        yield *owned(rows, begin[rows]), compute
        covered = compute | union(begin[rows], communication.end_ns[rows])
    yield *owned(np.arange(len(communication.start_ns)), communication.start_ns), covered


_EMPTY = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class StepLedgers(Measured):
    """Steps of one device's window in order, and nanoseconds by leaf and step."""

    names: Sequence[str] = ()
    start_ns: I64 = field(default_factory=lambda: _EMPTY)
    duration_ns: I64 = field(default_factory=lambda: _EMPTY)
    leaf_ns: Mapping[str, I64] = field(default_factory=dict)
    """By every name of LEAVES, one figure for each step; those of a step sum to its duration."""
    kernels: I64 = field(default_factory=lambda: _EMPTY)
    """Compute kernels and whole graphs that begin in each step."""
    blocks: I64 = field(default_factory=lambda: _EMPTY)
    """Thread blocks of these launches: they follow the batch, not a clock. -1 where one is unknown."""


def distinct_names(names: Sequence[str]) -> list[str]:
    """Names with the count of their occurrence after those that occur again: `step`, `step (2)`."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


def step_ledgers(view: DeviceView) -> StepLedgers:
    """The ledger of each step of one device."""
    steps = view.window.step_list
    if not steps:
        return StepLedgers.missing(
            f"The window is not made of steps ({view.window.reason}).",
            "Mark steps with ranges, or name them with --step-range.",
        )
    bounds = np.array([*(s.start_ns for s in steps), steps[-1].end_ns], np.int64)
    assert all(a.end_ns == b.start_ns for a, b in itertools.pairwise(steps)), "steps tile"
    compute = np.diff(view.activity.compute.covered_before(bounds))
    busy = np.diff(view.activity.busy.covered_before(bounds))
    exposed = _exposed(view, bounds)
    leaf_ns = {
        "compute": compute,
        **{f"exposed_comm.{d}": exposed[:, i] for i, d in enumerate(DIMENSIONS)},
        "exposed_memcpy": busy - compute - exposed.sum(axis=1),
        **{f"idle.{cause}": ns for cause, ns in _idle(view, bounds).items()},
    }
    duration = np.diff(bounds)
    first = np.searchsorted(view.activity.start_ns[view.activity.is_compute], bounds)
    assert (sum(leaf_ns.values()) == duration).all(), "a step's leaves sum to its duration"
    return StepLedgers(
        **MEASURED,
        names=[s.name for s in steps],
        start_ns=bounds[:-1],
        duration_ns=duration,
        leaf_ns=leaf_ns,
        kernels=np.diff(first),
        blocks=_blocks(view, first),
    )


def _blocks(view: DeviceView, first: I64) -> I64:
    """Of what computes from one of these places to the next."""
    row, known = view.activity.kernel[view.activity.is_compute], view.trace.kernels.grid_blocks
    blocks = np.where(row >= 0, known[np.maximum(row, 0)], -1) if len(known) else np.full(len(row), -1)
    added, unknown = (np.concatenate(([0], np.cumsum(n)))[first] for n in (blocks, blocks <= 0))
    return np.where(np.diff(unknown) > 0, -1, np.diff(added))


def _exposed(view: DeviceView, bounds: I64) -> I64:
    """Exposed communication, steps x DIMENSIONS."""
    size = len(DIMENSIONS)
    total = np.zeros((len(bounds) - 1) * size, np.int64)
    for begin, finish, dimension, covered in exposed_pieces(
        view.activity.communication, view.activity.compute
    ):
        a, b, row, step = cut_at(bounds, begin, finish)
        exposed = b - a - covered.covered_within(a, b)
        total += sum_by(step * size + dimension[row], exposed, len(total))
    return total.reshape(-1, size)


def _idle(view: DeviceView, bounds: I64) -> dict[str, I64]:
    """Idle by cause, as `perfdoc.analyzers.device.idle` has it for the window."""
    steps = len(bounds) - 1
    gaps, inputs = view.gaps, view.idle_inputs  # the steps tile the window
    host = _by_step(bounds, gaps.start_ns, gaps.host_end_ns)
    gc = gc_or_data = np.zeros(steps, np.int64)
    if len(inputs.gc_or_data):
        a, b, _, step = cut_at(bounds, gaps.start_ns, gaps.host_end_ns)
        gc = sum_by(step, inputs.gc.covered_within(a, b), steps)
        gc_or_data = sum_by(step, inputs.gc_or_data.covered_within(a, b), steps)
    found = {"host": host - gc_or_data, "gc": gc, "data": gc_or_data - gc}
    causes = {
        "dependency": gaps.waited,
        "launch_latency": gaps.short & ~gaps.waited,
        "unexplained": ~gaps.short,
    }
    for cause, rows in causes.items():
        found[cause] = _by_step(bounds, *kept(rows, gaps.host_end_ns, gaps.end_ns))
    return found


def _by_step(bounds: I64, start: I64, end: I64) -> I64:
    """Nanoseconds of disjoint, sorted stretches in each step."""
    return np.diff(Intervals(*kept(end > start, start, end)).covered_before(bounds))


def cut_at(bounds: I64, start: I64, end: I64) -> tuple[I64, I64, I64, I64]:
    """Stretches cut at the bounds and clipped to the outer ones: (start, end, input row, step)."""
    start, end = np.clip(start, bounds[0], bounds[-1]), np.clip(end, bounds[0], bounds[-1])
    inner = np.flatnonzero(end > start)
    start, end = start[inner], end[inner]
    first = np.searchsorted(bounds, start, "right") - 1
    pieces = np.searchsorted(bounds, end, "left") - first
    row = np.repeat(np.arange(len(inner)), pieces)
    nth = np.arange(len(row)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    step = first[row] + nth
    return np.maximum(start[row], bounds[step]), np.minimum(end[row], bounds[step + 1]), inner[row], step
