"""A job as it would be if one part of its steps alone varied: what that part shows by its own series, where
others scatter the steps by more, and what it costs them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.analyzers.steps.levels import F64
from perfdoc.watch.series import PHASES, JobSeries

PARTS = ("data_ns", "garbage_ns", "rank_tokens", "forward_ns", "backward_ns", "optimizer_ns", "wait_ns")
WORK = ("forward_ns", "backward_ns", "optimizer_ns")
PAID_NOW_AND_THEN = ("garbage_ns", "rank_tokens", "data_ns")
"""Perhaps by some steps only: by every tenth, or as workers of a loader come round."""
_MIN_CORRELATION = 0.3
"""Of the work of ranks with their tokens, both beside the mean over ranks, step by step."""


def alone(part: JobSeries, *names: str) -> JobSeries | None:
    """The series with everything but some parts as it is in the mean; None where they are not known.

    Work of a rank is that mean and what the parts differ from their own; the last one ends the waiting of
    all, and `wait_ns` is the waiting that the least waiting rank has. Tokens count by the work that a token
    more than other ranks have takes.
    """
    if not all(part.has(name) for name in (*names, "wait_ns")):
        return None
    own = np.asarray(part.own_ns, np.float64)
    varies = np.asarray(sum(part.values[name] for name in names), np.float64)
    shared = np.zeros(varies.shape[1])
    if names == ("wait_ns",):
        shared, varies = varies.min(axis=0), np.zeros_like(varies)
    elif names == ("rank_tokens",):
        varies = varies - varies.mean(axis=0)
        varies = _slope(own - own.mean(axis=0), varies) * varies
    varies = varies - varies.mean(axis=1, keepdims=True)
    work = own.mean(axis=1, keepdims=True) + varies
    ends = work.max(axis=0) + shared
    if not np.ptp(ends) > 0:
        return None
    times = float(part.time_ns.mean()) + ends - ends.mean()
    values = {
        field: np.broadcast_to(of_ranks.mean(axis=1, keepdims=True), of_ranks.shape)
        if field in (*PHASES, "garbage_ns") and field not in names
        else of_ranks
        for field, of_ranks in part.values.items()
    }
    values["duration_ns"] = np.asarray(np.broadcast_to(times, work.shape), np.float32)
    values["wait_ns"] = np.asarray(times - work, np.float32)
    return replace(part, values=values)


def _slope(work: F64, tokens: F64) -> float:
    """Work of a token, by least squares without the steps in which something else took longest; 0 where work
    does not follow tokens."""
    furthest = np.abs(work).max(axis=0)
    kept = (furthest <= np.quantile(furthest, 0.95)) & tokens.any(axis=0)
    x, y = tokens[:, kept].ravel(), work[:, kept].ravel()
    square = float(x @ x)
    if square == 0 or not y.any():
        return 0.0
    slope = float(x @ y) / square
    return slope if slope * np.sqrt(square / float(y @ y)) >= _MIN_CORRELATION else 0.0
