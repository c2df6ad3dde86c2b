"""Who takes part in a comparison of ranks, and what each is called."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.analyzers.calls.collective_calls import CollectiveCalls
from perfdoc.analyzers.calls.matches import Member


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Why ranks cannot be compared, and what to do."""

    reason: str
    remedy: str


def members_of(
    ranks: Sequence[CollectiveCalls], world_size: int | None = None
) -> tuple[tuple[Member, ...], Problem | None]:
    """The members in the given order, and what stands in the way of comparing them.

    Where no capture tells its rank, the job's own communicator numbers them. world_size: of the job, where
    it is known beside the captures.
    """
    clocks = {c: i for i, c in enumerate(dict.fromkeys(calls.clock for calls in ranks))}
    named = [(c.rank, c.rank_evidence) for c in ranks]
    if all(rank is None for rank, _ in named):
        known = world_size or max((r.world_size for r in ranks if r.world_size is not None), default=None)
        named = _by_communicator(ranks, known) or named
    named = _one_device_each(ranks, named)
    members = tuple(
        Member(rank=rank, rank_evidence=evidence, label=calls.label, clock=clocks[calls.clock])
        for calls, (rank, evidence) in zip(ranks, named, strict=True)
    )
    return members, _problem(ranks, members)


def _by_communicator(
    ranks: Sequence[CollectiveCalls], world_size: int | None
) -> list[tuple[int | None, str]] | None:
    """Own ranks within the communicator of the whole job, in which every member knows its place.

    The largest one need not be that: the eight ranks of a node are numbered 0 to 7 in their tensor-parallel
    group, whichever node of the job it is. It is the job's if it has as many ranks as the job; where that is
    not known, if nobody is missing from it nor from any other communicator of the captures.
    """
    seats: dict[int, dict[int, int]] = {}
    sizes: dict[int, int] = {}
    for at, calls in enumerate(ranks):
        for group in calls.groups:
            if group.communicator and group.own_in_group is not None and group.size is not None:
                seats.setdefault(group.communicator, {})[at] = group.own_in_group
                sizes[group.communicator] = max(group.size, sizes.get(group.communicator, 0))
    whole = [c for c, own in seats.items() if len(own) == len(ranks) == len(set(own.values()))]
    if not whole:
        return None
    largest = max(whole, key=lambda c: (sizes[c], c))
    if world_size is None:
        is_job = all(len(own) == sizes[c] for c, own in seats.items())
    else:
        is_job = sizes[largest] == world_size
    return [(seats[largest][at], "communicator") for at in range(len(ranks))] if is_job else None


def _one_device_each(
    ranks: Sequence[CollectiveCalls], named: Sequence[tuple[int | None, str]]
) -> list[tuple[int | None, str]]:
    """Of a process's several devices the one that communicates most is the rank."""
    busiest: dict[tuple[str, int, int], int] = {}
    for at, (calls, (rank, _)) in enumerate(zip(ranks, named, strict=True)):
        if rank is not None:
            key = (calls.clock, calls.process, rank)
            if key not in busiest or len(calls) > len(ranks[busiest[key]]):
                busiest[key] = at
    kept = set(busiest.values())
    return [n if n[0] is None or at in kept else (None, "none") for at, n in enumerate(named)]


def _problem(ranks: Sequence[CollectiveCalls], members: Sequence[Member]) -> Problem | None:
    if len(members) < 2:
        return Problem(
            reason="only one rank was given", remedy="Give the captures of several ranks of the job together."
        )
    count = Counter(m.rank for m in members if m.rank is not None)
    twice = next((rank for rank, n in sorted(count.items()) if n > 1), None)
    if twice is not None:
        names = ", ".join(m.label for m in members if m.rank == twice)
        return Problem(
            reason=f"several captures say that they are rank {twice}: {names}",
            remedy="Give one capture of each rank.",
        )
    if not any(len(calls) for calls in ranks):
        return Problem(reason="no rank communicates in the captures", remedy="")
    return None
