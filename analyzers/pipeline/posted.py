"""Passes of a stage whose messages run beside work (megatron-core's overlap_p2p_communication): its sends say
where a pass ends, and what it receives must have come before the pass that needs it begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import TypeAlias

from perfdoc.analyzers.pipeline.chains import Chain
from perfdoc.analyzers.pipeline.events import ROUNDED_NS
from perfdoc.analyzers.pipeline.known_schedules import Key, KnownSchedule, Pass
from perfdoc.analyzers.pipeline.operations import RankOperations

Cut: TypeAlias = tuple[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]]]
"""Stretches of work, and the messages before, between and behind them, as in Parts."""
Fit: TypeAlias = tuple[
    dict[int, tuple[Pass, ...]], dict[int, frozenset[Key]], dict[int, tuple[int, ...]] | None
]
"""Passes, messages and needs of a rank's operations, as in RankSchedule."""
_Carried: TypeAlias = tuple[bool, Key, int]
"""(sent?, message, number of the pass in order that gives or takes it)"""
MAX_WAYS = 4096
"""In which streams may carry messages: behind more nothing is said."""


def fit_posted(
    schedule: KnownSchedule, stage: int, chain: Chain, rank: RankOperations, parts: Cut
) -> Fit | None:
    """None where the schedule is not theirs, or more than one way. parts: cut where messages were posted."""
    blocks, posts = list(parts[0]), list(parts[1])
    passes = 2 * schedule.vpp * schedule.micro_batches
    messages = 2 * passes - 2 * schedule.micro_batches * ((stage == 0) + (stage == schedule.pp - 1))
    if passes > 2 * len(blocks) or sum(len(at) for at in posts) != messages:
        return None
    order = [one for turn in schedule.turns(stage) for one in turn]
    # Work before the first pass, such as of the loader, and behind the last one: of the optimizer.
    if schedule.taken(order[0], stage) and not posts[0]:
        blocks, posts = blocks[1:], posts[1:]
    if schedule.given(order[-1], stage) and not posts[-1]:
        blocks, posts = blocks[:-1], posts[:-1]
    both = ((True, schedule.given), (False, schedule.taken))
    keys = [(way, k, n) for n, p in enumerate(order) for way, of in both if (k := of(p, stage)) is not None]
    where = {i: e for e, at in enumerate(posts) for i in at}
    found: list[Fit] = []
    for carried in _ways(list(where), keys, chain, rank):
        at = _placed(len(order), len(blocks), {n: where[i] for i, (sent, _, n) in carried.items() if sent})
        needs = _needs(at, carried, where, blocks, rank) if at else None
        if at and needs is not None:
            passes_of = {
                i: tuple(p for p, b in zip(order, at, strict=True) if b == n)
                for n, of in enumerate(blocks)
                for i in of
            }
            found.append((passes_of, {i: frozenset({k}) for i, (_, k, _) in carried.items()}, needs))
    return found[0] if len(found) == 1 else None


def _ways(
    rows: Sequence[int], keys: Sequence[_Carried], chain: Chain, rank: RankOperations
) -> Iterator[dict[int, _Carried]]:
    """What messages may carry: all that a stream exchanges with a peer goes one way, in order; of a peer that
    several streams receive from, what comes from forward passes or what comes from backward ones."""
    streams: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for i in rows:
        streams[int(rank.peer[i]), int(rank.lane[i]), rank.operation[i]].append(i)
    options: list[list[list[_Carried]]] = []
    for (peer, _, word), mine in streams.items():
        options.append([])
        words = {"send": (True,), "recv": (False,), "send_recv": (True, False)}.get(word, ())
        for sends, kinds in product(words, ((True,), (False,), (True, False))):
            its = [
                k
                for k in keys
                if k[0] == sends and k[1][0] in kinds and chain[k[1][2 if sends else 1]] == peer
            ]
            if len(its) == len(mine) and its not in options[-1]:
                options[-1].append(its)
        if not options[-1]:
            return
    for chosen in product(*options) if prod(map(len, options)) <= MAX_WAYS else ():
        carried = dict(
            zip((i for of in streams.values() for i in of), (k for of in chosen for k in of), strict=True)
        )
        if len(set(carried.values())) == len(keys):
            yield carried


def _placed(passes: int, blocks: int, after: Mapping[int, int]) -> list[int]:
    """Which stretch of work each pass is; empty where they do not fit. after: of passes whose output is sent
    the stretches until there. Between two sends each stretch is a pass; or two passes are one, where nothing
    was posted between them."""
    at: list[int] = []
    begin = 0
    for n in range(passes):
        if n in after or n == passes - 1:
            until, count = after.get(n, blocks), n + 1 - len(at)
            if until - begin not in ({1, 2} if count == 2 else {count}):
                return []
            at += [min(begin + i, until - 1) for i in range(count)]
            begin = until
    return at if begin == blocks else []


def _needs(
    at: Sequence[int],
    carried: Mapping[int, _Carried],
    where: Mapping[int, int],
    blocks: Sequence[tuple[int, ...]],
    rank: RankOperations,
) -> dict[int, tuple[int, ...]] | None:
    """By index of compute the messages that it waits for; None where it began before one had come."""
    needs: dict[int, tuple[int, ...]] = {}
    for i, (sent, _, n) in carried.items():
        if not sent:
            first = blocks[at[n]][0]
            come = rank.start_ns[i] + rank.duration_ns[i] <= rank.start_ns[first] + ROUNDED_NS
            if where[i] > at[n] or not come.all() or (n and at[n] == at[n - 1]):
                return None
            needs[first] = (*needs.get(first, ()), i)
    return needs
