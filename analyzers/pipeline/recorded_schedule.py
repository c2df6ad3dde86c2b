"""The schedule of a pipeline as its messages show it: which rank is which stage, how many micro-batches there
are, and which stretch of work is the forward or the backward pass of which.

Without ranges and settings. What a pass takes in and gives away follows from its stage and its kind; so a
schedule says what messages lie between two stretches of work, and those that were recorded must be these. A
batched message does not say which way it goes: the schedule does. Where several schedules fit, none is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from perfdoc.analyzers.pipeline.operations import COLLECTIVE, COMPUTE, MESSAGE, WAIT, RankOperations
from perfdoc.records import dataclass
from perfdoc.traces.table import median

if TYPE_CHECKING:
    from perfdoc.analyzers.pipeline.chains import Chain
    from perfdoc.analyzers.pipeline.halves import Sides
    from perfdoc.analyzers.pipeline.known_schedules import Key, KnownSchedule, Pass
    from perfdoc.analyzers.pipeline.posted import Cut, Fit

MANY_FRAC = 0.1
"""Of the messages of a pipeline run beside work, from which on it is one whose messages are meant to."""
TRIFLE_FRAC = 0.02
"""Of the usual stretch of work between messages: a shorter one is no pass."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """An exchange, a block of work, an exchange ... an exchange."""

    blocks: tuple[tuple[int, ...], ...]
    """Indices of compute that no message separates."""
    exchanges: tuple[tuple[int, ...], ...]
    """Indices of messages; one more than blocks. The first and the last may be empty."""


def cut_by_messages(rank: RankOperations, *, posted: bool = False) -> Parts:
    """posted: messages count where they were asked for, whenever they are waited for.

    What follows the last message's block behind a collective that is waited for is the end of the step: no
    pass, and no part of this."""
    blocks: list[list[int]] = []
    exchanges: list[list[int]] = [[]]
    is_message = (rank.kind == MESSAGE) | ((rank.kind == WAIT) & (rank.kind[rank.of] == MESSAGE))
    awaited_later = np.zeros(len(rank), bool)
    awaited_later[rank.of[rank.kind == WAIT]] = True
    last = int(np.flatnonzero(is_message).max(initial=-1))
    ended = False
    current: list[int] = []
    for i, kind in enumerate(rank.kind.tolist()):
        ended |= i > last and kind == COLLECTIVE and bool(rank.is_awaited[i])
        if kind == COMPUTE and not ended:
            current.append(i)
        # A message that began beside work counts where it is waited for.
        elif kind in (MESSAGE, WAIT) and is_message[i] and (posted or not awaited_later[i]):
            if current:
                blocks.append(current)
                exchanges.append([])
                current = []
            if not (posted and kind == WAIT):
                exchanges[-1].append(int(rank.of[i]) if kind == WAIT else i)
    if current:
        blocks.append(current)
        exchanges.append([])
    length = median(rank.duration_ns)
    whole = [float(length[b].sum()) for b in blocks]
    least = TRIFLE_FRAC * float(np.median(whole)) if whole else 0.0
    kept: list[list[int]] = []
    joined: list[list[int]] = [exchanges[0]]
    for block, ns, behind in zip(blocks, whole, exchanges[1:], strict=True):
        if ns < least:
            joined[-1] = joined[-1] + behind
        else:
            kept.append(block)
            joined.append(behind)
    return Parts(blocks=tuple(tuple(b) for b in kept), exchanges=tuple(tuple(e) for e in joined))


BATCHED = frozenset({"send_recv", "coalesced"})


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
    needs: Mapping[int, tuple[int, ...]] | None = None
    """By index of compute the messages that it waits for, where messages run beside work; else None."""


@dataclass(frozen=True, kw_only=True)
class JobSchedule:
    """What the messages of all ranks tell."""

    reason: str
    """Why nothing is known; empty where it is."""
    pp: int | None = None
    vpp: int | None = None
    """Chunks of a stage."""
    micro_batches: int | None = None
    name: str = ""
    ranks: tuple[RankSchedule | None, ...] = ()
    """By position; None of a rank that has no part in it."""
    pipelines: tuple[Chain, ...] = ()
    """Global ranks, first stage first."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A schedule that fits a pipeline."""

    chain: Chain
    schedule: KnownSchedule
    ranks: Mapping[int, RankSchedule]
    """By global rank."""


