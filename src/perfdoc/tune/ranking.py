"""From what was tried to rows: bands, what each change adds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import comb

from perfdoc.knobs.knob import Value
from perfdoc.knobs.writing import way_and_words
from perfdoc.results.figures import per_cent, signed_share, significant
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.tune.job import Job
from perfdoc.tune.result import (
    Band,
    Change,
    MemoryBasis,
    Part,
    Row,
    Search,
    Settings,
    Tuning,
    is_faster,
    those_run,
    to_take,
    value_words,
)
from perfdoc.tune.search import Searched, Tried
from perfdoc.tune.space import DP, FIELD_OF, SHORT, Axes, Point, point_of, settings_of
from perfdoc.version import __version__

_MS = 1e6
_SAME_FRAC = 0.0025
"""Of the step: a change that brings less beside others is within the noise of any measurement."""
SHORT_OF: Mapping[str, str] = {key: short for short, key in SHORT.items()} | {DP: "dp"}
"""Settings in the words that the options take."""
_TOGETHER = {"first": "last", "last": "first"}


def tuning_of(job: Job, axes: Axes, found: Searched, *, top: int, inputs: Sequence[str]) -> Tuning:
    """The result: the unchanged configuration and the best `top`."""
    now = next((t for t in found.tried if t.point == point_of(job.base)), None)
    best = _distinct(found.tried, job.models.model.measured_ns)[:top]
    rows = [_row(job, i, t) for i, t in enumerate([*([now] if now else []), *best])]
    if now is None:  # cannot be: the model reproduces what it was made from
        rows = [replace(r, place=r.place + 1) for r in rows]
    memory = job.memory
    return Tuning(
        perfdoc_version=__version__,
        verdict=verdict_of(rows),
        inputs=list(inputs),
        model=(job.facts.model.name or None) if job.facts.model is not None else None,
        dialect=job.configuration.dialect,
        step_ms=job.models.model.measured_ns / _MS,
        model_error_frac=job.models.model.error_frac,
        ranks_captured=job.captured,
        stages_composed=sum(s.origin == "composed" for s in job.models.model.stages),
        stages=len(job.models.model.stages),
        rows=rows,
        memory=MemoryBasis(
            basis=memory.basis,
            reason=memory.reason or memory.limit_reason,
            gpu_bytes=memory.gpu_bytes,
            limit_bytes=memory.limit_bytes,
        ),
        search=Search(
            method=found.method,
            searched=[key for key, name in FIELD_OF.items() if len(axes.values[name]) > 1],
            combinations=found.combinations,
            allowed=found.allowed,
            predicted=len(found.tried),
            left_out=found.left_out,
        ),
        measuring=None,
        notes=[*job.notes],
    )


def verdict_of(rows: Sequence[Row]) -> str:
    """The best configuration in a sentence."""
    now, best = rows[0], to_take(rows)
    if best is None:
        step = significant(now.step_ms.mid, 4)
        return f"Nothing that was tried beats the current configuration: {step} ms a step."
    gain = (
        f"{significant(best.step_ms.mid, 4)} ms a step instead of {significant(now.step_ms.mid, 4)} "
        f"({signed_share(-best.gain_frac)}; {signed_share(-best.gain_ms.low / now.step_ms.mid)} to "
        f"{signed_share(-best.gain_ms.high / now.step_ms.mid)})"
    )
    sure = "; within the model's error" if best.within_error else ""
    more = "; #1 may bring more, and may lose: within the model's error" if best.place > 1 else ""
    return f"{gain} with {changes_words(best.changes)}{sure}{more}."


_SURE = 0.01  # as the gate's: what chance shows more often is said


def _by_chance(others: int, runs: int, unchanged: int) -> str:
    """How often one of so many configurations, equal to the unchanged one, has each of its runs quicker than
    all of that: of the orders of all runs, each alike likely, those in which some of them come first."""
    first = (Fraction(comb(others, j), comb(unchanged + j * runs, unchanged)) for j in range(1, others + 1))
    chance = float(sum(part * (-1) ** j for j, part in enumerate(first)))
    often = f" By chance, equal ones look so in {per_cent(chance, 0)} of cases: give more --rounds."
    return often if chance > _SURE else ""


def verdict_measured(rows: Sequence[Row], now_ms: float) -> str:
    """The best configuration of those that were run. now_ms: a step of the unchanged one."""
    best, ((_, now), *others), step = to_take(rows), those_run(rows), significant(now_ms, 4)
    trial = next((t for row, t in others if row is best), None)
    if best is not None and trial is not None and trial.step_ms is not None:
        alike = ", ".join(f"#{row.place}" for row, t in others if row is not best and not is_faster(trial, t))
        return (
            f"{significant(trial.step_ms, 4)} ms a step instead of {step} "
            f"({signed_share(trial.step_ms / now_ms - 1)}), measured, with {changes_words(best.changes)}"
            f"{f'; its runs overlap those of {alike}' if alike else ''}."
            f"{_by_chance(len(others), trial.runs, now.runs)}"
        )
    median = others[0][1].step_ms if others else None
    if median is None or median >= now_ms:
        return f"Nothing that was run beats the current configuration: {step} ms a step, measured."
    return (
        f"Nothing that was run is surely faster than the current configuration, {step} ms a step: the "
        f"quickest took {significant(median, 4)}, and runs of both overlap. More of them may tell: --rounds."
    )


def changes_words(changes: Sequence[Change]) -> str:
    """`vpp=10`: the settings that were searched; what follows from them is left to the list of all."""
    known = [c for c in changes if c.knob in SHORT_OF] or list(changes)
    return " ".join(f"{SHORT_OF.get(c.knob, c.knob)}={value_words(c.after)}" for c in known) or "unchanged"


def changes_in(job: Job, changes: Mapping[str, Value]) -> list[Change]:
    """With what holds now, and as it is written."""
    found = []
    for knob, value in changes.items():
        way, words = way_and_words(knob, value, job.configuration.dialect)
        found.append(Change(knob=knob, before=_now(job, knob), after=value, written=words, way=way))
    return found


def _now(job: Job, knob: str) -> Value:
    known, value = job.setting(knob)
    if known or knob not in FIELD_OF:
        return value
    found: Value = getattr(point_of(job.base), FIELD_OF[knob])
    return found


def settings_in(job: Job, settings: JobSettings) -> Settings:
    """As it is published."""
    return Settings(
        gpus=settings.world,
        tp=settings.tp,
        pp=settings.pp,
        cp=settings.cp,
        ep=settings.ep,
        dp=settings.dp,
        vpp=settings.vpp,
        micro_batch_size=settings.mbs if job.facts.micro_batch_sequences is not None else None,
        micro_batches=settings.micro_batches,
        layers=list(settings.layers) if all(settings.layers) else [],
        recompute=settings.recompute,
    )


def _row(job: Job, place: int, tried: Tried) -> Row:
    model, now = job.models.model, job.models.model.measured_ns / _MS
    gain = job.models.gain(tried.settings)
    low, mid, high = gain.low_ms or 0.0, gain.mid_ms or 0.0, gain.high_ms or 0.0
    step = now - mid
    facts = job.facts
    tokens = None
    if facts.global_batch_sequences and facts.sequence_length and job.degrees_known:
        tokens = facts.global_batch_sequences * facts.sequence_length / (step / 1e3) / tried.settings.world
    mfu = None
    if job.mfu.value is not None and job.mfu.step_time_ns:
        mfu = job.mfu.value * job.mfu.step_time_ns / _MS / step
    return Row(
        place=place,
        settings=settings_in(job, tried.settings),
        changes=changes_in(job, tried.changes),
        step_ms=Band(low=now - high, mid=step, high=now - low),
        gain_ms=Band(low=low, mid=mid, high=high),
        gain_frac=mid * _MS / model.measured_ns,
        within_error=low <= 0 <= high,
        tokens_per_s_per_gpu=tokens,
        mfu_frac=mfu,
        memory_bytes=tried.need_bytes,
        parts=parts_of(job, tried.point),
        assumptions=list(gain.assumptions),
    )


def parts_of(job: Job, to: Point) -> list[Part]:
    """What each change adds, the best one first, each beyond those before it: they sum to the whole.

    Changes that no model has alone come together: chunks that only another number of stages allows.
    """
    at = point_of(job.base)
    left = [n for n in FIELD_OF.values() if getattr(at, n) != getattr(to, n)]
    groups = [(n,) if n not in _TOGETHER else tuple(sorted((n, _TOGETHER[n]))) for n in left]
    groups = list(dict.fromkeys(groups))
    key_of = {name: key for key, name in FIELD_OF.items()}
    step, parts = job.models.model.measured_ns, []
    while groups:
        some = [(s, g) for g in groups if (s := _step_ns(job, _with(at, to, g))) is not None]
        if not some:
            whole = tuple(n for g in groups for n in g)
            last = _step_ns(job, to)
            some = [(step if last is None else last, whole)]
            groups = [whole]
        best, group = min(some, key=lambda s: s[0])
        changed = [key_of[n] for n in group if getattr(at, n) != getattr(to, n)]
        parts.append(Part(knobs=changed, gain_ms=(step - best) / _MS))
        at, step = _with(at, to, group), best
        groups.remove(group)
    return parts


def _with(at: Point, to: Point, names: Sequence[str]) -> Point:
    return replace(at, **{n: getattr(to, n) for n in names})


def _step_ns(job: Job, point: Point) -> float | None:
    try:
        return job.models.model.step_ns(settings_of(job.base, point))
    except ValueError:
        return None


def _distinct(tried: Sequence[Tried], measured_ns: float) -> list[Tried]:
    """The changed ones, without those that a part of their changes does as well."""
    found: list[Tried] = []
    simple = sorted((t for t in tried if t.changes), key=lambda t: len(t.changes))
    for t in (t for t in tried if t.changes):
        if t.step_ns >= measured_ns and len(found) > 0:
            break
        mine = t.changes.items()
        better = any(
            len(s.changes) < len(t.changes)
            and s.changes.items() <= mine
            and s.step_ns <= t.step_ns + _SAME_FRAC * measured_ns
            for s in simple
        )
        if not better:
            found.append(t)
        if len(found) >= 200:
            break
    return found
