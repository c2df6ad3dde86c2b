"""The figures of a diagnosis against a baseline, by the code of `perfdoc diff` and of the gate."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.compare.baseline.given import Given, parse_target, peak_memory_bytes, read_given, targets_of
from perfdoc.compare.baseline_files import find, nearest
from perfdoc.compare.diff.pairing import NotComparableError
from perfdoc.compare.diff.result import Diff
from perfdoc.compare.diff.two_sides import compare
from perfdoc.compare.facts import differences
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.floors import Floor
from perfdoc.compare.runs import read_run
from perfdoc.compare.side import Loaded, measured_side
from perfdoc.compare.slower import MIN_HISTORY, Sample, change_between
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.values import as_text
from perfdoc.results import Diagnosis
from perfdoc.results.figures import significant
from perfdoc.results.headline import Against, AgainstFigure, DifferentFact, FigureName, Target
from perfdoc.traces import TraceError

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


def against(
    now: Loaded, given: Given | None, targets: Sequence[Floor], run_directory: Path | None
) -> Against | None:
    """None where neither a baseline nor a target was given. run_directory: of the captures, if known."""
    aimed = targets_of(now.diagnosis, targets)
    if given is None:
        return _answer(Given(name=""), "no_baseline", "", targets=aimed) if aimed else None
    if given.diagnosis is not None:
        return _with_diagnosis(now, given, given.diagnosis, aimed)
    return _with_runs(given, run_directory, aimed)


def _with_diagnosis(now: Loaded, given: Given, before: Loaded, aimed: list[Target]) -> Against:
    try:
        found = compare(before, now)
    except NotComparableError as error:
        return _answer(given, "incomparable", error.why, targets=aimed)
    one, two = before.diagnosis, now.diagnosis
    if models := _other_model(one, two):
        return _answer(given, "incomparable", models, targets=aimed)
    notes = [flag.message for flag in found.flags]
    figures = []
    if batches := _other_batch(one, two):
        notes.insert(0, batches)
    elif found.basis == "step":
        figures.append(_step_time(found))
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
        for s in found.configuration.settings
    ]
    return _answer(given, "compared", "", figures=figures, differences=settings, notes=notes, targets=aimed)


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


def _step_time(found: Diff) -> AgainstFigure:
    """The mean step; its noise is half of the interval in which its change lies."""
    noise = found.noise
    half = None
    if noise.low_ns is not None and noise.high_ns is not None and found.mean.before_ns:
        half = (noise.high_ns - noise.low_ns) / 2 / found.mean.before_ns
    return figure_of("step_time", found.mean.before_ns, found.mean.after_ns, half)


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


def _with_runs(given: Given, run_directory: Path | None, aimed: list[Target]) -> Against:
    """The run that the captures are of, against the accepted ones of the same facts."""
    accepted = given.accepted or {}
    if run_directory is None:
        reason = (
            "the captures are not from a run directory; the gate's baseline is matched by the facts of "
            "run.json and the step log"
        )
        return _answer(given, "incomparable", reason, targets=aimed)
    try:
        run = read_run(run_directory, label="", commit=None, peak_tflops=None)
    except TraceError as error:
        return _answer(
            given, "incomparable", f"the steps of the run cannot be compared: {error}", targets=aimed
        )
    # A label is the user's word at recording; the run itself has none.
    found = find(accepted, run.facts, ["label"])
    if found is None:
        _, closest = nearest(accepted, run.facts, ["label"]) or (None, None)
        differ = differences(closest.facts, run.facts, ["label"]) if closest else {}
        reason = f"no accepted run has the same facts; the nearest differs in {len(differ):,}"
        facts = [DifferentFact(fact=n, before=_text(a), now=_text(b)) for n, (a, b) in differ.items()]
        return _answer(given, "incomparable", reason, differences=facts, targets=aimed)
    path, baseline = found
    others = [r for r in baseline.runs if not r.is_same_run(run.figures)]
    if not others:
        return _answer(given, "incomparable", "the baseline holds only this run", targets=aimed)
    notes = ["medians of unprofiled steps; memory is the most reserved, or resident on a CPU", *run.notes]
    if len(others) < len(baseline.runs):
        notes.append("this run is in the baseline, and was left out of it")
    return _answer(
        Given(name=path.name, accepted=accepted),
        "compared",
        "",
        runs=len(others),
        figures=_of_runs(others, run.figures),
        notes=notes,
        targets=aimed,
    )


def _of_runs(accepted: Sequence[RunFigures], now: RunFigures) -> list[AgainstFigure]:
    """Means of the accepted runs; a figure that one of them lacks is left out."""
    columns: tuple[tuple[FigureName, str], ...] = (
        ("mfu", "mfu_frac"),
        ("step_time", "median_step_ns"),
        ("tokens_per_s_per_gpu", "tokens_per_s_per_gpu"),
        ("peak_memory", "peak_memory_bytes"),
    )
    found = []
    for name, column in columns:
        before = [getattr(run, column) for run in accepted]
        here = getattr(now, column)
        if here is not None and None not in before:
            found.append(figure_of(name, statistics.fmean(before), here, _noise(before, here)))
    return found


def _noise(before: Sequence[float], now: float) -> float | None:
    """What noise alone makes of one new run, as the gate has it; None with too few runs."""
    if len(before) < MIN_HISTORY or not any(before):
        return None
    return change_between(Sample.of(before), Sample.of([now]), also_alone=True).noise_frac()


def _said(value: object, is_set: bool) -> str:
    return as_text(value) if is_set else f"{as_text(value)} by default"


def _text(value: object) -> str | None:
    return None if value is None else as_text(value)


def _answer(
    given: Given,
    state: Literal["compared", "incomparable", "no_baseline"],
    reason: str,
    *,
    runs: int = 1,
    figures: Sequence[AgainstFigure] = (),
    differences: Sequence[DifferentFact] = (),
    notes: Sequence[str] = (),
    targets: Sequence[Target] = (),
) -> Against:
    kind: Literal["diagnosis", "gate", ""] = (
        "diagnosis" if given.diagnosis is not None else "gate" if given.accepted is not None else ""
    )
    return Against(
        state=state,
        reason=reason,
        baseline=given.name,
        kind=kind,
        runs=0 if state == "no_baseline" else runs,
        figures=list(figures),
        differences=list(differences[:_MOST_FACTS]),
        notes=list(notes),
        targets=list(targets),
    )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A baseline that was read, and targets."""

    given: Given | None
    targets: Sequence[Floor]

    @classmethod
    def of(cls, baseline: Path | None, targets: Sequence[str]) -> Asked:
        """Raises ValueError, in one line, for a file or a word that is neither."""
        floors = [parse_target(text) for text in targets]
        return cls(given=None if baseline is None else read_given(baseline), targets=floors)

    def answered(
        self, diagnosis: Diagnosis, captures: Sequence[CaptureMeasurement], settings: Configuration
    ) -> Diagnosis:
        """The diagnosis with its figures held against them, if any. Raises TraceError."""
        if self.given is None and not self.targets:
            return diagnosis
        here = measured_side("", captures, diagnosis, settings)
        found = against(here, self.given, self.targets, here.facts.run_directory)
        return replace(diagnosis, against=found)
