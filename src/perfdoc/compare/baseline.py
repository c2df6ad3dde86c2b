"""`perfdoc analyze --baseline --target`: the headline figures held against an earlier diagnosis and targets,
by the code of `perfdoc diff` and of the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.compare.diff.pairing import NotComparableError
from perfdoc.compare.diff.result import Diff
from perfdoc.compare.diff.two_sides import compare
from perfdoc.compare.floors import KINDS, Floor, parse_floor
from perfdoc.compare.side import Loaded, load, measured_side
from perfdoc.compare.stored import diagnosis_in, is_diagnosis
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.values import as_text
from perfdoc.results import Diagnosis
from perfdoc.results.figures import GIB, significant
from perfdoc.results.headline import Against, AgainstFigure, DifferentFact, FigureName, Target
from perfdoc.traces import TraceError

_REMEDY = "Give a diagnosis.json, a report's folder, or a run directory with a report."
_MORE_IS_BETTER: dict[FigureName, bool] = {
    "mfu": True,
    "step_time": False,
    "tokens_per_s_per_gpu": True,
    "peak_memory": False,
}
_MOST_FACTS = 50
_NO_COUNT = 2**100
"""A diagnosis may come from elsewhere: nobody computes so many FLOPs in a step."""
_SAME_MODEL_FRAC = 0.01
"""Of the FLOPs of a token: versions of perfdoc may count a little otherwise, models differ by more."""


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """An earlier diagnosis."""

    name: str
    side: Loaded


def read_given(path: Path) -> Baseline:
    """Read it before any work is done. Raises TraceError."""
    try:
        name = path.resolve().name or str(path)
        inner = diagnosis_in(path)
        if not inner.exists():
            raise TraceError(path, "is not there.", _REMEDY)
        if not is_diagnosis(inner):
            raise TraceError(path, "is no diagnosis.", _REMEDY)
        return Baseline(name=name, side=load(str(inner)))
    except (OSError, RuntimeError) as error:  # A loop of links is a RuntimeError of resolve.
        raise TraceError(path, f"cannot be read: {error}.", _REMEDY) from error


def against(now: Loaded, baseline: Baseline | None, floors: Sequence[Floor]) -> Against | None:
    """None where neither a baseline nor a target was given."""
    targets = targets_of(now.diagnosis, floors)
    if baseline is None:
        return _answer("no_baseline", targets) if targets else None
    answer = partial(_answer, targets=targets, name=baseline.name)
    before = baseline.side
    try:
        diff = compare(before, now)
    except NotComparableError as error:
        return answer("incomparable", reason=error.why)
    one, two = before.diagnosis, now.diagnosis
    if models := _other_model(one, two):
        return answer("incomparable", reason=models)
    notes = [flag.message for flag in diff.flags]
    figures = []
    if batches := _other_batch(one, two):
        notes.insert(0, batches)
    elif diff.basis == "step":
        figures.append(_step_time(diff))
    same_work = one.mfu.flops_per_step is not None and one.mfu.flops_per_step == two.mfu.flops_per_step
    # Of one step's FLOPs and tokens both follow from its time, and so does their noise.
    noise = figures[0].noise_frac if figures and same_work else None
    pairs: list[tuple[FigureName, float | None, float | None, float | None]] = [
        ("mfu", one.mfu.value, two.mfu.value, noise),
        (
            "tokens_per_s_per_gpu",
            one.job.tokens_per_s_per_gpu if one.job else None,
            two.job.tokens_per_s_per_gpu if two.job else None,
            noise,
        ),
        ("peak_memory", peak_memory_bytes(one), peak_memory_bytes(two), None),
    ]
    figures += [figure_of(n, a, b, spare) for n, a, b, spare in pairs if a is not None and b is not None]
    settings = [
        DifferentFact(fact=s.knob, before=_said(s.before, s.before_set), now=_said(s.after, s.after_set))
        for s in diff.configuration.settings
    ]
    return answer("compared", figures=figures, differences=settings, notes=notes)


def _other_model(one: Diagnosis, two: Diagnosis) -> str:
    """Why the models cannot be the same; empty where nothing says so. A diagnosis holds no shape, but what a
    token costs follows from it, the sequence and the convention."""
    jobs = one.job, two.job
    if None in jobs or one.mfu.convention != two.mfu.convention:
        return ""
    lengths = {job.sequence_length for job in jobs if job is not None}
    per_token = [_flops_per_token(d) for d in (one, two)]
    if len(lengths) > 1 or None in lengths or None in per_token:
        return ""
    a, b = (f or 0.0 for f in per_token)
    if abs(b - a) <= _SAME_MODEL_FRAC * a:
        return ""
    before, here = (significant(flops / 1e9) for flops in (a, b))
    return f"the models differ: {before} GFLOP per token in the baseline, {here} GFLOP here"


def _tokens(found: Diagnosis) -> int | None:
    """Of a step; None where it is not known, or no number of tokens."""
    tokens = found.job.tokens_per_step if found.job is not None else None
    return tokens if tokens is not None and 0 < tokens < _NO_COUNT else None


def _flops_per_token(found: Diagnosis) -> float | None:
    tokens, flops = _tokens(found), found.mfu.flops_per_step
    return flops / tokens if tokens is not None and flops is not None and 0 < flops < _NO_COUNT else None


def _other_batch(one: Diagnosis, two: Diagnosis) -> str:
    """That steps do not do the same work; empty where they do, or nothing tells."""
    a, b = _tokens(one), _tokens(two)
    if a is None or b is None or a == b:
        return ""
    return f"a step has {a:,} tokens there and {b:,} here, so the times of steps are not compared"


def _step_time(diff: Diff) -> AgainstFigure:
    """The mean step; its noise is half of the interval in which its change lies."""
    noise, mean = diff.noise, diff.mean
    half = None
    if noise.low_ns is not None and noise.high_ns is not None and mean.before_ns:
        half = (noise.high_ns - noise.low_ns) / 2 / mean.before_ns
    return figure_of("step_time", mean.before_ns, mean.after_ns, half)


def figure_of(name: FigureName, before: float, now: float, noise: float | None) -> AgainstFigure:
    """One figure: figure_of("mfu", 0.4, 0.42, 0.01) changed by 5 %, which is more than noise, and better."""
    change = (now - before) / before if before else None
    return AgainstFigure(
        figure=name,
        before=before,
        now=now,
        change_frac=change,
        noise_frac=noise,
        within_noise=None if noise is None or change is None else abs(change) <= noise,
        better=None if now == before else (now > before) is _MORE_IS_BETTER[name],
    )


def _said(value: object, is_set: bool) -> str:
    return as_text(value) if is_set else f"{as_text(value)} by default"


def _answer(
    state: Literal["compared", "incomparable", "no_baseline"],
    targets: list[Target],
    *,
    name: str = "",
    reason: str = "",
    figures: Sequence[AgainstFigure] = (),
    differences: Sequence[DifferentFact] = (),
    notes: Sequence[str] = (),
) -> Against:
    return Against(
        state=state,
        reason=reason,
        baseline=name,
        figures=list(figures),
        differences=list(differences[:_MOST_FACTS]),
        notes=list(notes),
        targets=targets,
    )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A baseline that was read, and targets."""

    baseline: Baseline | None
    targets: Sequence[Floor]

    @classmethod
    def of(cls, baseline: Path | None, targets: Sequence[str]) -> Asked:
        """Raises ValueError, in one line, for a file or a word that is neither."""
        floors = [parse_target(text) for text in targets]
        return cls(baseline=None if baseline is None else read_given(baseline), targets=floors)

    def answered(
        self, diagnosis: Diagnosis, captures: Sequence[CaptureMeasurement], settings: Configuration
    ) -> Diagnosis:
        """The diagnosis with its figures held against them, if any. Raises TraceError."""
        if self.baseline is None and not self.targets:
            return diagnosis
        here = measured_side("", captures, diagnosis, settings)
        return replace(diagnosis, against=against(here, self.baseline, self.targets))


