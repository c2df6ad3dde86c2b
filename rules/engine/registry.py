"""Finding the rules and running them: a rule is a file `pdNNN_name.py` with META and evaluate."""

from __future__ import annotations

import importlib
import pkgutil
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import perfdoc.rules.checks
from perfdoc.records import dataclass
from perfdoc.results.ranking import Opportunity
from perfdoc.results.replay import Prediction
from perfdoc.results.rules import NOTHING_TO_SET, Evidence, RuleResult
from perfdoc.results.what_if import WhatIfCause
from perfdoc.rules.engine.advise import if_unset, settle
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import kept_gain
from perfdoc.rules.engine.job_words import fitted, in_job_words, said_in
from perfdoc.rules.engine.needs import ALL_WORK, Missing, Need, first_missing, not_applicable
from perfdoc.rules.engine.ranking import ranked
from perfdoc.rules.engine.related import Applied, as_rules_say, not_below_predictions, related
from perfdoc.rules.engine.rule import Meta, Rule, State, Verdict
from perfdoc.rules.engine.worst import worst_of_time

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP = "perfdoc.rules"
"""Other packages add rules by naming modules of theirs in this entry-point group."""


@cache
def all_rules() -> tuple[Rule, ...]:
    """Every rule by code. Raises ValueError if two of perfdoc's own rules have one code.

    An entry point of another package that cannot be loaded, or whose code is taken, becomes a rule of its
    own name that ends in `error`.
    """
    rules = {rule.meta.code: rule for rule in own_rules()}
    for entry in entries_of_others():
        rule = _foreign_rule(entry, taken=frozenset(rules))
        rules[rule.meta.code] = rule
    return tuple(rules[code] for code in sorted(rules))


def entries_of_others() -> list[EntryPoint]:
    """What other packages name in the group. The standard library's reader, which imports email and zipfile,
    is asked only where a file of an installed package, a zip of packages or a finder of somebody's own may
    speak of it."""
    finders = (f for f in sys.meta_path if f is not PathFinder)
    if any(hasattr(f, "find_distributions") for f in finders) or any(map(_may_name_rules, sys.path)):
        from importlib.metadata import entry_points

        return sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda e: (e.name, e.value))
    return []


def _may_name_rules(folder: str) -> bool:
    """True as well where that cannot be read."""
    try:
        files = Path(folder).glob("*-[iI][nN][fF][oO]/entry_points.txt")  # .dist-info, .egg-info, EGG-INFO
        return Path(folder).is_file() or any(
            ENTRY_POINT_GROUP in f.read_text("utf-8", "replace") for f in files
        )
    except OSError:
        return True


@cache
def own_rules() -> tuple[Rule, ...]:
    """perfdoc's own, by code. Raises ValueError where two claim one code."""
    rules: dict[str, Rule] = {}
    for found in pkgutil.iter_modules(perfdoc.rules.checks.__path__):
        if re.fullmatch(r"pd\d{3}_\w+", found.name):
            rule = _rule(importlib.import_module(f"{perfdoc.rules.checks.__name__}.{found.name}"))
            if rule.meta.code in rules:
                raise ValueError(f"two rules have the code {rule.meta.code}")
            rules[rule.meta.code] = rule
    return tuple(rules[code] for code in sorted(rules))


def _rule(module: object) -> Rule:
    """A module as a rule. Raises ValueError if it is not one."""
    meta, evaluate = getattr(module, "META", None), getattr(module, "evaluate", None)
    if not isinstance(meta, Meta) or not callable(evaluate):
        raise ValueError("has no META and evaluate")
    if not all(isinstance(need, Need) for need in meta.needs):
        raise ValueError("META.needs holds something that is not a perfdoc.rules.engine.needs.Need")
    name = getattr(module, "__name__", "").rpartition(".")[2]
    code = meta.code or name.partition("_")[0].upper()
    why = meta.why or " ".join((getattr(module, "__doc__", None) or "").split())
    return Rule(meta=replace(meta, code=code, why=why), evaluate=evaluate)


def _foreign_rule(entry: EntryPoint, taken: frozenset[str]) -> Rule:
    """The rule of another package, or a placeholder that says why it cannot be used."""
    try:
        rule = _rule(entry.load())
        if rule.meta.code in taken:
            raise ValueError(f"has the code {rule.meta.code}, which is taken")
        return rule
    except (Exception, SystemExit) as error:  # noqa: BLE001 - another package's code; the others must still run
        reason = f"the rule of {entry.value} cannot be used: {type(error).__name__}: {error}"
    name = entry.name if entry.name not in taken else f"{entry.name} ({entry.value})"
    meta = Meta(
        code=name,
        title=f"The rule {entry.name} of another package could not be loaded",
        why="Its check did not run.",
        sources=(),
    )
    return Rule(meta=meta, evaluate=lambda _: Verdict(state="error", reason=reason))


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What all rules say of a case, and what there is to do."""

    results: list[RuleResult]
    opportunities: list[Opportunity]
    predictions: list[Prediction]
    """Those of the case, with the bounds of the rules that fire on them."""
    cause: WhatIfCause | None
    """That which the verdict names, where the replay of all ranks' operations found it."""


