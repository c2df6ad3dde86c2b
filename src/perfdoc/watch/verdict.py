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
    Slower,
    clipped,
    joined,
    levels,
    slower,
    without_stalls,
)
from perfdoc.profiling.logs import job_tokens
from perfdoc.results import figures
from perfdoc.watch.causes import holds_more, reason_of_change, standing
from perfdoc.watch.findings import finding, of_memory, of_silent_ranks
from perfdoc.watch.memory import growth
from perfdoc.watch.parts import UNKNOWN_FRAC, slowest
from perfdoc.watch.result import RankNow, Watched
from perfdoc.watch.series import F32, JobSeries

MIN_STEPS = 30
"""After warm-up; fewer give no verdict."""
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
    change, shows = slowest(part, times, whole)
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


def _is_new(times: F64, begins: Sequence[int], change: Slower) -> bool:
    """Whether a change without a cause is large, and steps were never as long before: else they go up and
    down, as where others use the same machines."""
    taken = without_stalls(times)
    earlier = [a for a in begins if a < change.onset - MIN_LEVEL] or [0]
    longest = max(float(taken[a:b].mean()) for a, b in pairwise([*earlier, change.onset]))
    return change.frac >= UNKNOWN_FRAC and longest < float(taken[change.after].mean()) - change.price / 2


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
