"""Take a straggler's delay away: between collectives it computes for as long as the others of its group."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.results.replay import WITHOUT_STRAGGLER
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Change, Edit, with_durations
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import median

F64 = NDArray[np.float64]
_UNCERTAINTY_FRAC = 0.15
"""The others may have less to do (uneven data, uneven stages), so that not all of it is a delay."""


def without_straggler(rank: int, dimension: str, name: str = "") -> Edit:
    """Between its matched collectives of a dimension, a rank (its index in the job) computes for as long as
    the median of the other members did what it did there: less, or more.

    name: what the rank is called, if not by its index.
    """

    def apply(rebuilt: Rebuilt, *, alike: bool = False) -> Rebuilt:
        ours = _Computed(rebuilt, DIMENSIONS.index(dimension))
        rows, which, own, peers = ours.compared(rank)
        usual = median(peers.T)
        if usual.sum() >= own.sum():
            raise ValueError(f"{rebuilt.ranks[rank].name} computes no longer than its {dimension} peers")
        factor = np.where(own > 0, usual / np.maximum(own, 1), 1.0)
        if alike:
            factor[:] = usual.sum() / own.sum()
        duration: I64 = rebuilt.graph.duration_ns.copy()
        duration[rows] = np.round(duration[rows] * factor[which]).astype(np.int64)
        return with_durations(rebuilt, duration)

    name = name or f"rank {rank}"
    peers = "peers" if dimension == "unknown" else f"{dimension} peers"
    return Edit(
        name=f"{name} as fast as its {peers}",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("exposed_comm", "compute"),
        assumptions=("the ranks of the group do the same work",),
        # Where ranks differ by chance, so that each waits for the other in turn, that stays.
        variants=(partial(apply, alike=True),),
        tried_with=name,
        late=(name, dimension),
    )


def straggler_of(rebuilt: Rebuilt, dimension: str) -> int | None:
    """The rank (index) that computes longest beyond its peers; where none does, or none can be compared, the
    one that others waited for longest. Who arrives last may have waited for another itself, as all stages of
    a pipeline do for the slow one. None where no collective of the dimension was matched."""
    ours = _Computed(rebuilt, DIMENSIONS.index(dimension))
    if not ours.meets:
        return None
    longer = np.zeros(len(rebuilt.ranks))
    for i in range(len(longer)):
        with suppress(ValueError):
            _, _, own, peers = ours.compared(i)
            longer[i] = own.sum() - median(peers.sum(axis=1))
    return int(np.argmax(longer)) if longer.max(initial=0) > 0 else last_to_arrive(rebuilt, dimension)


class _Computed:
    """What ranks compute between their matched collectives of a dimension."""

    def __init__(self, rebuilt: Rebuilt, dimension: int) -> None:
        self._rebuilt = rebuilt
        self._meetings = _meetings(rebuilt, dimension)
        self.meets = any(map(len, self._meetings))
        """Whether any collective of the dimension was matched; else nothing is compared."""
        self._rows = rebuilt.by_launch if self.meets else []
        self._stretch = [
            np.searchsorted(arrivals[:, 1], rebuilt.start_ns[rows], "right")
            for arrivals, rows in zip(self._meetings, self._rows, strict=self.meets)
        ]
        """How many of a rank's arrivals came before each computation began."""

    def compared(self, rank: int) -> tuple[I64, I64, F64, F64]:
        """(computations of a rank, in which stretch between its collectives each is, how long it computed in
        each stretch, (peers, stretches) how long peers did the same). ValueError, one line, where nobody
        compares.

        On a GPU collectives run beside kernels, and whose come first differs: there the n-th computation of a
        rank is compared with the n-th of its peers, and where they have more or fewer, all with all. On a CPU
        rank collectives come in order, and pieces differ.
        """
        meetings, rebuilt = self._meetings, self._rebuilt
        mine = meetings[rank] if 0 <= rank < len(meetings) else np.empty((0, 2), np.int64)
        if not len(mine):
            raise ValueError(f"rank {rank} has no matched collective of this kind")
        peers = [i for i, o in enumerate(meetings) if i != rank and np.array_equal(o[:, 0], mine[:, 0])]
        if not peers:
            raise ValueError(f"no rank shares all collectives with {rebuilt.ranks[rank].name}")
        rows = self._rows[rank]
        which = {i: self._stretch[i] for i in (rank, *peers)} if rebuilt.ranks[rank].on_host else {}
        if not which:
            alike = all(len(self._rows[i]) == len(rows) for i in peers)
            own = self._stretch[rank]
            which = {i: own if alike else np.zeros(len(self._rows[i]), np.int64) for i in (rank, *peers)}
        took = rebuilt.graph.duration_ns
        sums = [np.bincount(w, took[self._rows[i]], len(mine) + 1) for i, w in which.items()]
        totals = np.stack(sums).astype(np.float64)
        return rows, which[rank], totals[0], totals[1:]


def last_to_arrive(rebuilt: Rebuilt, dimension: str) -> int | None:
    """The rank (index) that the others of its matched collectives of a dimension waited for longest in all;
    None where there are none."""
    arrival, meeting = _arrivals(rebuilt, DIMENSIONS.index(dimension))
    if not len(arrival):
        return None
    order = np.lexsort((rebuilt.start_ns[arrival], meeting))
    arrival, meeting = arrival[order], meeting[order]
    last = np.append(meeting[1:] != meeting[:-1], True)
    which = np.cumsum(np.concatenate(([0], last[:-1])))
    at = rebuilt.start_ns[arrival]
    waited = np.bincount(which, at[last][which] - at)
    caused = np.bincount(rebuilt.graph.rank[arrival[last]], waited, len(rebuilt.ranks))
    return int(np.argmax(caused))


def _arrivals(rebuilt: Rebuilt, dimension: int) -> tuple[I64, I64]:
    """At matched collectives of a dimension: (arrival, meeting)."""
    arrival, meeting = rebuilt.met
    mine = rebuilt.dimension[arrival] == dimension
    return arrival[mine], meeting[mine]


def _meetings(rebuilt: Rebuilt, dimension: int) -> list[I64]:
    """By rank: (meeting, measured arrival) of its matched collectives of a dimension, by arrival."""
    arrival, meeting = _arrivals(rebuilt, dimension)
    both = np.stack((meeting, rebuilt.start_ns[arrival]), axis=1)
    order = np.argsort(both[:, 1], kind="stable")
    return [both[order[mine]] for mine in rebuilt.by_rank(arrival[order])]


def _slowest_as_fast(rebuilt: Rebuilt, dimension: str) -> Edit | None:
    if len(rebuilt.ranks) < 2 or (late := straggler_of(rebuilt, dimension)) is None:
        return None
    return without_straggler(late, dimension, rebuilt.ranks[late].name)


_GROUPS = {**{d: f"{d.upper()} group" for d in ("dp", "tp", "cp", "ep")}, "unknown": "group"}
CHANGES = tuple(
    Change(
        key=WITHOUT_STRAGGLER + dimension,
        title=f"{{}} as fast as the rest of its {group}",
        family="straggler",
        rule="PD303",
        time="waits",
        make=partial(_slowest_as_fast, dimension=dimension),
    )
    for dimension, group in _GROUPS.items()
)
