"""The schedule of a pipeline as its messages show it: which rank is which stage, how many micro-batches there
are, and which stretch of work is the forward or the backward pass of which.

Without ranges and settings. What a pass takes in and gives away follows from its stage and its kind; so a
schedule says what messages lie between two stretches of work, and those that were recorded must be these. A
batched message does not say which way it goes: the schedule does. Where several schedules fit, none is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from perfdoc.analyzers.pipeline.chains import Chain, find_chains
from perfdoc.analyzers.pipeline.operations import MESSAGE, RankOperations
from perfdoc.analyzers.pipeline.step_parts import Parts, cut_by_messages

Pass: TypeAlias = tuple[bool, int]
"""(forward?, micro-batch)"""
Key: TypeAlias = tuple[bool, int, int, int]
"""A message: (forward?, sending stage, receiving stage, micro-batch)."""

BATCHED = frozenset({"send_recv", "coalesced"})
MAX_MICRO_BATCHES = 512


@dataclass(frozen=True, kw_only=True)
class RankSchedule:
    """One rank's step."""

    stage: int
    pipeline: int
    """Which of the job's pipelines it is in."""
    passes: Mapping[int, tuple[Pass, ...]]
    """By index of compute: the passes that it is, or a part of; two where one follows the other in it."""
    messages: Mapping[int, frozenset[Key]]
    """By index of a message what it carries."""


@dataclass(frozen=True, kw_only=True)
class JobSchedule:
    """What the messages of all ranks tell."""

    reason: str
    """Why nothing is known; empty where it is."""
    pp: int | None = None
    micro_batches: int | None = None
    name: str = ""
    ranks: tuple[RankSchedule | None, ...] = ()
    """By position; None of a rank that has no part in it."""
    pipelines: tuple[Chain, ...] = ()
    """Global ranks, first stage first."""


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """A schedule that fits a pipeline."""

    chain: Chain
    name: str
    micro_batches: int
    ranks: Mapping[int, RankSchedule]
    """By global rank."""


def find_schedule(ranks: Sequence[RankOperations]) -> JobSchedule:
    """Look at the operations of all ranks."""
    speaking = {r.rank: i for i, r in enumerate(ranks) if (r.kind == MESSAGE).any()}
    if not speaking:
        return JobSchedule(reason="no messages between stages are in the captures")
    if None in speaking or len(speaking) < sum(bool((r.kind == MESSAGE).any()) for r in ranks):
        return JobSchedule(reason="the captures do not say which ranks they are of")
    chains = find_chains([ranks[i] for i in speaking.values()])
    if not chains:
        return JobSchedule(reason="messages do not tell which ranks are neighbours")
    parts = {rank: cut_by_messages(ranks[i]) for rank, i in speaking.items() if rank is not None}
    of_rank = {rank: ranks[i] for rank, i in speaking.items() if rank is not None}
    found: list[RankSchedule | None] = [None] * len(ranks)
    chosen: list[_Reading] = []
    for number, ways in enumerate(chains):
        readings: dict[object, _Reading] = {}
        for one in (r for chain in ways for r in _readings(chain, of_rank, parts, number)):
            said = tuple((rank, r.stage, tuple(r.passes.items())) for rank, r in one.ranks.items())
            readings.setdefault(said, one)
        likely = most_alike(list(readings.values()), of_rank)
        if likely is None:
            few = "fit no schedule that is known" if not readings else "fit several schedules"
            return JobSchedule(reason=f"the messages of a step {few}")
        chosen.append(likely)
        for rank, schedule in likely.ranks.items():
            found[speaking[rank]] = schedule
    if len({(len(c.chain), c.name, c.micro_batches) for c in chosen}) > 1:
        return JobSchedule(reason="the pipelines of the job have different schedules")
    first = chosen[0]
    return JobSchedule(
        reason="",
        pp=len(first.chain),
        micro_batches=first.micro_batches,
        name=first.name,
        ranks=tuple(found),
        pipelines=tuple(c.chain for c in chosen),
    )


def _readings(
    chain: Chain, of_rank: Mapping[int, RankOperations], parts: Mapping[int, Parts], pipeline: int
) -> Iterator[_Reading]:
    """The schedules that fit all captured ranks of a pipeline."""
    pp = len(chain)
    mine = [(stage, rank) for stage, rank in enumerate(chain) if rank in parts]
    most = min(MAX_MICRO_BATCHES, max(len(parts[rank].blocks) for _, rank in mine) + 1)
    for name, ahead in _SCHEDULES.items():
        for count in range(1, most + 1):
            fitted: dict[int, RankSchedule] = {}
            for stage, rank in mine:
                order = _order(min(count, count if ahead is None else ahead * (pp - 1 - stage)), count)
                fit = _fit(order, stage, chain, of_rank[rank], parts[rank])
                if fit is None:
                    break
                fitted[rank] = RankSchedule(stage=stage, pipeline=pipeline, passes=fit[0], messages=fit[1])
            else:
                yield _Reading(chain=chain, name=name, micro_batches=count, ranks=fitted)


_SCHEDULES: dict[str, int | None] = {"1F1B": 1, "eager 1F1B": 2, "all forwards first": None}
"""Forward passes of a stage before the one that its first backward pass follows, by stages behind it; None:
all (Narayanan et al. 2021, arXiv 2104.04473; eager: with messages beside compute, twice as many)."""


STRANGE = 0.5
"""Of the kernels' names in passes of a kind on a rank: those that the usual pass lacks. More, and they are no
passes of one kind."""
CLEARLY = 0.5
"""A reading is taken if its passes of a kind differ less than this part of what they do in any other."""


