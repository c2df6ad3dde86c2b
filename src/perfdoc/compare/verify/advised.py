"""What a verification starts from: the settings that fired rules advise, and both configurations."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import yaml

from perfdoc import results as d
from perfdoc.compare.stored import REPORT, is_diagnosis, read_diagnosis
from perfdoc.compare.verify.record import ChangedSetting, Predicted, RulePrediction
from perfdoc.knobs.check import check
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.knobs.values import as_text
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.manifest import Manifest
from perfdoc.records import dataclass
from perfdoc.rules.engine import advise
from perfdoc.rules.engine.gain import best_of
from perfdoc.traces import TraceError
from perfdoc.trainer.config.resolve import KEYS
from perfdoc.trainer.config.schema import Config


@dataclass(frozen=True, kw_only=True)
class Diagnosed:
    """A diagnosis and its serial form's digest."""

    diagnosis: d.Diagnosis
    sha256: str
    analysed_now: bytes | None
    """The serial form, where it was not there before."""


def diagnosed(path: Path) -> Diagnosed:
    """A diagnosis.json, or that of a run directory's report; of a run or trace without one it is made now.

    Raises TraceError and UserError.
    """
    report = path / REPORT
    if is_diagnosis(path) or (path.is_dir() and report.is_file()):
        result, content = read_diagnosis(path if is_diagnosis(path) else report)
        return Diagnosed(diagnosis=result, sha256=hashlib.sha256(content).hexdigest(), analysed_now=None)
    from perfdoc.diagnose.asked import parse_request
    from perfdoc.diagnose.measuring import analysed
    from perfdoc.diagnose.workers import WorkerLostError

    try:
        result = analysed(parse_request([str(path)])).diagnosis
    except WorkerLostError as error:
        raise TraceError(path, f"was not analysed: {error}", "Try again.") from error
    serial = d.to_json(result)
    return Diagnosed(diagnosis=result, sha256=hashlib.sha256(serial).hexdigest(), analysed_now=serial)


MAX_RANKS = 256
"""Processes that are started on this machine, at most."""
_DEGREES = frozenset({"tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"})


@dataclass(frozen=True, kw_only=True)
class Arms:
    """Both sides, as YAML files of the trainer's own section and key names."""

    before: str
    after: str
    settings: list[ChangedSetting]
    """What tells them apart."""
    world_size: int


