"""Whether a job is slower by one part of its steps alone, such as its input or one phase of its work.

Each part is judged by its own scatter, which hides less than that of whole steps.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfdoc.analyzers.steps.levels import F64, PRACTICAL_FRAC, Slower, blocks, clipped, levels, slower
from perfdoc.analyzers.steps.slower import Sample, change_between
from perfdoc.watch.causes import EXPLAINS_FRAC
from perfdoc.watch.series import PHASES, JobSeries

PARTS = ("data_ns", "garbage_ns", "rank_tokens", "forward_ns", "backward_ns", "optimizer_ns", "wait_ns")
WORK = ("forward_ns", "backward_ns", "optimizer_ns")
PAID_NOW_AND_THEN = ("garbage_ns", "rank_tokens", "data_ns")
"""Perhaps by some steps only: by every tenth, or as workers of a loader come round."""
_MIN_CORRELATION = 0.3
"""Of the work of ranks with their tokens, both beside the mean over ranks, step by step."""
UNKNOWN_FRAC = 0.05
"""A change without a cause, or one that whole steps do not show, is told from here on."""
LASTING_STEPS = 40
"""What whole steps do not show is told after so many."""


def slowest(part: JobSeries, times: F64, change: Slower | None) -> tuple[Slower | None, JobSeries]:
    """The change of whole steps, or of the part that explains it, with the series that shows it: each part is
    judged by its own scatter, which hides less, and so is since when."""
    found, work = [], alone(part, *WORK)
    for name in PARTS:
        job = alone(part, name)
        seen = None if job is None else _of(job, name)
        if job is None or seen is None:
            continue
        if (price := _price(part, times, seen, name, work if name in WORK else None)) is not None:
            # Tokens and garbage lie in a phase, and work makes others wait: half of it is explanation enough.
            weight = EXPLAINS_FRAC ** ((name not in PAID_NOW_AND_THEN) + (name == "wait_ns"))
            found.append((weight * min(seen.price, price), replace(seen, price=price), job))
    if not found:
        return change, part
    _, priced, job = max(found, key=lambda one: one[0])
    if change is None:  # a burst of a busy machine lasts for some steps as well
        lasts = len(times) - priced.onset >= LASTING_STEPS and priced.price >= UNKNOWN_FRAC * times.mean()
        return (priced, job) if lasts else (None, part)
    return (priced, job) if priced.price >= EXPLAINS_FRAC * change.price else (change, part)


def _of(job: JobSeries, name: str) -> Slower | None:
    """Whether a job is slower by one part alone: in nearly every step, or now and then."""
    times = np.asarray(job.time_ns, np.float64)
    found = None if name in ("garbage_ns", "rank_tokens") else slower(clipped(times), levels(times))
    if found is not None or name not in PAID_NOW_AND_THEN:
        return found
    return slower(times, levels(times, clip=False), times)


def _price(part: JobSeries, times: F64, change: Slower, name: str, work: JobSeries | None) -> float | None:
    """What a change of one part costs each step; None where that is nothing. A rank that is slow in one phase
    is so in all its work. Replicas wait for the last of them: a step pays what that one takes longer. Stages
    of a pipeline may hide it or wait for it twice: there it is as near to that as the step time lets it."""
    price = change.price
    if work is not None:
        taken = clipped(np.asarray(work.time_ns, np.float64))
        price = float(taken[change.after].mean() - taken[change.before].mean())
    before, after = (blocks(times[at]) for at in (change.before, change.after))
    usual, of_ranks = Sample.of(before), part.own_ns if name == "rank_tokens" else part.values[name]
    everywhere = (of_ranks[:, change.after].mean(axis=1) - of_ranks[:, change.before].mean(axis=1)).min()
    may_hide = len({role.get("pp", 0) for role in part.roles}) > 1 or not all(part.roles)
    if may_hide and everywhere < EXPLAINS_FRAC * change.price:
        low, high = (frac * usual.mean for frac in change_between(usual, Sample.of(after)).bounds_frac())
        price = min(max(price, low), high)
    return price if price >= PRACTICAL_FRAC * usual.mean else None


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
