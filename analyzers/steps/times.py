"""How long the steps of a job take: profiled and not, warm-up apart, outliers explained.

Two sources: the steps of the analysed window on every device, and the step log of the run directory (every
step, on the host's clock, by `perfdoc run`). A foreign trace has only the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.range_names import numbered
from perfdoc.analyzers.steps.figures import (
    MAX_OUTLIERS,
    MIN_WARMUP_STEPS,
    RankSteps,
    analysed_outliers,
    distribution,
    logged_outliers,
    median_range,
    warmup_steps,
)
from perfdoc.analyzers.steps.log import LoggedSteps, of_the_job
from perfdoc.results.quality import MEASURED
from perfdoc.results.step_times import (
    LogAgreement,
    ProfilerOverhead,
    RankStepTimes,
    StepLevel,
    StepTimes,
    WarmUp,
)

MIN_STEPS = 3
"""Fewer profiled, or fewer steady unprofiled, steps than this give no overhead."""
AGREEMENT_BAR_FRAC = 0.02
"""The analysed time of a step must be within 2 % of the logged one."""

MAX_LEVELS = 50

_NO_LOG = "No step log: the capture is not in a run directory."
_HOW_LOG = "Train with `perfdoc run`: it logs every step, profiled or not."


def measure_step_times(ranks: Sequence[RankSteps], logs: Mapping[int, LoggedSteps]) -> StepTimes:
    """Step times of one job from its analysed devices and its step logs by rank (`read_logged_steps`)."""
    measured = [r for r in ranks if r.ledgers.state == "measured"]
    job = of_the_job(logs)
    if job is None or not len(job.step):
        reason = _NO_LOG if job is None else "No step was logged by every rank."
        warmup, overhead = WarmUp.missing(reason, _HOW_LOG), ProfilerOverhead.missing(reason, _HOW_LOG)
        steady = None
    else:
        unprofiled = job.take(job.unprofiled)
        warmup = _warmup(unprofiled)
        steady = unprofiled.take(np.arange(warmup.steps or 0, len(unprofiled.step)))
        overhead = _overhead(job.duration_ns[job.profiled], steady.duration_ns)
    outliers = analysed_outliers(measured)
    if steady is not None:
        outliers += logged_outliers(steady, len(logs))
    if not measured and steady is None:
        why = ranks[0].ledgers if ranks else None
        return StepTimes.missing(
            why.reason if why else "There are no devices.",
            why.remedy if why else "",
            warmup=warmup,
            overhead=overhead,
            agreement=_no_agreement(_NO_LOG, _HOW_LOG),
        )
    return StepTimes(
        **MEASURED,
        analysed=distribution(_median_over_ranks(measured)),
        profiled=None if job is None else distribution(job.duration_ns[job.profiled]),
        unprofiled=None if steady is None else distribution(steady.duration_ns),
        warmup=warmup,
        overhead=overhead,
        agreement=_agreement(measured, logs),
        outliers=outliers[:MAX_OUTLIERS],
        outliers_left_out=max(len(outliers) - MAX_OUTLIERS, 0),
        ranks=_by_rank(measured, logs, warmup.last_step),
        **_levels(job, steady),
    )


def _levels(job: LoggedSteps | None, steady: LoggedSteps | None) -> dict[str, Any]:
    """Levels of the steady steps' times, the last ones, and in which of them steps were profiled."""
    if job is None or steady is None or not len(steady.step):
        return {}
    from perfdoc.analyzers.steps.levels import MOST_STEPS, joined, levels

    steady = steady.take(np.arange(max(len(steady.step) - MOST_STEPS, 0), len(steady.step)))
    times = np.asarray(steady.duration_ns, np.float64)
    bounds = [*joined(times, levels(times)), len(times)][-MAX_LEVELS - 1 :]
    found = [
        StepLevel(first_step=int(steady.step[a]), steps=b - a, median_ns=round(float(np.median(times[a:b]))))
        for a, b in itertools.pairwise(bounds)
    ]
    captured = None
    if job.profiled.any():
        at = np.searchsorted(
            [level.first_step for level in found], np.median(job.step[job.profiled]), "right"
        )
        captured = max(int(at) - 1, 0)
    return {"levels": found, "captured_level": captured}


def _warmup(unprofiled: LoggedSteps) -> WarmUp:
    steps = warmup_steps(unprofiled.duration_ns)
    if steps is None:
        return WarmUp.missing(
            f"{len(unprofiled.step)} unprofiled steps were logged; {MIN_WARMUP_STEPS} are needed.",
            "Train for more steps.",
        )
    usual = float(np.median(unprofiled.duration_ns[steps:]))
    return WarmUp(
        **MEASURED,
        steps=steps,
        last_step=int(unprofiled.step[steps - 1]) if steps else None,
        excess_ns=round(float(unprofiled.duration_ns[:steps].sum()) - steps * usual),
    )