def most_alike(readings: Sequence[_Reading], of_rank: Mapping[int, RankOperations]) -> _Reading | None:
    """The reading whose forward passes are like one another, and its backward passes: what runs in them, else
    how long they take; None where none stands out."""
    costs = np.array([_unlikeness(r, of_rank) for r in readings])
    if len(readings) < 2:
        return readings[0] if readings and costs[0, 0] < STRANGE else None
    for cost in costs.T:
        first, second, *_ = np.sort(cost).tolist()
        if first < CLEARLY * second:
            return readings[int(cost.argmin())]
    return None


def _unlikeness(reading: _Reading, of_rank: Mapping[int, RankOperations]) -> tuple[float, float]:
    """How much kernels' names, and how much lengths, differ between passes of one kind on one rank."""
    names, lengths, kinds = 0.0, 0.0, 0
    for rank, schedule in reading.ranks.items():
        operations = of_rank[rank]
        length = np.median(operations.duration_ns, axis=1)
        for is_forward in (True, False):
            rows = [i for i, p in schedule.passes.items() if len(p) == 1 and p[0][0] == is_forward]
            if len(rows) < 2:
                continue
            kinds += 1
            lengths += float(np.log(np.maximum(length[rows], 1)).var())
            ran = [frozenset().union(*operations.sides[i]) for i in rows]
            everything = frozenset.union(*ran)
            names += 1 - sum(len(s) for s in ran) / (len(ran) * len(everything)) if everything else 0.0
    return names / max(kinds, 1), lengths / max(kinds, 1)


def _order(warm_up: int, count: int) -> list[Pass]:
    """Passes of a step: forwards ahead, then one forward and one backward in turn, then what is left."""
    steady = [p for i in range(warm_up, count) for p in ((True, i), (False, i - warm_up))]
    return [(True, i) for i in range(warm_up)] + steady + [(False, i) for i in range(count - warm_up, count)]


def _takes(one: Pass, stage: int, pp: int) -> Key | None:
    """What a pass needs of another stage."""
    is_forward, number = one
    source = stage - 1 if is_forward else stage + 1
    return (is_forward, source, stage, number) if 0 <= source < pp else None


def _gives(one: Pass, stage: int, pp: int) -> Key | None:
    """What another stage needs of it."""
    is_forward, number = one
    target = stage + 1 if is_forward else stage - 1
    return (is_forward, stage, target, number) if 0 <= target < pp else None


def _fit(
    order: Sequence[Pass], stage: int, chain: Chain, rank: RankOperations, parts: Parts
) -> tuple[dict[int, tuple[Pass, ...]], dict[int, frozenset[Key]]] | None:
    """Passes and messages of a rank's operations if the order is theirs; None where it is not."""
    groups, between = _in_groups(order, stage, len(chain))
    blocks, exchanges = list(parts.blocks), list(parts.exchanges)
    # Work before the first pass, such as of the loader, and behind the last one: of the optimizer.
    if between[0] and not exchanges[0]:
        blocks, exchanges = blocks[1:], exchanges[1:]
    if between[-1] and exchanges and not exchanges[-1]:
        blocks, exchanges = blocks[:-1], exchanges[:-1]
    if len(blocks) != len(groups) or len(exchanges) != len(between):
        return None
    messages: dict[int, frozenset[Key]] = {}
    for rows, keys in zip(exchanges, between, strict=True):
        carried = _carried(rows, keys, stage, chain, rank)
        if carried is None:
            return None
        messages |= carried
    passes: dict[int, tuple[Pass, ...]] = {}
    for block, group in zip(blocks, groups, strict=True):
        passes |= dict.fromkeys(block, tuple(group))
    return passes, messages


def _in_groups(order: Sequence[Pass], stage: int, pp: int) -> tuple[list[list[Pass]], list[list[Key]]]:
    """Passes that no message separates, and the messages before, between and behind them."""
    groups: list[list[Pass]] = []
    between: list[list[Key]] = [[]]
    for one in order:
        taken, given = _takes(one, stage, pp), _gives(one, stage, pp)
        between[-1] += [] if taken is None else [taken]
        if groups and not between[-1]:
            groups[-1].append(one)
        else:
            groups.append([one])
            between.append([])
        between[-1] += [] if given is None else [given]
    return groups, between


def _carried(
    rows: Sequence[int], keys: Sequence[Key], stage: int, chain: Chain, rank: RankOperations
) -> dict[int, frozenset[Key]] | None:
    """Which of these messages each operation carries; None where they cannot be all that it does. What a
    batched one carries is what the others leave."""
    left = list(keys)
    found: dict[int, frozenset[Key]] = {}
    batched = [i for i in rows if rank.operation[i] in BATCHED and rank.peer[i] < 0]
    to_peers = [i for i in rows if rank.operation[i] in BATCHED and rank.peer[i] >= 0]
    for i in rows:
        if i in batched:
            continue
        peer, word = int(rank.peer[i]), rank.operation[i]
        fitting = [k for k in left if peer in (-1, chain[k[2] if k[1] == stage else k[1]])]
        if i in to_peers:
            # All that the two exchange here, unless another one follows.
            several = sum(int(rank.peer[j]) == peer for j in to_peers if j >= i) > 1
            fitting = fitting[:1] if several else fitting
        else:
            fitting = [k for k in fitting if (k[1] == stage) == (word == "send")][:1]
        if not fitting:
            return None
        left = [k for k in left if k not in fitting]
        found[i] = frozenset(fitting)
    # A profiler that names sends and receives calls batched what is several.
    each = 2 if {"send", "recv"} & set(rank.operation) else 1
    if bool(left) != bool(batched) or each * len(batched) > len(left):
        return None
    for i in batched:
        found[i] = frozenset(left) if len(batched) == 1 else frozenset(left[:each])
        left = left[len(found[i]) :]
    return found if not left else None
