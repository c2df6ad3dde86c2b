"""Which ranks are the stages of a pipeline, in which order, as their messages tell."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.pipeline.operations import MESSAGE, RankOperations

Chain: TypeAlias = tuple[int, ...]
"""Global ranks, first stage first; not all of them need be captured."""


def find_chains(ranks: Sequence[RankOperations]) -> list[list[Chain]]:
    """For each pipeline the orders that its stages may have; empty where messages tell none.

    By the other sides that sends and receives name; of ranks that only have batched messages by the members
    of their group, in its order or from its end. A path whose ends were not captured goes on in its group.
    """
    near: dict[int, set[int]] = defaultdict(set)
    listed: set[Chain] = set()
    every: set[Chain] = set()
    before: dict[int, int] = {}
    starts: set[int] = set()
    for r in ranks:
        rows = np.flatnonzero((r.kind == MESSAGE) & (r.peer >= 0))
        own = -1 if r.rank is None else r.rank
        for i in rows.tolist():
            other = int(r.peer[i])
            if other != own:
                near[own].add(other)
                near[other].add(own)
        first = next(iter(np.flatnonzero(r.kind == MESSAGE).tolist()), None)
        if first is not None and r.peer[first] >= 0 and r.operation[first] in ("send", "recv"):
            # The first stage begins with its own work; the others wait for the one before them.
            a, b = (own, int(r.peer[first]))[:: 1 if r.operation[first] == "send" else -1]
            before[b] = a
            starts |= {own} if r.operation[first] == "send" else set()
        numbers = np.unique(r.group[r.kind == MESSAGE]).tolist()
        groups = {r.groups[g].ranks for g in numbers if g >= 0}
        groups = {g for g in groups if own in g and len(set(g)) == len(g) > 1}
        every |= groups
        listed |= groups if not len(rows) else set()
    captured = {r.rank for r in ranks if r.rank is not None}
    chains = []
    for path in _paths(near):
        ways = _oriented(path, before)
        if len(path) > 2 and path[-1] in near[path[0]]:
            ways = _turned(ways, starts)
        # Stages of one pipeline with others between them that were not captured are one chain.
        if (whole := _whole(ways, every, captured)) not in chains:
            chains.append(whole)
    joined = {rank for ways in chains for rank in ways[0]} if all(chains) else set()
    if not all(chains):
        return []
    for group in sorted(listed):
        if not joined & set(group):
            chains.append([group, group[::-1]])
            joined |= set(group)
    return chains


def _paths(near: dict[int, set[int]]) -> list[list[int]]:
    """Each set of ranks that messages join, from one end to the other, or around the ring that stages of
    several chunks are; empty where it is neither."""
    left = set(near)
    found: list[list[int]] = []
    while left:
        seen, queue = set(), [min(left)]
        while queue:
            rank = queue.pop()
            if rank not in seen:
                seen.add(rank)
                queue += near[rank] - seen
        left -= seen
        ends = sorted(rank for rank in seen if len(near[rank]) == 1)
        is_ring = not ends and len(seen) > 2
        if (len(ends) != 2 and not is_ring) or any(len(near[rank]) > 2 for rank in seen):
            found.append([])
            continue
        path = ends[:1] or [min(seen)]
        while len(path) < len(seen):
            path.append(min(near[path[-1]] - set(path[-2:])))
        found.append(path)
    return found


def _oriented(path: list[int], before: dict[int, int]) -> list[Chain]:
    """The path from its first stage; both ways where nothing says which end that is, none where ranks
    contradict each other."""
    place = {rank: i for i, rank in enumerate(path)}
    steps = {place[b] - place[a] for b, a in before.items() if a in place and b in place}
    # Around a ring the last one is beside the first.
    around = {len(path) - 1: -1, 1 - len(path): 1} if len(path) > 2 else {}
    ways = {around.get(step, step) > 0 for step in steps if abs(around.get(step, step)) == 1}
    if not path or len(ways) > 1:
        return []
    both = [tuple(path), tuple(path[::-1])]
    return both if not ways else [both[0] if ways == {True} else both[1]]


def _turned(ways: list[Chain], starts: Collection[int]) -> list[Chain]:
    """The orders of a ring from each rank that may be its first stage: its first message is a send."""
    every = [way[i:] + way[:i] for way in ways for i in range(len(way))]
    return [way for way in every if way[0] in starts] or every


def _whole(ways: list[Chain], groups: Collection[Chain], captured: Collection[int]) -> list[Chain]:
    """The orders with what lies beyond their ends. The schedule of the last stages is the same whatever lies
    before them: an order that begins with a rank that was not captured needs a group that lists it. Where
    both ends were captured there may be more behind the last: the schedule tells."""
    found = []
    for way in ways:
        around = [g for one in groups for g in (one, one[::-1]) if _holds(g, way)]
        both = way[0] in captured and way[-1] in captured
        if both or (way[0] in captured and not around):
            found.append(way)
        if around:
            found.append(max(around, key=len))
    return list(dict.fromkeys(found))


def _holds(group: Chain, way: Chain) -> bool:
    """Whether ranks follow one another in a group as in the order, or around it."""
    if way[0] not in group:
        return False
    at = group.index(way[0])
    return (group + group)[at : at + len(way)] == way
