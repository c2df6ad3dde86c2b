"""Passes of a stage whose messages run beside work (megatron-core's overlap_p2p_communication): its sends say
where a pass ends, and what it receives must have come before the pass that needs it begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from itertools import product
from typing import TypeAlias

import numpy as np

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
_Way: TypeAlias = list[tuple[Key, int, int, int]]
"""(message, the stretch that needs it, before which it was posted, index of the receive)"""

MAX_STREAMS = 8
"""Of which it is tried which way each goes."""


def fit_posted(
    schedule: KnownSchedule, stage: int, chain: Chain, rank: RankOperations, parts: Cut
) -> Fit | None:
    """None where the schedule is not theirs, or more than one way. parts: cut where messages were posted."""
    blocks, posts = list(parts[0]), list(parts[1])
    rows = [i for at in posts for i in at]
    passes = 2 * schedule.vpp * schedule.micro_batches
    at_ends = (stage == 0) + (stage == schedule.pp - 1)
    if not passes <= 2 * len(blocks) or len(rows) != 2 * passes - 2 * at_ends * schedule.micro_batches:
        return None
    order = [one for turn in schedule.turns(stage) for one in turn]
    given = [schedule.given(one, stage) for one in order]
    # Work before the first pass, such as of the loader, and behind the last one: of the optimizer.
    if schedule.taken(order[0], stage) and not posts[0]:
        blocks, posts = blocks[1:], posts[1:]
    if given[-1] and posts and not posts[-1]:
        blocks, posts = blocks[:-1], posts[:-1]
    found: list[Fit] = []
    for sends in _directions(rows, rank, sum(key is not None for key in given)):
        placed = _placed(order, blocks, posts, given, sends) if blocks else None
        if placed is None or any(rank.peer[i] not in (-1, chain[k[2]]) for i, (k,) in placed[1].items()):
            continue
        received = _received(schedule, stage, chain, rank, (blocks, posts, placed[0], sends))
        if received is None:
            continue
        needs = {blocks[at][0]: tuple(i for _, n, _, i in received if n == at) for _, at, _, _ in received}
        messages = placed[1] | {i: frozenset({key}) for key, _, _, i in received}
        of_blocks = zip(blocks, placed[0], strict=True)
        found.append(({i: tuple(group) for block, group in of_blocks for i in block}, messages, needs))
    return found[0] if len(found) == 1 else None


def _directions(rows: Sequence[int], rank: RankOperations, count: int) -> Iterator[frozenset[int]]:
    """The messages that may be the rank's sends, so many: those that say so; of others all that a stream
    exchanges with a peer go one way."""
    named = {i for i in rows if rank.operation[i] == "send"}
    streams: dict[tuple[int, int], list[int]] = defaultdict(list)
    for i in rows:
        if rank.operation[i] not in ("send", "recv"):
            streams[int(rank.peer[i]), int(rank.lane[i])].append(i)
    if len(streams) > MAX_STREAMS or any(
        rank.operation[i] != "send_recv" for of in streams.values() for i in of
    ):
        return
    for chosen in product((False, True), repeat=len(streams)):
        sends = named.union(*(of for of, are in zip(streams.values(), chosen, strict=True) if are))
        if len(sends) == count:
            yield frozenset(sends)


def _received(
    schedule: KnownSchedule,
    stage: int,
    chain: Chain,
    rank: RankOperations,
    laid: tuple[Sequence[tuple[int, ...]], Sequence[tuple[int, ...]], Sequence[Sequence[Pass]], Set[int]],
) -> _Way | None:
    """What each receive brings; None where it is not known or a pass begins before its input has come.
    laid: stretches of work, what was posted around them, their passes, sends."""
    blocks, posts, groups, sends = laid
    taken: dict[int, list[tuple[Key, int]]] = defaultdict(list)
    for at, group in enumerate(groups):
        for place, one in enumerate(group):
            key = schedule.taken(one, stage)
            if key is not None and place:
                return None
            if key is not None:
                taken[chain[key[1]]].append((key, at))
    received = [(n, i) for n, at in enumerate(posts) for i in at if i not in sends]
    found: _Way = []
    for peer, keys in taken.items():
        mine = [(n, i) for n, i in received if rank.peer[i] == peer]
        ways = [w for w in _ways(keys, mine, rank) if _in_time(w, blocks, rank)]
        if len(ways) != 1:
            return None
        found += ways[0]
    return found if len(found) == len(received) else None


def _placed(
    order: Sequence[Pass],
    blocks: Sequence[tuple[int, ...]],
    posts: Sequence[tuple[int, ...]],
    given: Sequence[Key | None],
    sending: Set[int],
) -> tuple[list[list[Pass]], dict[int, frozenset[Key]]] | None:
    """The passes of each stretch of work, and what each send carries: one pass's output, right behind it."""
    sends = [[i for i in at if i in sending] for at in posts]
    if sends[0] or any(len(at) > 1 for at in sends):
        return None
    groups: list[list[Pass]] = []
    messages: dict[int, frozenset[Key]] = {}
    waiting: list[Pass] = []
    at = 0
    for n, one in enumerate(order):
        waiting.append(one)
        key = given[n]
        if key is None and n + 1 < len(order):
            continue
        until = next((b for b in range(at, len(blocks)) if sends[b + 1]), len(blocks) - 1) + 1
        if until > len(blocks) or bool(key) != bool(sends[until]):
            return None
        # Between two sends each stretch is a pass; or two are one, where nothing is posted between them.
        if until - at == len(waiting):
            groups += [[p] for p in waiting]
        elif until - at == 1 and len(waiting) == 2:
            groups.append(waiting)
        else:
            return None
        if key is not None:
            messages[sends[until][0]] = frozenset({key})
        at, waiting = until, []
    return (groups, messages) if at == len(blocks) else None


def _ways(
    keys: Sequence[tuple[Key, int]], received: Sequence[tuple[int, int]], rank: RankOperations
) -> list[_Way]:
    """How a rank's receives from a peer may be what it takes of it: each stream in order; of two streams one
    has what comes from forward passes, the other what comes from backward ones."""
    if len(keys) != len(received):
        return []
    lanes = sorted({int(rank.lane[i]) for _, i in received})
    if len(lanes) == 1:
        return [[(*k, n, i) for k, (n, i) in zip(keys, received, strict=True)]]
    found = []
    for first in lanes if len(lanes) == 2 else ():
        way: _Way = []
        for forward in (True, False):
            its = [(n, i) for n, i in received if (int(rank.lane[i]) == first) == forward]
            way += [
                (*k, n, i) for k, (n, i) in zip([k for k in keys if k[0][0] == forward], its, strict=False)
            ]
        found += [way] if len({i for *_, i in way}) == len(received) else []
    return found


def _in_time(way: _Way, blocks: Sequence[tuple[int, ...]], rank: RankOperations) -> bool:
    """Whether each was asked for and had come before the work that needs it, in all steps."""
    if any(posted > at for _, at, posted, _ in way):
        return False
    needed = rank.start_ns[[blocks[at][0] for _, at, _, _ in way]]
    rows = [i for *_, i in way]
    come = rank.start_ns[rows] + rank.duration_ns[rows]
    return bool(np.all(come <= needed + ROUNDED_NS))