def judge(case: Case, rules: Sequence[Rule] | None = None) -> Judged:
    """Apply every rule; one that raises, or returns no verdict, becomes an `error` row, never a crash.

    Those that fire are then related, see `related`, and ranked with the predictions, see `ranked`.
    """
    found = [
        not_below_predictions(case, applied(rule, case)) for rule in (all_rules() if rules is None else rules)
    ]
    results = related(case, found)
    rows = ranked(case, results, {one.result.code: one.time for one in found})
    named = rows[0].codes[0] if rows and rows[0].blamed == "cause" else ""
    return Judged(
        results=results,
        opportunities=rows,
        predictions=as_rules_say(case.gains.predictions, results),
        cause=next((one.cause for one in found if one.result.code == named), None),
    )


def applied(rule: Rule, case: Case) -> Applied:
    """The result of one rule alone; an `error` row if it raises or returns no verdict."""
    try:
        verdict = verdict_of(rule, case)
        if not isinstance(verdict, Verdict) or verdict.state not in get_args(State):
            raise TypeError("evaluate returned no verdict")
        if not (verdict.advice or verdict.remedy):
            verdict = replace(verdict, remedy=verdict.otherwise)
        verdict = in_job_words(case.framework, fitted(case, rule.meta, verdict))
        fires = verdict.state == "fires"
        evidence = [Evidence(label=label, value=value) for label, value in verdict.evidence]
        advice = settle(case, verdict.advice) if fires else []
        more, more_words = if_unset(rule, case, advice) if fires else ([], "")
        allowed = {piece.knob for piece in advice if not piece.forbidden}
        so_already = {piece.knob for piece in verdict.advice} - {piece.knob for piece in advice}
        withheld = any(rank.withheld for rank in case.ranks)
        gain = kept_gain(verdict, allowed, so_already) if fires and not withheld else None
        remedy = verdict.remedy if allowed or not verdict.advice else _in_words(verdict)
        if not allowed and any(not piece.forbidden for piece in more):
            remedy = said_in(case.framework, more_words)
        advice = [*advice, *more]
        unit, share = case.unit, None if gain is None else case.share_of_unit(gain.size_ms)
    except Exception as error:  # noqa: BLE001 - a rule may be anybody's; the others must still run
        verdict = Verdict(state="error", reason=f"{type(error).__name__}: {error}")
        evidence, advice, gain, remedy, unit, share = [], [], None, "", "step", None
    time = rule.meta.time if verdict.time is None else verdict.time
    result = RuleResult(
        code=rule.meta.code,
        title=rule.meta.title,
        action=verdict.action if verdict.state == "fires" else "",
        state=verdict.state,
        level=verdict.level,
        reason=verdict.reason,
        evidence=evidence,
        remedy=remedy,
        advice=advice,
        gain=gain,
        gain_per=unit,
        gain_frac=share,
        ends=rule.meta.time[0] if rule.meta.with_it else "",
        with_it=(rule.meta.with_it or ("", ""))[len(case.ranks) == 1],
        behind=dict(rule.meta.behind),
        sized_by=verdict.sized_by,
        frees_bytes=verdict.frees_bytes,
        verify=verdict.verify,
        false_alarm=verdict.false_alarm,
        blames=verdict.blames if verdict.state == "fires" else "",
        worst=(verdict.worst or worst_of_time(case, time)) if verdict.state == "fires" else None,
    )
    # That the host waits, and no launches make the device idle, is known without a gain.
    time = () if gain is None and "idle.waits" not in time else time
    return Applied(result=result, time=time, cause=verdict.cause if result.blames else None)


def verdict_of(rule: Rule, case: Case) -> Verdict:
    """The rule's verdict, or the first need that the case does not meet."""
    meta = rule.meta
    needs = (ALL_WORK, *meta.needs) if meta.time else meta.needs
    missing = first_missing(case, needs) or _silenced(case, meta)
    return rule.evaluate(case) if missing is None else Verdict(state=missing.state, reason=missing.reason)


def _silenced(case: Case, meta: Meta) -> Missing | None:
    """Why all that it says would be of another kind of job."""
    if not meta.for_servers and (case.program.serves or case.program.is_plain):
        runs = "an inference engine runs" if case.program.serves else "no name is one of a neural network"
        return not_applicable(f"it is about training, and {runs}")
    broken = next((a.of for a in meta.assumes if not a.words and a.of.holds(case) is False), None)
    return None if broken is None else not_applicable(f"it assumes {broken.words}")


def _in_words(verdict: Verdict) -> str:
    """The remedy if no setting is left to change."""
    words = (verdict.otherwise, verdict.remedy)
    return " ".join(w for w in words if w) or NOTHING_TO_SET
