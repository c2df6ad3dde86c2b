"""The ledger: a partition of a device's window in which every nanosecond is in exactly one leaf."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.activity import DIMENSIONS, Activity, Communication
from perfdoc.analyzers.idle import IDLE_CAUSES, IdleInputs, idle_by_cause
from perfdoc.analyzers.intervals import Intervals, owners_by_last_end


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Nanoseconds by leaf. In order of precedence: compute, exposed communication, exposed copies, idle."""

    window_ns: int
    compute_ns: int
    exposed_comm_ns: Mapping[str, int]
    """By dimension, every dimension present."""
    exposed_memcpy_ns: int
    idle_ns: Mapping[str, int]
    """By cause, every cause present."""

    def __post_init__(self) -> None:
        leaves = [
            self.compute_ns,
            self.exposed_memcpy_ns,
            *self.exposed_comm_ns.values(),
            *self.idle_ns.values(),
        ]
        assert min(leaves) >= 0, leaves
        assert sum(leaves) == self.window_ns, f"ledger sums to {sum(leaves)} of {self.window_ns} ns"


def build_ledger(activity: Activity, start_ns: int, end_ns: int, idle: IdleInputs) -> Ledger:
    """Partition [start, end) of one device."""
    compute = activity.compute.clip(start_ns, end_ns)
    comm = activity.comm.clip(start_ns, end_ns)
    busy = activity.busy.clip(start_ns, end_ns)
    work_ns = compute.total_ns + comm.total_ns - compute.overlap_ns(comm)
    exposed = exposed_by_dimension(activity.communication, compute, start_ns, end_ns)
    # Two ways to the same figure: the owners' segments must cover exactly what compute leaves uncovered.
    assert sum(exposed.values()) == work_ns - compute.total_ns, (exposed, work_ns)
    return Ledger(
        window_ns=end_ns - start_ns,
        compute_ns=compute.total_ns,
        exposed_comm_ns=exposed,
        exposed_memcpy_ns=busy.total_ns - work_ns,
        idle_ns=idle_by_cause(activity, start_ns, end_ns, idle),
    )


def exposed_by_dimension(
    communication: Communication, compute: Intervals, start_ns: int, end_ns: int
) -> dict[str, int]:
    """Exposed nanoseconds of [start, end) by dimension; each goes to the communication that ends last.

    (DESIGN names the dimension that the next compute provably waits for first; that needs event edges
    and belongs to the dimension analysis.)
    """
    begin, finish, owner = owners_by_last_end(communication.start_ns, communication.end_ns)
    begin, finish = np.maximum(begin, start_ns), np.minimum(finish, end_ns)
    inside = finish > begin
    begin, finish, owner = begin[inside], finish[inside], owner[inside]
    exposed = finish - begin - compute.covered_within(begin, finish)
    dimension = communication.dimension[owner]
    return {name: int(exposed[dimension == i].sum()) for i, name in enumerate(DIMENSIONS)}


__all__ = ["DIMENSIONS", "IDLE_CAUSES", "Ledger", "build_ledger", "exposed_by_dimension"]