def _overhead(profiled_ns: I64, steady_ns: I64) -> ProfilerOverhead:
    counts = len(profiled_ns), len(steady_ns)
    if min(counts) < MIN_STEPS:
        return ProfilerOverhead.missing(
            f"{counts[0]} profiled and {counts[1]} steady unprofiled steps were logged; "
            f"{MIN_STEPS} of each are needed.",
            "Profile fewer steps of a longer run, or more: --profile-steps.",
        )
    low, high = median_range(profiled_ns)
    low_usual, high_usual = median_range(steady_ns)
    few = min(counts) < 5
    return ProfilerOverhead(
        state="measured",
        reason="Few steps: the range is from the fastest to the slowest and may be too narrow."
        if few
        else "",
        remedy="",
        frac=float(np.median(profiled_ns) / np.median(steady_ns)) - 1,
        low_frac=low / high_usual - 1,
        high_frac=high / low_usual - 1,
        profiled_steps=counts[0],
        unprofiled_steps=counts[1],
    )


def _median_over_ranks(ranks: Sequence[RankSteps]) -> I64:
    """Time of each step that occurs on any device, the median over devices."""
    times: dict[tuple[str, int], list[int]] = {}
    for rank in ranks:
        seen: dict[str, int] = {}
        for name, ns in zip(rank.ledgers.names, rank.ledgers.duration_ns.tolist(), strict=True):
            seen[name] = seen.get(name, 0) + 1
            times.setdefault((name, seen[name]), []).append(ns)
    return np.array([np.median(t) for t in times.values()]).astype(np.int64)


def _agreement(ranks: Sequence[RankSteps], logs: Mapping[int, LoggedSteps]) -> LogAgreement:
    if not logs:
        return _no_agreement(_NO_LOG, _HOW_LOG)
    analysed, logged = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rank in ranks:
        log = logs.get(rank.rank) if rank.rank is not None else None
        if log is None or not len(log.step):
            continue
        number = np.array([_number(n) for n in rank.ledgers.names], np.int64)
        at = np.minimum(np.searchsorted(log.step, number), len(log.step) - 1)
        same = np.flatnonzero(log.step[at] == number)
        analysed.append(rank.ledgers.duration_ns[same])
        logged.append(log.duration_ns[at[same]])
    device, host = np.concatenate(analysed), np.concatenate(logged)
    if not len(device):
        return _no_agreement(
            "No analysed step is also in the log: ranks or step numbers are unknown.",
            "Analyse the run directory as a whole; steps must be named by their number.",
        )
    each = device / host - 1
    median = float(np.median(each))
    return LogAgreement(
        **MEASURED,
        steps=len(device),
        median_frac=median,
        total_frac=float(device.sum() / host.sum()) - 1,
        worst_frac=float(each[np.argmax(np.abs(each))]),
        bar_frac=AGREEMENT_BAR_FRAC,
        agrees=abs(median) <= AGREEMENT_BAR_FRAC,
    )


def _no_agreement(reason: str, remedy: str) -> LogAgreement:
    return LogAgreement.missing(reason, remedy, bar_frac=AGREEMENT_BAR_FRAC)


def _number(name: str) -> int:
    """The number that a step's name ends with; -1 none."""
    found = numbered(name)
    return -1 if found is None else found[1]


def _by_rank(
    ranks: Sequence[RankSteps], logs: Mapping[int, LoggedSteps], last_warmup: int | None
) -> list[RankStepTimes]:
    by_rank: dict[int | str, RankSteps] = {}
    for r in ranks:  # of two devices of one rank the second goes by its label
        by_rank[r.label if r.rank is None or r.rank in by_rank else r.rank] = r
    found = []
    for key in [*by_rank, *(rank for rank in logs if rank not in by_rank)]:
        device, log = by_rank.get(key), logs.get(key) if isinstance(key, int) else None
        steady = None
        if log is not None:
            steady = log.unprofiled & (log.step > (-1 if last_warmup is None else last_warmup))
        found.append(
            RankStepTimes(
                rank=key if isinstance(key, int) else None,
                label=device.label if device else f"rank {key}",
                analysed=distribution(device.ledgers.duration_ns) if device else None,
                profiled=distribution(log.duration_ns[log.profiled]) if log else None,
                unprofiled=distribution(log.duration_ns[steady]) if log and steady is not None else None,
            )
        )
    return found