def find_schedule(ranks: Sequence[RankOperations]) -> JobSchedule:
    """Look at the operations of all ranks."""
    speaking = {r.rank: i for i, r in enumerate(ranks) if (r.kind == MESSAGE).any()}
    if not speaking:
        return JobSchedule(reason="no messages between stages are in the captures")
    if None in speaking or len(speaking) < sum(bool((r.kind == MESSAGE).any()) for r in ranks):
        return JobSchedule(reason="the captures do not say which ranks they are of")
    from perfdoc.analyzers.pipeline.chains import find_chains

    chains = find_chains([ranks[i] for i in speaking.values()])
    if not chains:
        return JobSchedule(reason="messages do not tell which ranks are neighbours")
    parts = {rank: cut_by_messages(ranks[i]) for rank, i in speaking.items() if rank is not None}
    of_rank = {rank: ranks[i] for rank, i in speaking.items() if rank is not None}
    found: list[RankSchedule | None] = [None] * len(ranks)
    posted = {rank: cut_by_messages(of, posted=True) for rank, of in of_rank.items()}
    chosen: list[Reading] = []
    for number, ways in enumerate(chains):
        readings: dict[object, Reading] = {}
        messages = [r.is_awaited[r.kind == MESSAGE] for n, r in of_rank.items() if n in ways[0]]
        beside_frac = sum((~m).sum() for m in messages) / max(sum(map(len, messages)), 1)
        # Where messages run beside work, these say more; of chunks that exchange in turns there are none.
        every = [r for c in ways if beside_frac for r in _readings(c, of_rank, posted, number, posted=True)]
        every = every or [
            r
            for c in ways
            for r in _readings(c, of_rank, parts, number)
            if (beside_frac < MANY_FRAC or r.schedule.vpp == 1) and _carries_one_each(r, of_rank)
        ]
        for one in every:
            said = tuple((rank, r.stage, tuple(r.passes.items())) for rank, r in one.ranks.items())
            readings.setdefault(said, one)
        likely = most_alike(list(readings.values()), of_rank)
        if likely is None:
            few = "fit no schedule that is known" if not readings else "fit several schedules"
            return JobSchedule(reason=f"the messages of a step {few}")
        chosen.append(likely)
        for rank, schedule in likely.ranks.items():
            found[speaking[rank]] = schedule
    if len({c.schedule for c in chosen}) > 1:
        return JobSchedule(reason="the pipelines of the job have different schedules")
    first = chosen[0].schedule
    return JobSchedule(
        reason="",
        pp=first.pp,
        vpp=first.vpp,
        micro_batches=first.micro_batches,
        name=first.name,
        ranks=tuple(found),
        pipelines=tuple(c.chain for c in chosen),
    )


def _readings(
    chain: Chain,
    of_rank: Mapping[int, RankOperations],
    parts: Mapping[int, Parts],
    pipeline: int,
    *,
    posted: bool = False,
) -> Iterator[Reading]:
    """The schedules that fit all captured ranks of a pipeline. posted: as parts were cut."""
    from perfdoc.analyzers.pipeline.known_schedules import known_schedules
    from perfdoc.analyzers.pipeline.posted import fit_posted  # most captures are of one rank

    mine = [(stage, rank) for stage, rank in enumerate(chain) if rank in parts]
    for schedule in known_schedules(len(chain), max(len(parts[rank].blocks) for _, rank in mine)):
        if posted and schedule.exchanges_together:
            continue
        fitted: dict[int, RankSchedule] = {}
        for stage, rank in mine:
            cut = parts[rank].blocks, parts[rank].exchanges
            fit = (fit_posted if posted else _fit)(schedule, stage, chain, of_rank[rank], cut)
            if fit is None:
                break
            passes, messages, needs = fit
            fitted[rank] = RankSchedule(
                stage=stage, pipeline=pipeline, passes=passes, messages=messages, needs=needs
            )
        else:
            yield Reading(chain=chain, schedule=schedule, ranks=fitted)


