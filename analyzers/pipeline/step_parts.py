"""A rank's step as its messages cut it."""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.pipeline.operations import COLLECTIVE, COMPUTE, MESSAGE, WAIT, RankOperations
from perfdoc.records import dataclass

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
        elif kind in (MESSAGE, WAIT) and is_message[i] and not awaited_later[i]:
            if current:
                blocks.append(current)
                exchanges.append([])
                current = []
            exchanges[-1].append(int(rank.of[i]) if kind == WAIT else i)
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
