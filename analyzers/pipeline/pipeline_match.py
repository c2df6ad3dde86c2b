"""Which messages of the stages of one pipeline are the two sides of one transfer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.pipeline.pipeline_pairs import Pairs
from perfdoc.analyzers.pipeline.pipeline_rank import PipelineRank

_ENDS_TOGETHER_NS = 20_000
"""Two kernels that exchange a message end within this time of each other."""


_IMPOSSIBLE_FRAC = 0.05
"""More messages than this that arrive before they are sent, and it is the clocks that are wrong."""


@dataclass(frozen=True, kw_only=True)
class StageMessages:
    """Messages of one stage in one step, by end, on the common clock; see pipeline_messages.Messages."""

    row: list[int]
    """Row of the rank's Messages."""
    start_ns: list[int]
    end_ns: list[int]
    wait_ns: list[int]
    gap_before_ns: list[int]
    gap_after_ns: list[int]
    bytes: list[int]
    partners: list[list[tuple[int, int]]]
    """(stage, position in that stage's lists) of the other sides."""


def match_messages(
    ranks: Sequence[PipelineRank],
    steps: Sequence[int],
    common: Sequence[tuple[I64, I64, I64]],
    pairs: Pairs,
    slack_ns: int,
) -> tuple[list[StageMessages], int]:
    """Messages of one pipeline in one step with their other sides, and by how much clocks contradict them:
    the longest time by which a message ended before it was sent, where many did.

    ranks: by stage. steps: the step's index on each. common: (start, end, wait) of all messages of each on
    the common clock. pairs: of this step. slack_ns: how far apart clocks may be.
    """
    stages = []
    position = []
    for rank, step, (start, end, wait) in zip(ranks, steps, common, strict=True):
        rows = np.flatnonzero(rank.message_step == step)
        rows = rows[np.argsort(end[rows], kind="stable")]
        m = rank.messages
        position.append({row: at for at, row in enumerate(rows.tolist())})
        stages.append(
            StageMessages(
                row=rows.tolist(),
                start_ns=start[rows].tolist(),
                end_ns=end[rows].tolist(),
                wait_ns=wait[rows].tolist(),
                gap_before_ns=m.gap_before_ns[rows].tolist(),
                gap_after_ns=m.gap_after_ns[rows].tolist(),
                bytes=m.bytes[rows].tolist(),
                partners=[[] for _ in rows],
            )
        )
    early = []
    columns = (pairs.sender, pairs.sent, pairs.receiver, pairs.received)
    for sender, sent, receiver, received in zip(*(c.tolist() for c in columns), strict=True):
        a, b = position[sender][sent], position[receiver][received]
        early.append(stages[sender].start_ns[a] - stages[receiver].end_ns[b])
        if (receiver, b) not in stages[sender].partners[a]:
            stages[sender].partners[a].append((receiver, b))
            stages[receiver].partners[b].append((sender, a))
    _by_end(stages, _ENDS_TOGETHER_NS + slack_ns)
    impossible = [ns for ns in early if ns > 0]
    return stages, max(impossible) if len(impossible) > _IMPOSSIBLE_FRAC * len(early) else 0


def _by_end(stages: Sequence[StageMessages], within_ns: int) -> None:
    """Where nothing tells the other side: messages of neighbouring stages that end together, each the
    other's nearest."""
    pp = len(stages)
    for stage in range(pp):
        other = (stage + 1) % pp
        if other == stage or (pp == 2 and stage == 1):
            continue
        mine = [i for i, p in enumerate(stages[stage].partners) if not p]
        theirs = [i for i, p in enumerate(stages[other].partners) if not p]
        if not mine or not theirs:
            continue
        a = np.array([stages[stage].end_ns[i] for i in mine], np.int64)
        b = np.array([stages[other].end_ns[i] for i in theirs], np.int64)
        to_b, to_a = _nearest(a, b), _nearest(b, a)
        for i, at in enumerate(to_b.tolist()):
            if to_a[at] == i and abs(int(a[i]) - int(b[at])) <= within_ns:
                stages[stage].partners[mine[i]].append((other, theirs[at]))
                stages[other].partners[theirs[at]].append((stage, mine[i]))


def _nearest(values: I64, among: I64) -> I64:
    """For each value the index of the nearest of sorted others."""
    right = np.clip(np.searchsorted(among, values), 0, len(among) - 1)
    left = np.maximum(right - 1, 0)
    return np.where(np.abs(among[left] - values) <= np.abs(among[right] - values), left, right)