def _carries_one_each(reading: Reading, of_rank: Mapping[int, RankOperations]) -> bool:
    """Whether each operation that runs beside work carries one message: two go together at the same wait."""
    return all(
        len(keys) <= 1 or of_rank[rank].is_awaited[i]
        for rank, one in reading.ranks.items()
        for i, keys in one.messages.items()
    )


STRANGE = 0.5
"""Of the kernels' names in passes of a kind on a rank: those that the usual pass lacks. More, and they are no
passes of one kind."""
CLEARLY = 0.5
"""A reading is taken if its passes of a kind differ less than this part of what they do in any other."""


def most_alike(readings: Sequence[Reading], of_rank: Mapping[int, RankOperations]) -> Reading | None:
    """The reading whose forward passes are like one another, and its backward passes: what runs in them, else
    how long they take; None where none stands out."""
    costs = np.array([_unlikeness(r, of_rank) for r in readings])
    if len(readings) < 2:
        return readings[0] if readings and costs[0, 0] < STRANGE else None
    for cost in costs.T:
        first, second, *_ = np.sort(cost).tolist()
        if first < CLEARLY * second:
            return readings[int(cost.argmin())]
    # Two stages exchange both ways whether they have several chunks or one: one, if nothing speaks for more.
    plain = [i for i, r in enumerate(readings) if r.schedule.vpp == 1]
    if len(plain) == 1 and (costs[plain[0]] <= costs.min(axis=0)).all() and costs[plain[0], 0] < STRANGE:
        return readings[plain[0]]
    return None


def _unlikeness(reading: Reading, of_rank: Mapping[int, RankOperations]) -> tuple[float, float]:
    """How much kernels' names, and how much lengths, differ between passes of one kind on one rank."""
    names, lengths, kinds = 0.0, 0.0, 0
    for rank, schedule in reading.ranks.items():
        sides = of_rank[rank].sides
        length, cut = (median(ns).tolist() for ns in (of_rank[rank].duration_ns, of_rank[rank].split_ns))
        stretches = list(zip(length, cut, sides, strict=True))
        for is_forward in (True, False):
            found = [one for i, p in schedule.passes.items() for one in _parts(*stretches[i], p, is_forward)]
            if len(found) < 2:
                continue
            kinds += 1
            lengths += float(np.log([max(length, 1.0) for length, _ in found]).var())
            ran = [what for _, what in found]
            everything = frozenset[int]().union(*ran)
            names += 1 - sum(len(s) for s in ran) / (len(ran) * len(everything)) if everything else 0.0
    return names / max(kinds, 1), lengths / max(kinds, 1)


def _parts(
    length: float, cut: float, sides: Sides, passes: Sequence[Pass], is_forward: bool
) -> list[tuple[float, frozenset[int]]]:
    """(length, what ran) of the passes of a kind that a stretch of work is. Of two between which the work
    does not change in kind each is half of it: two of different kinds speak against the reading."""
    whole: frozenset[int] = frozenset().union(*sides)
    if len(passes) == 2 and cut >= 0 and all(sides):
        each = [(cut, frozenset(sides[0])), (length - cut, frozenset(sides[1]))]
    else:
        each = [(length / len(passes), whole)] * len(passes)
    return [part for one, part in zip(passes, each, strict=True) if one[0] == is_forward]


def _fit(schedule: KnownSchedule, stage: int, chain: Chain, rank: RankOperations, parts: Cut) -> Fit | None:
    """Passes and messages of a rank's operations if the schedule is theirs; None where it is not."""
    blocks, exchanges = list(parts[0]), list(parts[1])
    if not any(schedule.may_have(stage, len(blocks) - more) for more in range(3)):
        return None
    groups, between = schedule.groups(stage)
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
    return passes, messages, None


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
