"""The ledger: a partition of a device's window in which every nanosecond is in exactly one leaf."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, owners_by_last_end, union
from perfdoc.analyzers.device.activity import DIMENSIONS, Activity, Communication
from perfdoc.analyzers.device.idle import Gaps, IdleInputs, find_gaps, idle_by_cause
from perfdoc.analyzers.kernels.parts import sum_by
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
