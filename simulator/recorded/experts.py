"""What ranks wait for between two exchanges of tokens: experts that have more of them, and other passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.steps.scatter import LEAST
from perfdoc.simulator.recorded.effects import MOSTLY, Effect
from perfdoc.simulator.recorded.work import StageWork
from perfdoc.traces.table import F64


def uneven_experts(works: Sequence[StageWork], slow: Sequence[Effect]) -> list[Effect]:
    """Passes with experts as long as the mean of the ranks that exchange tokens: between two exchanges all
    wait for the one with most of them. slow: ranks, whose experts count as if as fast as their peers'."""
    longest = mean = 0.0
    factors: list[F64] = []
    hot: list[int] = []
    shares: list[F64] = []
    peers = 0
    for i, work in enumerate(works):
        speed = _speed(work, i, slow)
        beyond = work.waited_for(speed, experts=True)
        factors.append(1 - np.divide(beyond, work.takes, out=np.zeros_like(beyond), where=work.takes > 0))
        for rows in work.rows_of_units:
            each = (work.experts * speed)[rows]
            if len(rows) < 2 or not each.any():
                continue
            over = beyond[rows[0]].sum(axis=0), each.mean(axis=0).sum(axis=0)
            shares.append(over[0] / np.maximum(over[1], 1.0))
            longest, mean = longest + over[0].sum(), mean + over[1].sum()
            peers = max(peers, 0 if work.several[rows[0]] else len(rows) - 1)
            often = each.sum(axis=(1, 2)) / each.sum(axis=(1, 2)).mean() - 1
            hot += [
                work.members[m] for m, o in zip(rows, often, strict=True) if o > MOSTLY * shares[-1].mean()
            ]
    ratio = float(1 + longest / mean) if mean else 1.0
    if ratio < 1 + LEAST:
        return []
    return [
        Effect(
            kind="uneven_experts",
            members=tuple(hot),
            ratio=ratio,
            peers=peers,
            recurrence_frac=float((np.mean(shares, axis=0) > LEAST).mean()),
            factors=tuple(factors),
        )
    ]


def without_waits(works: Sequence[StageWork], slow: Sequence[Effect]) -> list[F64]:
    """What passes take if between exchanges, experts aside, all ranks of a unit had as much to do."""
    return [w.takes - w.waited_for(_speed(w, i, slow), experts=False) for i, w in enumerate(works)]


def _speed(work: StageWork, i: int, slow: Sequence[Effect]) -> F64:
    """What the time of each rank's device is multiplied by, to be as its peers'. i: the stage's place."""
    return np.asarray(np.prod([np.ones_like(work.takes), *(e.own[i] for e in slow if e.own)], axis=0))
