"""`perfdoc verify BEFORE AFTER`: a change that somebody made to a job of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from perfdoc import results as d
from perfdoc.compare.facts import (
    OF_NO_STEADY_STEP,
    Facts,
    differences,
    facts_of,
    fingerprint,
    in_words,
    of_the_machine,
)
from perfdoc.compare.runs import run_manifest
from perfdoc.compare.verify.advised import (
    NOT_IN_EVERY_STEP,
    WORK_OF_A_STEP,
    Diagnosed,
    diagnosed,
    fired,
    prediction_of,
    together,
    value_of,
)
from perfdoc.compare.verify.gain import Outcome, judge, of_two_runs
from perfdoc.compare.verify.record import ChangedSetting, Measured, Record, checked
from perfdoc.compare.verify.rerun import Steps, steady_times
from perfdoc.knobs.knob import Value
from perfdoc.knobs.settings import read_configuration
from perfdoc.knobs.values import as_text
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.run_directory import utc_now
from perfdoc.records import dataclass
from perfdoc.version import __version__

_Kind = Literal["unprofiled", "analysed"]
_ASIDE = frozenset(
    {
        *OF_NO_STEADY_STEP,
        *("log_interval", "lr", "min_lr", "lr_decay_style", "weight_decay"),
        *("adam_beta1", "adam_beta2", "adam_eps"),
    }
)
"""Settings that no steady step feels."""
_NAMED = 3


@dataclass(frozen=True, kw_only=True)
class Side:
    """One of the two."""

    path: Path
    steps: Mapping[_Kind, Steps]
    settings: Mapping[str, Value] | None
    """None: not known."""
    facts: Facts


def compared(
    before_path: Path,
    after_path: Path,
    codes: Sequence[str] = (),
    *,
    before_config: Path | None = None,
    after_config: Path | None = None,
    note: str = "",
) -> Record:
    """The record of a comparison. Raises UserError and TraceError.

    codes: of the rules that were followed; where none is given, those whose advice the settings show.
    before_config, after_config: the settings of either side, where it does not hold them.
    """
    if before_path.exists() and after_path.exists() and before_path.samefile(after_path):
        raise UserError(f"{after_path}: is the same as BEFORE.")
    predicting = diagnosed(before_path)
    before = _side(before_path, predicting.diagnosis, before_config)
    after = _side(after_path, None, after_config)
    differ = _differences(before, after)
    rules = [fired(predicting.diagnosis, code) for code in codes] or _followed(predicting, after, differ)
    asked = {piece.knob for rule in rules for piece in rule.advice}
    if differ:
        asked &= _made(rules, after, {s.knob for s in differ})
    found = [prediction_of(rule, asked) for rule in rules]
    predicted = together([r.predicted for r in found])
    rare = sorted(NOT_IN_EVERY_STEP & asked)
    measured = _measured(before, after, "mean" if rare else "median")
    others = [s for s in differ if s.knob not in asked]
    machine = _machine(before, after)
    outcome = _attributed(judge(predicted, measured), differ, others, machine)
    if rare and measured.statistic != "mean":
        outcome = _unseen(rare[0], outcome)
    facts = of_the_machine(before.facts)
    record = Record(
        kind="two runs",
        utc=utc_now(),
        perfdoc_version=__version__,
        source=before_path.resolve().name,
        diagnosis_sha256=predicting.sha256,
        rules=found,
        settings=[s for s in differ if s.knob in asked],
        other_differences=others,
        predicted=predicted,
        measured=measured,
        verdict=outcome.verdict,
        reason=outcome.reason,
        complete=True,
        facts=facts,
        fingerprint=fingerprint(facts),
        notes=_notes(note, machine),
    )
    return checked(record)


def _attributed(
    outcome: Outcome,
    differ: Sequence[ChangedSetting],
    others: Sequence[ChangedSetting],
    machine: Sequence[str],
) -> Outcome:
    """The verdict where nothing but the advice can have made the difference; inconclusive where more is known
    to differ: one comparison cannot tell which of several causes it was."""
    more = [s.knob for s in others]
    if work := sorted({s.knob for s in differ} & WORK_OF_A_STEP):
        why = f"a step does other work ({', '.join(work)}): compare tokens per second"
    elif more:
        why = f"{', '.join(more[:_NAMED])} differ{'s' if len(more) == 1 else ''} as well and may be the cause"
    elif machine:
        why = f"not of the same machine or versions ({', '.join(machine[:_NAMED])}), which may be the cause"
    else:
        return outcome
    return Outcome(verdict="inconclusive", reason=f"{why}; by the times alone: {outcome.verdict}")


def _unseen(knob: str, outcome: Outcome) -> Outcome:
    """The verdict on a change that median steps do not see."""
    why = f"{knob} is of what only some steps do, which median steps do not show: give two run directories"
    return Outcome(verdict="inconclusive", reason=f"{why}; by the medians: {outcome.verdict}")


def _side(path: Path, known: d.Diagnosis | None, config: Path | None) -> Side:
    """Step times and settings. known: the diagnosis, where it was read already."""
    steps: dict[_Kind, Steps] = {}
    facts: Facts = {}
    is_run = path.is_dir() and (path / "run.json").is_file()
    if is_run:
        facts = facts_of(run_manifest(path))
        steps["unprofiled"] = steady_times(path)
    else:
        times = (known or diagnosed(path).diagnosis).analyses.step_times
        both: tuple[_Kind, _Kind] = ("unprofiled", "analysed")
        for kind in both:
            if (found := getattr(times, kind)) is not None and found.count > 0:
                median = found.median_ns / 1e6
                deviation = found.variation_frac * median
                steps[kind] = Steps(median_ms=median, mean_ms=None, deviation_ms=deviation, count=found.count)
    where = config or (path if is_run else None)
    return Side(path=path, steps=steps, settings=_settings(where), facts=facts)


def _settings(path: Path | None) -> Mapping[str, Value] | None:
    if path is None:
        return None
    try:
        return read_configuration(path).values
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}.") from error


def _differences(before: Side, after: Side) -> list[ChangedSetting]:
    """Settings that differ, as far as both sides are known."""
    if before.settings is None or after.settings is None:
        return []
    names = [n for n in {**before.settings, **after.settings} if n not in _ASIDE]
    return [
        ChangedSetting(knob=name, before=_text(before.settings, name), after=_text(after.settings, name))
        for name in names
        if before.settings.get(name) != after.settings.get(name)
    ]


def _made(rules: Sequence[d.RuleResult], after: Side, changed: Collection[str]) -> set[str]:
    """Settings that were changed to what is advised; to anything else, they are another change."""
    settings = after.settings or {}
    return {
        piece.knob
        for rule in rules
        for piece in rule.advice
        if piece.knob in changed and not piece.forbidden and settings.get(piece.knob) == value_of(piece)
    }


def _text(settings: Mapping[str, Value], name: str) -> str | None:
    return as_text(settings[name]) if name in settings else None


def _followed(predicting: Diagnosed, after: Side, differ: Sequence[ChangedSetting]) -> list[d.RuleResult]:
    """Rules of whose advice at least one piece was made. Raises UserError where that is none."""
    if after.settings is None or not differ:
        raise UserError(
            "no setting is known to differ, so which advice was followed is not known: name it with --rule "
            "PD…, or give the settings of both (--before-config, --after-config)."
        )
    changed = {s.knob for s in differ}
    fires = [rule for rule in predicting.diagnosis.rules if rule.state == "fires"]
    found = [rule for rule in fires if _made([rule], after, changed)]
    if not found:
        raise UserError(
            f"no rule of BEFORE advised what differs ({', '.join(sorted(changed)[:8])}): name it by --rule."
        )
    return found


def _measured(before: Side, after: Side, statistic: Literal["median", "mean"]) -> Measured:
    """Like is compared with like: a profiled step is no measure of an unprofiled one. By medians where the
    means of either side are not known."""
    kinds: tuple[_Kind, _Kind] = ("unprofiled", "analysed")
    kind = next((k for k in kinds if k in before.steps and k in after.steps), None)
    if kind is None:
        lacking = after if before.steps else before
        raise UserError(
            f"{lacking.path}: has no step times that can be compared: give two run directories or two traces "
            "with step ranges."
        )
    a, b = before.steps[kind], after.steps[kind]
    deviations, counts = (a.deviation_ms, b.deviation_ms), (a.count, b.count)
    if statistic == "mean" and a.mean_ms is not None and b.mean_ms is not None:
        return of_two_runs(a.mean_ms, b.mean_ms, deviation_ms=deviations, steps=counts, statistic="mean")
    return of_two_runs(a.median_ms, b.median_ms, deviation_ms=deviations, steps=counts)


def _notes(note: str, machine: Sequence[str]) -> list[str]:
    notes = [note] if note else []
    notes.append("one run on either side: how runs scatter is not known, so 5 % of a step may be noise")
    if machine:
        notes.append(f"not of the same machine or versions: {', '.join(machine[:5])}")
    return notes


def _machine(before: Side, after: Side) -> list[str]:
    """What differs of hardware and versions, where both are known."""
    if not before.facts or not after.facts:
        return []
    return in_words(differences(of_the_machine(before.facts), of_the_machine(after.facts)))
