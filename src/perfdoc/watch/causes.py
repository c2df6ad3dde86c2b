"""Why a job is slower than it was: what each rank does itself, and what it waits for, before and after.

A step is a rank's own work and its waiting. Waiting ends on all ranks of a synchronisation at once, so that
those whose own work grew by what the step grew are late, and the others wait for them. Where nobody's own
work grew, either the late one changes from step to step, or the synchronisation itself takes longer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.levels import F64, blocks
from perfdoc.records import dataclass
from perfdoc.watch.result import Cause
from perfdoc.watch.series import F32, PHASES, JobSeries

EXPLAINS_FRAC = 0.5
"""A part explains a change if it grew by at least this part of it."""
MOST_OF_ALL = 0.9
"""Of the ranks are late: then it is all of them."""
MANY = 0.5
"""Of the ranks are late: no longer some ranks' trouble, unless they are a stage."""
MIN_CORRELATION = 0.5
STANDING_FRAC = 0.10
"""Of a step that a rank costs from the beginning on, to be named: ranks are never quite alike."""
STANDING_SHARE = 0.9
"""Of the blocks of steps in which it does."""
_RESTART_NEAR = 2


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A cause with what shows it."""

    cause: Cause
    ranks: Sequence[int] = ()
    """Positions in the series, the worst first; empty: all."""
    stage: int | None = None
    phase: str = ""
    """The part of a step that grew most, such as backward."""
    ratio: float | None = None
    """Of that part, by its peers'."""
    evidence: str = ""
    changed: tuple[str, object, object] | None = None


def reason_of_change(series: JobSeries, onset: int, before: I64, after: I64) -> Reason:
    """Why steps `after` are longer than those `before`; positions in the series."""
    for start in series.starts[1:]:
        at = int(np.searchsorted(series.step, start.step))
        if abs(at - onset) <= _RESTART_NEAR and start.changed:
            name = next(iter(start.changed))
            return Reason(cause="configuration", changed=(name, *start.changed[name]))
    if not series.has("wait_ns"):
        return Reason(cause="unknown")
    grown = _growth(series, "duration_ns", before, after)
    price = float(np.median(grown))
    own = grown - _growth(series, "wait_ns", before, after)
    late = np.flatnonzero(own >= EXPLAINS_FRAC * price)
    if len(late) >= max(MOST_OF_ALL * len(series.ranks), 1):
        return _of_all(series, before, after, own)
    if len(late):
        return _of_some(series, before, after, own, late)
    return _of_none(series, before, after, price)


def holds_more(series: JobSeries, before: I64, after: I64) -> bool:
    """Whether steps are longer since they train as many more tokens, as where the batch size ramps up."""
    field = "tokens" if series.has("tokens") else "rank_tokens"
    if not series.has(field):
        return False
    tokens, times = series.values[field].mean(axis=0), series.time_ns
    if not np.isfinite(tokens).all():
        return False
    more = float(tokens[after].mean()) / max(float(tokens[before].mean()), 1)
    return more > 1 and more - 1 >= MOST_OF_ALL * (float(times[after].mean() / times[before].mean()) - 1)


def _growth(series: JobSeries, name: str, before: I64, after: I64) -> F64:
    """By how much the mean of a field grew, by rank; 0 where it is not known."""
    values = series.values[name]
    with np.errstate(invalid="ignore"):
        grown = np.asarray(values[:, after], np.float64).mean(axis=1) - values[:, before].mean(axis=1)
    return np.nan_to_num(np.asarray(grown, np.float64))


def _part(series: JobSeries, before: I64, after: I64, rows: I64, price: float) -> tuple[Cause | None, str]:
    """What part of their own work explains it, and the phase that grew most."""

    def grew(name: str) -> float:
        return float(np.median(_growth(series, name, before, after)[rows]))

    return _largest(grew, price)


def _largest(more: Callable[[str], float], price: float) -> tuple[Cause | None, str]:
    """(input or garbage where that explains a price, the phase that has most more of it)."""
    phase = max(PHASES, key=more)
    word = phase.removesuffix("_ns") if more(phase) >= EXPLAINS_FRAC * price else "own work"
    if more("data_ns") >= EXPLAINS_FRAC * price:
        return "input", "data"
    return "garbage" if more("garbage_ns") >= EXPLAINS_FRAC * price else None, word


def _longer_sequences(series: JobSeries, before: I64, after: I64, rows: I64) -> bool:
    """Whether tokens grew by at least half of what own work grew, both as a share."""
    if not series.has("rank_tokens"):
        return False
    tokens, own = series.values["rank_tokens"][rows], series.own_ns[rows]
    more = float(tokens[:, after].mean() / max(tokens[:, before].mean(), 1) - 1)
    longer = float(own[:, after].mean() / max(own[:, before].mean(), 1) - 1)
    return more > 0 and more >= EXPLAINS_FRAC * longer


def _of_all(series: JobSeries, before: I64, after: I64, own: F64) -> Reason:
    rows = np.arange(len(series.ranks))
    cause, phase = _part(series, before, after, rows, float(np.median(own)))
    if cause is None and _longer_sequences(series, before, after, rows):
        return Reason(cause="uneven_data", phase=phase, evidence="batches hold more tokens on every rank")
    return Reason(cause=cause or "unknown", phase=phase)