def arms_of(manifest: Manifest, changes: Mapping[str, Value], *, steps: int) -> Arms:
    """Both configurations of so many steps. Raises UserError where the trainer has no such setting.

    Neither evaluates, saves or resumes. The number of ranks stays: where a parallel degree changes, data
    parallelism takes what is left.
    """
    if manifest.hardware.nodes > 1:
        raise UserError(
            f"the run was of {manifest.hardware.nodes} machines, and verify starts runs on this one. Run "
            "both by hand, then: perfdoc verify BEFORE AFTER"
        )
    if not 1 <= manifest.layout.world_size <= MAX_RANKS:
        raise UserError(f"run.json names {manifest.layout.world_size} ranks: verify starts {MAX_RANKS}.")
    own = {name: setting.value for name, setting in manifest.config.items()}
    if not own:
        raise UserError("run.json of the run holds no configuration: there is nothing to run again.")
    if foreign := sorted(set(own) - set(KEYS)):
        raise UserError(f"{foreign[0]}: this version of the trainer has no such setting. Run again first.")
    if unknown := sorted(set(changes) - set(KEYS)):
        raise UserError(
            f"{unknown[0]}: is not a setting of perfdoc's trainer, which cannot try it. Leave it out "
            "with --knob, or change your own job and: perfdoc verify BEFORE AFTER"
        )
    warmup = own.get("lr_warmup_iters")
    shortened = own | {
        "train_iters": steps,
        "log_interval": steps,
        "eval_interval": None,
        "lr_warmup_iters": min(warmup, steps // 2) if isinstance(warmup, int) else warmup,
        "lr_decay_iters": None,
        **{"save": None, "save_interval": None, "load": None, "load_step": None, "load_weights_only": False},
    }
    changed = shortened | {k: list(v) if isinstance(v, tuple) else v for k, v in changes.items()}
    if _DEGREES & set(changes) and "data_parallel_size" not in changes:
        changed["data_parallel_size"] = None
    settings = [
        ChangedSetting(knob=name, before=as_text(shortened.get(name)), after=as_text(changed[name]))
        for name in changed
        if changed[name] != shortened.get(name)
    ]
    if not settings:
        raise UserError(f"{', '.join(changes)}: the run has these settings already.")
    return Arms(
        before=_yaml(shortened),
        after=_yaml(changed),
        settings=settings,
        world_size=manifest.layout.world_size,
    )


def _yaml(values: Mapping[str, Any]) -> str:
    """`section: {key: value}`, in the order of the trainer's own schema."""
    sections: dict[str, dict[str, Any]] = {name: {} for name in msgspec.to_builtins(Config())}
    for name, value in values.items():
        sections[KEYS[name]][name] = value
    filled = {section: body for section, body in sections.items() if body}
    return yaml.safe_dump(filled, sort_keys=False, default_flow_style=False)


CODES_MOST = 20
WORK_OF_A_STEP = frozenset({"global_batch_size", "seq_length", "sequence_packing_size"})
"""Advised settings after which a step does more work or less: its time is no measure of them."""
NOT_IN_EVERY_STEP = frozenset({"manual_gc", "manual_gc_interval"})
"""Settings of what only some steps do: the median step does not see it, the mean does."""


@dataclass(frozen=True, kw_only=True)
class Advised:
    """What to change, and what was said of it."""

    rules: Sequence[RulePrediction]
    changes: dict[str, Value]
    """Canonical id → value."""
    predicted: Predicted
    """Of all changes together."""
    left_out: Sequence[str] = ()
    """Settings that are advised and allowed and that a step's time says nothing of."""


def rule_codes(text: str) -> list[str]:
    """`PD203,pd202` → codes, each once. Raises UserError."""
    codes = list(dict.fromkeys(c.strip().upper() for c in text.split(",") if c.strip()))
    if not codes or len(codes) > CODES_MOST:
        raise UserError(f"--apply: give up to {CODES_MOST} codes of rules with commas, such as PD203,PD202.")
    return codes


def advised(
    diagnosis: d.Diagnosis, codes: Sequence[str], knobs: Collection[str], configuration: Configuration
) -> Advised:
    """What these rules advise and nothing forbids.

    knobs: only these settings of theirs; all where none is named. configuration: of the job, which the
    settings together must fit. Raises UserError where a rule did not fire, or nothing is left to change.
    """
    changes: dict[str, Value] = {}
    left_out: list[str] = []
    found = []
    for code in codes:
        rule = fired(diagnosis, code)
        for piece in _allowed(rule, knobs):
            if piece.knob in WORK_OF_A_STEP:
                left_out.append(piece.knob)
                continue
            to = value_of(piece)
            if piece.knob in changes and changes[piece.knob] != to:
                raise UserError(f"{code}: another rule wants another {piece.knob}: apply them one by one.")
            changes[piece.knob] = to
        found.append(prediction_of(rule, changes))
    if left_out and (not changes or set(left_out) & set(knobs)):
        raise UserError(
            f"{left_out[0]}: changes the work of a step: step times do not compare. Compare tokens per "
            "second of two runs instead."
        )
    if missing := sorted(set(knobs) - set(changes)):
        verb = "advises" if len(codes) == 1 else "advise"
        raise UserError(f"--knob {missing[0]}: {', '.join(codes)} {verb} no such setting that is allowed.")
    if against := check(configuration, changes):
        raise UserError(f"{', '.join(changes)}: the settings do not go together: {against[0].words}.")
    return Advised(
        rules=found, changes=changes, predicted=together([r.predicted for r in found]), left_out=left_out
    )


def fired(diagnosis: d.Diagnosis, code: str) -> d.RuleResult:
    """The row of a rule that fired. Raises UserError for any other."""
    rule = next((r for r in diagnosis.rules if r.code.upper() == code), None)
    if rule is None:
        raise UserError(f"there is no rule {code} in the diagnosis. See: perfdoc rules")
    if rule.state != "fires":
        why = f": {rule.reason}" if rule.reason else ""
        raise UserError(f"{code} did not fire ({rule.state.replace('_', ' ')}{why}): nothing to apply.")
    return rule


def prediction_of(rule: d.RuleResult, made: Collection[str]) -> RulePrediction:
    """What a rule said that its advice gains, for a step. made: settings that are made.

    Of several pieces that are made the best one's; they may gain more together. Where only the rule has a
    gain, and not its pieces, it is a ceiling for some of them.
    """
    pieces = _first_of_each([p for p in rule.advice if not p.forbidden])
    own = [p for p in pieces if p.gain is not None]
    gain = best_of(_of_piece(p, made) for p in own if p.knob in made) if own else rule.gain
    if gain is None or gain.method == "none" or rule.gain_per != "step":
        said = ["for what is made of it nothing was predicted"] if gain is None and own else []
        said += [] if gain is None else gain.assumptions
        said += ["the gain is of a window, not of a step"] if gain and rule.gain_per != "step" else []
        nothing = Predicted(method="none", low_ms=None, mid_ms=None, high_ms=None, assumptions=said)
        return RulePrediction(code=rule.code, title=rule.title, predicted=nothing)
    predicted = Predicted(
        method=gain.method,
        low_ms=gain.low_ms,
        mid_ms=gain.mid_ms,
        high_ms=gain.high_ms,
        assumptions=list(gain.assumptions),
    )
    if not own and {p.knob for p in pieces} - set(made):
        why = "the best piece of the advice may be one that was left out: at most its gain"
        predicted = Predicted(
            method="ceiling",
            low_ms=0.0,
            mid_ms=None,
            high_ms=gain.high_ms,
            assumptions=[why, *gain.assumptions],
        )
    elif len({p.knob for p in pieces} & set(made)) > 1:
        predicted.assumptions.append("of the best piece of the advice; together they may gain more")
    return RulePrediction(code=rule.code, title=rule.title, predicted=predicted)


def _of_piece(piece: d.Advice, made: Collection[str]) -> d.Gain:
    """Its gain; at most that where what it was predicted with is not made."""
    gain = piece.gain
    assert gain is not None
    missing = [knob for knob in piece.together if knob not in made]
    if not missing or not gain.is_predicted:
        return gain
    why = f"predicted together with {', '.join(missing)}, which was left out"
    return replace(
        gain, low_ms=0.0, mid_ms=None, method="ceiling", assumptions=[why, *gain.assumptions], key=""
    )


def _first_of_each(pieces: Sequence[d.Advice]) -> list[d.Advice]:
    """Of several for one knob, the first: they come best first."""
    return list({p.knob: p for p in reversed(pieces)}.values())[::-1]


def together(each: Sequence[Predicted]) -> Predicted:
    """Of one rule what it said; of several the bounds: no less than the best, no more than all of them.

    Changes act on one another, so their gains are never added: the sum is only what cannot be exceeded.
    """
    if len(each) == 1:
        return each[0]
    if any(p.method == "none" or p.high_ms is None for p in each):
        why = "for one of the rules nothing was predicted"
        return Predicted(method="none", low_ms=None, mid_ms=None, high_ms=None, assumptions=[why])
    return Predicted(
        method="bounds",
        low_ms=max(p.low_ms or 0.0 for p in each),
        mid_ms=None,
        high_ms=sum(p.high_ms or 0.0 for p in each),
        assumptions=["several rules: no less than the best of them, no more than all; never their sum"],
    )


def value_of(piece: d.Advice) -> Value:
    """What a piece of advice sets, typed. Raises UserError for what the catalogue cannot read."""
    try:
        return advise.value_of(piece)
    except ValueError as error:
        raise UserError(f"{piece.knob} = {piece.to_value}: {error}.") from error


def _allowed(rule: d.RuleResult, knobs: Collection[str]) -> list[d.Advice]:
    """The pieces that may be made. Of several for one knob, the first: they come best first."""
    if not rule.advice:
        instead = f" It says: {rule.remedy}" if rule.remedy else ""
        raise UserError(f"{rule.code} advises no setting here, so nothing can be applied.{instead}")
    wanted = [p for p in rule.advice if not knobs or p.knob in knobs]
    allowed = _first_of_each([p for p in wanted if not p.forbidden])
    if wanted and not allowed:
        piece = wanted[0]
        raise UserError(f"{rule.code}: {piece.knob} = {piece.to_value} is forbidden here: {piece.forbidden}.")
    return allowed
