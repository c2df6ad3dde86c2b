"""How unevenly the hosts of the ranks work on the same step, and garbage collection at different steps.

The host time of a step is the length of its range less the waits in it (for the device, or on a CPU rank for
communication), so a rank that only waits for a late one does not look late itself. Durations are compared,
never instants: the ranks' clocks need not agree. Devices of one process have one host, which counts once.

Some rank is always slowest. A rank is called slow only where it is so more often than by chance, and by more
than a rank's host time varies from step to step.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import NormalDist

import numpy as np

from perfdoc.analyzers.base.binomial import at_least
from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.host.steps import HostStep, HostSteps
from perfdoc.analyzers.ledger.steps import distinct_names
from perfdoc.records import dataclass
from perfdoc.results.host import HostJitter, SlowestRank, UnsynchronisedGc
from perfdoc.results.quality import MEASURED

MIN_RANKS = 2
MAX_SLOWEST = 8
MIN_NOISE_STEPS = 4
"""Common steps from which on the noise is known."""
NOISE_FACTOR = 2.0
"""A slow rank lags by this many times the noise."""
SIGNIFICANCE = 0.05
"""Chance of calling any rank slow where all are alike."""
_STEPS = "Mark steps with the same name on every rank: `perfdoc.step N`, or see --step-range."


@dataclass(frozen=True, kw_only=True)
class RankHostSteps:
    """The host's steps of one rank."""

    rank: int | None
    label: str
    """How reports name it."""
    steps: HostSteps
    process: Hashable = None
    """What tells its process from others; None: no other rank shares it."""


def host_jitter(ranks: Sequence[RankHostSteps]) -> HostJitter:
    """Compare the hosts of the ranks of a job."""
    given = len(ranks)
    ranks = _one_of_each_process(ranks)
    with_steps = [r for r in ranks if r.steps.state == "measured"]
    if len(ranks) < MIN_RANKS:
        what = "One rank" if given < MIN_RANKS else f"One process drives all {given} devices"
        return _missing(f"{what}: there is no other host to compare it with.", "Capture every rank.")
    if len(with_steps) < MIN_RANKS:
        why = next(r for r in ranks if r.steps.state != "measured").steps
        return _missing(f"Fewer than {MIN_RANKS} ranks show their host's steps. {why.reason}", why.remedy)
    each = [r.steps.steps for r in with_steps]
    by_name = [dict(zip(distinct_names([s.name for s in own]), own, strict=True)) for own in each]
    common = [name for name in by_name[0] if all(name in steps for steps in by_name)]
    if not common:
        return _missing("No step has the same name on every rank.", _STEPS)
    steps = [[found[name] for name in common] for found in by_name]
    host = np.array([[s.host_ns for s in rank] for rank in steps], np.int64)
    spread = host.max(axis=0) - host.min(axis=0)
    worst = int(np.argmax(spread))
    labels = [r.label for r in with_steps]
    left = len(ranks) - len(with_steps)
    median_host = round(float(np.median(host)))
    noise = _noise_ns(host)
    return HostJitter(
        state="measured",
        reason=f"{left} of {len(ranks)} ranks show no steps of their host and are left out." if left else "",
        remedy="",
        ranks=len(with_steps),
        common_steps=len(common),
        median_host_ns=median_host,
        median_spread_ns=round(float(np.median(spread))),
        median_spread_frac=float(np.median(spread)) / median_host if median_host else None,
        noise_ns=None if noise is None else round(noise),
        noise_spread_ns=None if noise is None else round(noise * _normal_range(len(with_steps))),
        worst_spread_ns=int(spread[worst]),
        worst_step=common[worst],
        worst_rank=labels[int(np.argmax(host[:, worst]))],
        slowest=_slowest(host, labels, noise),
        gc=_gc(steps),
    )


def _missing(reason: str, remedy: str) -> HostJitter:
    return HostJitter.missing(reason, remedy, gc=UnsynchronisedGc.missing(reason, remedy))


def _one_of_each_process(ranks: Sequence[RankHostSteps]) -> list[RankHostSteps]:
    """The first rank of each process that shows its steps, else its first one."""
    found: dict[Hashable, RankHostSteps] = {}
    for i, rank in enumerate(ranks):
        key = (i,) if rank.process is None else (None, rank.process)
        if key not in found or (found[key].steps.state != "measured" and rank.steps.state == "measured"):
            found[key] = rank
    return list(found.values())


def _noise_ns(host: I64) -> float | None:
    """host: ranks x steps. What a rank's host time varies by around its own lag behind the others."""
    ranks, steps = host.shape
    if steps < MIN_NOISE_STEPS:
        return None
    own = host - host.mean(axis=0)
    mads = np.median(np.abs(own - np.median(own, axis=1, keepdims=True)), axis=1)
    # 1.4826 MADs are a standard deviation; the mean of the ranks has taken a rank's share of it away.
    return float(np.median(mads)) * 1.4826 / math.sqrt(1 - 1 / ranks)


def _normal_range(count: int) -> float:
    """Largest less smallest of so many standard normal values, about its median; for two 0.95, for eight 2.8.

    The middle of the largest lies where a share of 2 ** (-1 / count) is below it.
    """
    if count == MIN_RANKS:
        return math.sqrt(2) * NormalDist().inv_cdf(0.75)
    return 2 * NormalDist().inv_cdf(0.5 ** (1 / count))


def _slowest(host: I64, labels: Sequence[str], noise_ns: float | None) -> list[SlowestRank]:
    """host: ranks x steps."""
    late = np.argmax(host, axis=0)
    lag = host.max(axis=0) - np.median(host, axis=0)
    ranks, steps = host.shape
    found = []
    for rank, count in Counter(late.tolist()).most_common(MAX_SLOWEST):
        median_lag = float(np.median(lag[late == rank]))
        often = ranks * at_least(count, steps, 1 / ranks) < SIGNIFICANCE
        found.append(
            SlowestRank(
                label=labels[rank],
                steps=count,
                recurrence_frac=count / steps,
                median_lag_ns=round(median_lag),
                beyond_chance=often and noise_ns is not None and median_lag > NOISE_FACTOR * noise_ns,
            )
        )
    return found


def _gc(steps: Sequence[Sequence[HostStep]]) -> UnsynchronisedGc:
    """steps: by rank, the common ones in the same order."""
    if any(s.gc_ns is None for rank in steps for s in rank):
        return UnsynchronisedGc.missing(
            "Not every rank's capture names garbage collections.",
            "Put a range named `gc` around collections (gc.callbacks sees each of them); `perfdoc run` does.",
        )
    time = np.array([[s.gc_ns or 0 for s in rank] for rank in steps], np.int64)
    collected = time > 0
    anyone = collected.any(axis=0)
    slowest_sum, worst_rank = int(time.max(axis=0).sum()), int(time.sum(axis=1).max())
    return UnsynchronisedGc(
        **MEASURED,
        collecting_steps=int(np.count_nonzero(anyone)),
        split_steps=int(np.count_nonzero(anyone & ~collected.all(axis=0))),
        slowest_sum_ns=slowest_sum,
        worst_rank_ns=worst_rank,
        avoidable_ns=slowest_sum - worst_rank,
    )
