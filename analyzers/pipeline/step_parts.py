"""A rank's step as its messages cut it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.pipeline.operations import COLLECTIVE, COMPUTE, MESSAGE, RankOperations

TRIFLE_FRAC = 0.02
"""Of the usual stretch of work between messages: a shorter one is no pass."""


@dataclass(frozen=True, kw_only=True)
class Parts:
    """An exchange, a block of work, an exchange ... an exchange."""

    blocks: tuple[tuple[int, ...], ...]
    """Indices of compute that no message separates."""
    exchanges: tuple[tuple[int, ...], ...]
    """Indices of messages; one more than blocks. The first and the last may be empty."""


def cut_by_messages(rank: RankOperations) -> Parts:
    """What follows the last message's block behind a collective that is waited for is the end of the step: no
    pass, and no part of this."""
    blocks: list[list[int]] = []
    exchanges: list[list[int]] = [[]]
    messages = np.flatnonzero(rank.kind == MESSAGE)
    last = int(messages.max(initial=-1))
    ended = False
    current: list[int] = []
    for i, kind in enumerate(rank.kind.tolist()):
        ended |= i > last and kind == COLLECTIVE and bool(rank.is_awaited[i])
        if kind == COMPUTE and not ended:
            current.append(i)
        elif kind == MESSAGE:
            if current:
                blocks.append(current)
                exchanges.append([])
                current = []
            exchanges[-1].append(i)
    if current:
        blocks.append(current)
        exchanges.append([])
    length = np.median(rank.duration_ns, axis=1)
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
