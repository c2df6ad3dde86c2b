"""A rule's advice and predicted gain as text."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

from perfdoc.results import Advice, Gain, RuleResult, WorstInstance, figures
from perfdoc.results.names import prose, shorten
from perfdoc.results.ranking import settings_of

_MS_NS = 1e6
OWN_WORDS = ("pytorch", "vllm", "jax")
"""Dialects of advice in the words of frameworks that have no settings of these names."""
MINUS = "\N{MINUS SIGN}"
"""Before what a change saves."""
_WHY_LIMIT = 160
"""Characters of the reason why two rules are related."""
RULE_NOTES = {"error": " (failed to run)", "information": " (information)"}
"""What is said behind a rule's title, by its state or level."""


def rough(ms: float) -> str:
    """A predicted duration in three significant digits, which is more than its noise allows: 261.4 ms is
    "261 ms"."""
    ns = round(ms * _MS_NS)
    if ns:
        ns = round(ns, 2 - math.floor(math.log10(abs(ns))))
    scale = figures.scale_for(ns)
    return (
        f"{figures.significant(ns / scale.ns)} {scale.unit}"
        if abs(ns) < 1000 * scale.ns
        else figures.duration(ns)
    )


def gain_words(gain: Gain | None, per: Literal["step", "window"] = "step") -> str:
    """The gain as a sentence; empty where there is none. per: what it is of."""
    if gain is None or gain.high_ms is None:
        return ""
    of = "per step" if per == "step" else "in this window"
    if gain.method == "ceiling" or gain.mid_ms is None or gain.low_ms is None:
        return f"Saves at most {rough(gain.high_ms)} {of}: upper bound; not predicted."
    if gain.mid_ms < 0:
        least, most = rough(-gain.high_ms), rough(-gain.low_ms)
        return f"Costs {rough(-gain.mid_ms)} {of} ({least} to {most}), predicted."
    middle, least, most = (rough(ms) for ms in (gain.mid_ms, gain.low_ms, gain.high_ms))
    return f"Saves {middle} {of} ({least} to {most}), predicted."


def provided_words(conditions: Sequence[str]) -> str:
    """What a change takes, with the comma before it; empty where nothing is open."""
    *others, last = [shorten(c, 96) for c in conditions] or [""]
    said = f"{', '.join(others)} and {last}" if others else last
    return f", if {said}" if said else ""


def own_words(advice: Advice) -> str | None:
    """What to write in a framework that is not Megatron's; None for a setting under its own name."""
    alone = len(advice.dialects) == 1  # of a framework with names of its own: torchtitan, DeepSpeed
    theirs = (text for d, text in advice.dialects.items() if d in OWN_WORDS or (alone and d != "env"))
    return next(theirs, None)


def change_title(advice: Advice) -> str:
    """`knob: now → then`; `knob: then, if not set already` for advice that nobody knows to be new."""
    own = own_words(advice)
    change = shorten(advice.to_value, 48) if own is None else shorten(own, 120)
    if advice.from_value is not None and own is None:
        change = f"{shorten(advice.from_value, 48)} → {change}"
    if advice.if_unset == [advice.knob]:
        change += ", if not set already"
    elif advice.if_unset and own is None:
        change += f", if not set already: {shorten(', '.join(advice.if_unset), 96)}"
    if own is not None:
        return change
    return f"{shorten(advice.knob, 64)}: {change}"


def setting_words(advice: Advice) -> tuple[str, str]:
    """(the change, why and at what price)."""
    if advice.forbidden and not advice.dialects:  # another framework's setting: what it does, and no name
        return shorten(advice.why), advice.forbidden
    change = change_title(advice)
    if advice.forbidden:
        return change, f"would help ({advice.why}), but this configuration forbids it: {advice.forbidden}"
    return change, advice.why + (f"; costs: {advice.costs}" if advice.costs else "")


def excluding(rules: Sequence[RuleResult]) -> dict[frozenset[str], tuple[str, str]]:
    """Pairs of changes, by the keys of their predictions, whose rules' advice cannot be made together; with
    the codes of the two rules."""
    keys = {r.code: r.gain.key for r in rules if r.state == "fires" and r.gain is not None and r.gain.key}
    return {
        frozenset({keys[r.code], keys[other.code]}): (r.code, other.code)
        for r in rules
        if r.code in keys
        for other in r.related
        if other.how == "not_together"
        and other.code in keys
        and r.code < other.code
        and keys[r.code] != keys[other.code]
    }


def related_words(rule: RuleResult) -> list[str]:
    """How other rules that fire relate to this one, a sentence for each way."""
    found = [
        f"Not together with {shorten(other.code, 48)}: {prose(other.why, _WHY_LIMIT)}."
        for other in rule.related
        if other.how == "not_together"
    ]
    same: dict[str, list[str]] = {}
    for other in rule.related:
        if other.how == "same_time":
            same.setdefault(other.why, []).append(shorten(other.code, 48))
    found += [
        f"Same time as {', '.join(codes)}: {prose(why, _WHY_LIMIT)}. These gains overlap; do not add them."
        for why, codes in same.items()
    ]
    return found


def worst_words(found: WorstInstance) -> str:
    """The worst instance, its rank, step and start."""
    step = f", `{shorten(found.step, 64)}`" if found.step else ""
    return f"{found.says} ({shorten(found.label, 48)}{step}, at {found.start_ns:,} ns)"


def lines_of(rule: RuleResult) -> Iterator[tuple[str, str]]:
    """(label, words) of everything that a rule says beside its reason and evidence."""
    first = {setting.knob for setting in settings_of([rule])}
    for advice in rule.advice:
        change, why = setting_words(advice)
        label = "not set" if advice.forbidden else "set" if advice.knob in first else "or set"
        yield label, f"{change} ({why})"
    if rule.worst is not None:
        yield "worst", worst_words(rule.worst)
    if rule.remedy:
        yield "do", rule.remedy
    if words := gain_words(rule.gain, rule.gain_per):
        yield "gain", words
        if rule.gain is not None and rule.gain.assumptions:
            yield "assuming", "; ".join(rule.gain.assumptions)
    for words in related_words(rule):
        yield "note", words
    if rule.verify:
        yield "verify", rule.verify
    if rule.false_alarm:
        yield "false alarm if", rule.false_alarm