def _of_some(series: JobSeries, before: I64, after: I64, own: F64, late: I64) -> Reason:
    late = late[np.argsort(-own[late], kind="stable")]
    stage = stage_of(series, late)
    ratio = None
    cause, phase = _part(series, before, after, late, float(np.median(own[late])))
    others = np.setdiff1d(np.arange(len(series.ranks)), late)
    if cause is None and f"{phase}_ns" in PHASES and len(others):
        ratio = _ratio(series, f"{phase}_ns", late, others, before, after)
    if cause is None and _longer_sequences(series, before, after, late):
        cause = "uneven_data"
    if cause is None and stage is not None:
        cause = "slow_stage"
    if cause is None:
        cause = "slow_rank" if len(late) <= max(MANY * len(series.ranks), 1) else "unknown"
    evidence = _not_running(series, late, before, after, own) if cause == "slow_rank" else ""
    ranks = late.tolist() if stage is None else sorted(late.tolist())
    return Reason(cause=cause, ranks=ranks, stage=stage, phase=phase, ratio=ratio, evidence=evidence)


def _ratio(series: JobSeries, field: str, late: I64, others: I64, before: I64, after: I64) -> float | None:
    """How many times its peers' a part takes: that of the ranks before counts, since stages differ."""
    values = series.values[field]
    now, then = (values[:, rows].mean(axis=1) for rows in (after, before))
    if not (np.isfinite(now).all() and np.isfinite(then).all() and (then > 0).all()):
        return None
    return float(np.median(now[late] / then[late]) / np.median(now[others] / then[others]))


def _not_running(series: JobSeries, late: I64, before: I64, after: I64, own: F64) -> str:
    """On CPU ranks: whether the process ran no longer, so that something else had its core."""
    if series.began is None or series.began.device != "cpu" or not series.has("cpu_ns"):
        return ""
    ran = float(np.median(_growth(series, "cpu_ns", before, after)[late]))
    if ran < 0.25 * float(np.median(own[late])):
        return "its process ran no longer on its CPUs than before: it sleeps, or others take them"
    return ""


def stage_of(series: JobSeries, late: I64) -> int | None:
    """The pipeline stage that these ranks are all of; None where they are not, or there is one stage."""
    stages = [role.get("pp") for role in series.roles]
    named = {stages[i] for i in late.tolist()}
    if len(named) != 1 or len(set(stages)) < 2 or None in stages:
        return None
    (stage,) = named
    return stage if sum(s == stage for s in stages) == len(late) else None


def _of_none(series: JobSeries, before: I64, after: I64, price: float) -> Reason:
    own = np.asarray(series.own_ns, np.float64)
    ahead = own.max(axis=0) - own.mean(axis=0)
    floor = np.asarray(series.values["wait_ns"], np.float64).min(axis=0)
    longest, waiting = (float(v[after].mean() - v[before].mean()) for v in (ahead, floor))
    if longest >= EXPLAINS_FRAC * price and longest >= waiting:
        excess = (own - own.mean(axis=0))[:, after]
        for field, cause in (("rank_tokens", "uneven_data"), ("garbage_ns", "garbage"), ("data_ns", "input")):
            if _follows(excess, series.values[field][:, after]):
                late = np.argsort(-excess.mean(axis=1), kind="stable")[:1]
                ranks = late.tolist() if cause != "uneven_data" else []
                return Reason(cause=cause, ranks=ranks, evidence="another rank is late from step to step")  # type: ignore[arg-type]
        return Reason(cause="unknown", evidence="another rank is late from step to step")
    if waiting >= EXPLAINS_FRAC * price:
        return Reason(cause="slow_synchronisation")
    return Reason(cause="unknown")


def _follows(excess: F64, values: F32) -> bool:
    """Whether who is late is who has more of something, step by step."""
    if not np.isfinite(values).all():
        return False
    more = np.asarray(values - values.mean(axis=0), np.float64)
    if not more.any() or not excess.any():
        return False
    return float(np.corrcoef(excess.ravel(), more.ravel())[0, 1]) >= MIN_CORRELATION


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A rank that is late in nearly every step that is known, by so much of it."""

    reason: Reason
    price_ns: float


def standing(series: JobSeries, rows: I64) -> Standing | None:
    """One rank that all others wait for, from the first step that is known on; None where there is none.

    Only of ranks that do the same: data-parallel ones, each by its role. Stages of a pipeline differ.
    """
    if not series.has("wait_ns") or len(series.ranks) < 2:
        return None
    if any(not role for role in series.roles) or len({role.get("pp", 0) for role in series.roles}) > 1:
        return None
    own = np.asarray(series.own_ns[:, rows], np.float64)
    worst = int(np.argmax(own.mean(axis=1)))
    others = np.delete(own, worst, axis=0)
    excess = own[worst] - others.max(axis=0)
    price = float(excess.mean())
    step = float(series.time_ns[rows].mean())
    parts = np.array(blocks(excess))
    if price < STANDING_FRAC * step or (parts > 0).mean() < STANDING_SHARE:
        return None
    peers = np.delete(np.arange(len(series.ranks)), worst)

    def more(name: str) -> float:
        values = np.nan_to_num(series.values[name][:, rows]).mean(axis=1)
        return float(values[worst] - np.median(values[peers]))

    cause, word = _largest(more, price)
    if cause is None:
        tokens = series.values["rank_tokens"][:, rows]
        uneven = series.has("rank_tokens") and _follows(own - own.mean(axis=0), tokens)
        cause = "uneven_data" if uneven else "slow_rank"
    ratio = None
    if cause == "slow_rank" and f"{word}_ns" in PHASES:
        usual = float(np.median(np.nan_to_num(series.values[f"{word}_ns"][peers][:, rows]).mean(axis=1)))
        ratio = 1 + more(f"{word}_ns") / usual if usual > 0 else None
    return Standing(reason=Reason(cause=cause, ranks=[worst], phase=word, ratio=ratio), price_ns=price)