_FLOORS: dict[str, tuple[str, FigureName]] = {
    "mfu": ("mfu_min", "mfu"),
    "step_time_ms": ("step_time_max_ms", "step_time"),
    "tokens_per_s_per_gpu": ("tokens_per_s_per_gpu_min", "tokens_per_s_per_gpu"),
    "peak_memory_gib": ("peak_memory_max_gib", "peak_memory"),
}
"""By the option's name: the gate's limit, and the figure of the page."""
_BY_FLOOR = dict(_FLOORS.values())


def parse_target(text: str) -> Floor:
    """`mfu=0.45`, or a limit by the gate's name, `mfu_min=0.45`. Raises ValueError in one line."""
    name, equals, value = text.partition("=")
    floor = _FLOORS[name][0] if name in _FLOORS else name
    if floor not in _BY_FLOOR or not equals:
        raise ValueError(f"--target {text}: give NAME=VALUE, NAME one of {', '.join(_FLOORS)}.")
    if ":" in value:  # The gate's levels: a target fails nothing, and one that is off would be none.
        raise ValueError(f"--target {text}: {value!r} is no number.")
    try:
        return parse_floor(f"{floor}={value}")
    except ValueError as error:
        what = str(error).partition(": ")[2]
        if what.startswith("give "):  # of the gate's names, which are not the option's
            what = f"{value!r} is no number."
        raise ValueError(f"--target {text}: {what.replace(floor, name)}") from error


def targets_of(found: Diagnosis, floors: Sequence[Floor]) -> list[Target]:
    """What each target comes to with the figures of the page."""
    step, memory = step_time_ns(found), peak_memory_bytes(found)
    values: dict[FigureName, float | None] = {
        "mfu": found.mfu.value,
        "step_time": None if step is None else step / 1e6,
        "tokens_per_s_per_gpu": None if found.job is None else found.job.tokens_per_s_per_gpu,
        "peak_memory": None if memory is None else memory / GIB,
    }
    return [_target(floor, values[_BY_FLOOR[floor.name]]) for floor in floors]


def _target(floor: Floor, value: float | None) -> Target:
    at_least = KINDS[floor.name].at_least
    state: Literal["met", "missed", "unknown"] = "unknown"
    if value is not None:
        state = "met" if (value >= floor.limit if at_least else value <= floor.limit) else "missed"
    return Target(
        figure=_BY_FLOOR[floor.name], limit=floor.limit, at_least=at_least, value=value, state=state
    )


def step_time_ns(found: Diagnosis) -> int | None:
    """The median step of all ranks, as the page shows it; None where windows are not made of steps."""
    steps = sorted(s.duration_ns for r in found.ranks for s in r.window.step_list)
    whole = all(r.window.kind == "steps" for r in found.ranks)
    return steps[(len(steps) - 1) // 2] if steps and whole else None


def peak_memory_bytes(found: Diagnosis) -> int | None:
    """The most that was allocated on any device, as the page shows it."""
    peaks = [d.peak_allocated_bytes for d in found.analyses.memory.devices]
    return max((p for p in peaks if p is not None), default=None)
