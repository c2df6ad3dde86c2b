"""The search: every combination where there are few, else a sampler that learns (optuna's TPE)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from typing import Any, Literal

from perfdoc.knobs.check import check
from perfdoc.knobs.knob import Value
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.installation import install_command
from perfdoc.records import dataclass
from perfdoc.simulator.job.settings import JobSettings
from perfdoc.tune.job import Job
from perfdoc.tune.result import LeftOut
from perfdoc.tune.space import (
    FIELD_OF,
    P2P,
    RECOMPUTE,
    Axes,
    Point,
    changes_of,
    point_of,
    points,
    settings_of,
)

EXHAUSTIVE_MAX = 4_000
"""Combinations that are allowed and fit; more are sampled. 20 s at 200 a second."""
ENUMERATED_MAX = 200_000
"""Combinations that are looked through for those that are allowed."""
TRIALS = 1_500
"""Of the sampler."""
_SEED = 0
_INSTALL = "the space is too large to try all of it, and optuna is not installed: {command}"
_DIGITS = re.compile(r"\d[\d,]*")
Kind = Literal["impossible", "forbidden", "memory", "not predicted"]


@dataclass(frozen=True, kw_only=True)
class Allowed:
    """A combination that can be, is allowed and fits."""

    point: Point
    settings: JobSettings
    changes: Mapping[str, Value]
    need_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Tried(Allowed):
    """With what the model predicts."""

    step_ns: float


@dataclass(kw_only=True)
class Reasons:
    """Why combinations are no rows: one line a reason, the first one's numbers in it."""

    counts: dict[tuple[Kind, str], LeftOut] = field(default_factory=dict)

    def add(self, kind: Kind, words: str) -> None:
        """Count one."""
        key = (kind, _DIGITS.sub("N", words))
        seen = self.counts.get(key, LeftOut(kind=kind, reason=words, count=0))
        self.counts[key] = replace(seen, count=seen.count + 1)

    def listed(self) -> list[LeftOut]:
        """The most frequent first."""
        return sorted(self.counts.values(), key=lambda r: -r.count)


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What came out."""

    tried: list[Tried]
    """By predicted step, the shortest first; the unchanged configuration is among them."""
    method: Literal["exhaustive", "sampled"]
    combinations: int
    allowed: int | None
    """None where not all were looked through."""
    left_out: list[LeftOut]


def allowed(job: Job, point: Point, reasons: Reasons) -> Allowed | None:
    """A combination; None, and its reason counted, where it cannot be had."""
    at = point_of(job.base)
    try:
        settings = settings_of(job.base, point)
    except ValueError as error:
        reasons.add("impossible", str(error))
        return None
    changes = changes_of(at, point, settings, job.base)
    changes = _with_companions(job, changes)
    domain = job.nvlink_domain
    inside = domain is None or settings.world <= domain or domain % point.tp == 0
    if point.tp > at.tp and not inside:
        reasons.add("forbidden", f"TP {point.tp} would leave the NVLink domain")
        return None
    if broken := check(job.configuration, changes):
        reasons.add("forbidden", broken[0].words)
        return None
    need = job.memory.need_bytes(settings)
    if against := job.memory.against(need):
        reasons.add("memory", against)
        return None
    return Allowed(point=point, settings=settings, changes=changes, need_bytes=need)


_EXCLUDED: Mapping[tuple[str, Value], Mapping[str, Value]] = {
    (P2P, True): {"batch_p2p_comm": False},
    (RECOMPUTE, "full"): {"recompute_modules": None},
}
"""What a change takes back where it is set: megatron-core refuses both, or one says nothing then."""


def _with_companions(job: Job, changes: Mapping[str, Value]) -> dict[str, Value]:
    """Without what is so already, and with what a change excludes taken back where it is known to be set."""
    found = {k: v for k, v in changes.items() if job.setting(k) != (True, v)}
    for (knob, value), others in _EXCLUDED.items():
        if knob in found and found[knob] == value:
            for other, back in others.items():
                known, now = job.setting(other)
                if known and now not in (back, None):
                    found[other] = back
    return found


def search(job: Job, axes: Axes, *, exhaustive_max: int = EXHAUSTIVE_MAX, trials: int = TRIALS) -> Searched:
    """Predict combinations. UserError where the space wants a sampler that is not installed."""
    reasons = Reasons()
    now = point_of(job.base)
    found: dict[Point, Tried] = {}
    if (base := _tried(job, allowed(job, now, Reasons()), reasons)) is not None:
        found[now] = base
    few = list(itertools.islice(points(axes), ENUMERATED_MAX + 1))
    if len(few) <= ENUMERATED_MAX:
        can = [a for p in few if p != now and (a := allowed(job, p, reasons)) is not None]
        if len(can) <= exhaustive_max:
            for a in can:
                if (tried := _tried(job, a, reasons)) is not None:
                    found[a.point] = tried
            return _searched(found, "exhaustive", len(few), len(can) + 1, reasons)
        known = {a.point: a for a in can}
        _sample(job, axes, known.get, found, reasons, trials)
        return _searched(found, "sampled", len(few), len(can) + 1, reasons)
    _sample(job, axes, lambda p: allowed(job, p, reasons), found, reasons, trials)
    return _searched(found, "sampled", axes.size, None, reasons)


def _searched(
    found: Mapping[Point, Tried],
    method: Literal["exhaustive", "sampled"],
    combinations: int,
    can: int | None,
    reasons: Reasons,
) -> Searched:
    return Searched(
        tried=sorted(found.values(), key=lambda t: (t.step_ns, len(t.changes))),
        method=method,
        combinations=combinations,
        allowed=can,
        left_out=reasons.listed(),
    )


def _tried(job: Job, one: Allowed | None, reasons: Reasons) -> Tried | None:
    if one is None:
        return None
    try:
        step = job.models.model.step_ns(one.settings)
    except ValueError as error:
        reasons.add("not predicted", str(error))
        return None
    return Tried(**vars(one), step_ns=step)


def _sample(
    job: Job,
    axes: Axes,
    allow: Callable[[Point], Allowed | None],
    found: dict[Point, Tried],
    reasons: Reasons,
    trials: int,
) -> None:
    """Fill `found`. It begins beside the current configuration: each setting changed alone."""
    try:
        import optuna
    except ImportError as error:
        raise UserError(_INSTALL.format(command=install_command("tune"))) from error
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=_SEED, multivariate=False))
    now = point_of(job.base)
    start = {name: getattr(now, name) for name in FIELD_OF.values()}
    for name, value in _alone(axes):
        study.enqueue_trial({**start, name: value})
    names = list(FIELD_OF.values())

    def objective(trial: Any) -> float:
        point = Point(**{n: trial.suggest_categorical(n, list(axes.values[n])) for n in names})
        if point not in found:
            can = allow(point)
            tried = None if can is None else _tried(job, can, reasons)
            if tried is None:
                raise optuna.TrialPruned
            found[point] = tried
        return found[point].step_ns

    study.optimize(objective, n_trials=trials)


def _alone(axes: Axes) -> Iterable[tuple[str, Any]]:
    for name, values in axes.values.items():
        if len(values) > 1:
            for value in values:
                yield name, value
