"""From the steps of a job to what is said of it: levels, ranks beside each other, findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.figures import MAD_TO_SIGMA, warmup_steps
from perfdoc.analyzers.steps.levels import (
    F64,
    MIN_LEVEL,
    MOST_STEPS,
    PRACTICAL_FRAC,
    Slower,
    blocks,
    clipped,
    joined,
    levels,
    slower,
    without_stalls,
)
from perfdoc.analyzers.steps.slower import Sample, change_between
from perfdoc.profiling.logs import job_tokens
from perfdoc.results import figures
from perfdoc.watch.causes import EXPLAINS_FRAC, holds_more, reason_of_change, standing
from perfdoc.watch.findings import finding, of_memory, of_silent_ranks
from perfdoc.watch.memory import growth
from perfdoc.watch.result import RankNow, Watched
from perfdoc.watch.series import F32, PHASES, JobSeries

PARTS = ("data_ns", "garbage_ns", "rank_tokens", "forward_ns", "backward_ns", "optimizer_ns", "wait_ns")
WORK = ("forward_ns", "backward_ns", "optimizer_ns")
PAID_NOW_AND_THEN = ("garbage_ns", "rank_tokens", "data_ns")
"""Perhaps by some steps only: by every tenth, or as workers of a loader come round."""
_MIN_CORRELATION = 0.3
"""Of the work of ranks with their tokens, both beside the mean over ranks, step by step."""
MIN_STEPS = 30
"""After warm-up; fewer give no verdict."""
UNKNOWN_FRAC = 0.05
"""A change without a cause, or one that whole steps do not show, is told from here on."""
LASTING_STEPS = 40
"""What whole steps do not show is told after so many."""
_NOW = 50
"""Last steps that ranks are compared over."""
_SHOWN = 8


def watched(series: JobSeries | None, *, command: Sequence[str] = ()) -> Watched:
    """What is to be said. command: the words that started the job, for the capture that is proposed."""
    if series is None or len(series.step) == 0:
        return _too_little(series, "no step was written by every rank")
    rows = _steady(series)
    findings = of_silent_ranks(series)
    if len(rows) < MIN_STEPS:
        found = _too_little(series, f"{len(rows)} steady steps: {MIN_STEPS} are needed")
        return replace(found, state="act", findings=findings) if findings else found
    part = _part(series, rows)
    times = np.asarray(part.time_ns, np.float64)
    proposed = levels(times)
    begins = joined(times, proposed)
    whole = slower(times, begins) or slower(clipped(times), proposed)  # a few slow ones may hide the others
    change, shows = _slowest(part, times, whole)
    notes = _notes(part)
    first = 0
    if change is not None and holds_more(part, change.before, change.after):
        notes.append(f"since step {part.step[change.onset]:,} steps are longer by as many more tokens")
        first = int(change.after[0])
    elif change is not None:
        reason = reason_of_change(shows, change.onset, change.before[-200:], change.after[-200:])
        if reason.cause != "unknown" or _is_new(times, begins, change):
            findings.append(finding(part, reason, change.price, times, command, onset=change.onset))
        first = int(change.after[0])
    last = np.arange(max(first, len(times) - 200), len(times))
    stands = standing(part, last) if len(last) >= MIN_STEPS else None
    if stands is not None:
        rank = part.ranks[stands.reason.ranks[0]]
        if not any(rank in found.ranks for found in findings):
            findings.append(finding(part, stands.reason, stands.price_ns, times, command, onset=None))
    if (grows := growth(part, 0)) is not None:
        findings.append(of_memory(part, grows))
    findings.sort(key=lambda f: -(f.price_ns or 0))
    own = np.arange(max(begins[-1], first), len(times))
    taken = without_stalls(times)
    level, middle = float(taken[own].mean()), float(np.median(taken[own]))
    return Watched(
        schema_version=1,
        source=series.source,
        state="act" if findings else "fine",
        reason="",
        first_step=int(series.step[0]),
        last_step=int(series.step[-1]),
        steps=len(times),
        ranks=len(series.ranks),
        silent_ranks=list(series.silent),
        step_ns=round(level),
        noise_frac=MAD_TO_SIGMA * float(np.median(np.abs(taken[own] - middle))) / level,
        tokens_per_s=_tokens_per_s(part, level),
        mfu_frac=series.mfu_frac,
        levels=[
            (int(part.step[a]), round(float(taken[a:b].mean())))
            for a, b in zip(begins, [*begins[1:], len(times)], strict=True)
        ],
        restarts=[start.step for start in series.starts[1:]],
        late=_ranks(part),
        typical=_row(part, np.arange(len(part.ranks)), -1, {}),
        findings=findings,
        notes=notes,
    )


def _steady(series: JobSeries) -> I64:
    """Positions of steps without profiler and warm-up, the last ones."""
    rows = np.flatnonzero(series.counted)
    times = np.median(series.values["duration_ns"][:, rows], axis=0)
    warm = warmup_steps(times.astype(np.int64)) or 0
    # The first step of a process loads and compiles, whatever its length.
    begins = {int(np.searchsorted(series.step, start.step)) for start in series.starts}
    return np.array([row for row in rows[warm:].tolist() if row not in begins], np.int64)[-MOST_STEPS:]


def _part(series: JobSeries, rows: I64) -> JobSeries:
    part = replace(
        series,
        step=series.step[rows],
        start_ns=series.start_ns[rows],
        values={name: values[:, rows] for name, values in series.values.items()},
        counted=series.counted[rows],
    )
    filled = {name: part.filled(v) if part.has(name) else v for name, v in part.values.items()}
    return replace(part, values=filled)


def _slowest(part: JobSeries, times: F64, change: Slower | None) -> tuple[Slower | None, JobSeries]:
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


def _is_new(times: F64, begins: Sequence[int], change: Slower) -> bool:
    """Whether a change without a cause is large, and steps were never as long before: else they go up and
    down, as where others use the same machines."""
    taken = without_stalls(times)
    earlier = [a for a in begins if a < change.onset - MIN_LEVEL] or [0]
    longest = max(float(taken[a:b].mean()) for a, b in pairwise([*earlier, change.onset]))
    return change.frac >= UNKNOWN_FRAC and longest < float(taken[change.after].mean()) - change.price / 2


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


def _tokens_per_s(part: JobSeries, level_ns: float) -> float | None:
    if part.has("tokens"):
        tokens = float(np.nanmedian(part.values["tokens"][:, -_NOW:]))
    elif part.has("rank_tokens") and part.began is not None:
        own = part.values["rank_tokens"][:, -_NOW:].mean(axis=1)
        tokens = job_tokens(own.tolist(), part.roles, part.began.world_size) or 0.0
    else:
        return None
    return tokens / level_ns * 1e9 if tokens > 0 else None


def _ranks(part: JobSeries) -> list[RankNow]:
    """Those that wait least first."""
    waits = np.nan_to_num(part.values["wait_ns"][:, -_NOW:].mean(axis=1))
    late = np.argsort(waits, kind="stable")[:_SHOWN].tolist()
    return [_row(part, np.array([at]), part.ranks[at], dict(part.roles[at])) for at in late]


def _row(part: JobSeries, rows: I64, rank: int, role: dict[str, int]) -> RankNow:
    def mean(values: F32) -> int | None:
        found = float(np.median(values[rows][:, -_NOW:].mean(axis=1)))
        return round(found) if np.isfinite(found) else None

    names = ("wait_ns", "data_ns", "forward_ns", "backward_ns", "optimizer_ns")
    memory = part.values["allocated_bytes" if part.has("allocated_bytes") else "resident_bytes"]
    return RankNow(
        rank=rank,
        role=role,
        own_ns=mean(part.own_ns),
        memory_bytes=mean(memory[:, -1:]),
        **{name: mean(part.values[name]) for name in names},
    )


def _notes(part: JobSeries) -> list[str]:
    notes = []
    if part.unrecorded:
        notes.append(f"{figures.plural(part.unrecorded, 'rank')} of the job wrote no row here")
    if not part.has("wait_ns"):
        notes.append(
            "waiting is not known, so that ranks cannot be told apart"
            if part.source == "rows"
            else "a log has no parts of a step: record() gives causes (docs/watch.md)"
        )
    return notes


def _too_little(series: JobSeries | None, reason: str) -> Watched:
    steps = [] if series is None else series.step.tolist()
    return Watched(
        schema_version=1,
        source="rows" if series is None else series.source,
        state="too_little",
        reason=reason,
        first_step=steps[0] if steps else None,
        last_step=steps[-1] if steps else None,
        steps=len(steps),
        ranks=0 if series is None else len(series.ranks),
        silent_ranks=[] if series is None else list(series.silent),
    )


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
