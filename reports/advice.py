"""What a rule advises and what that gains, in words."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.diagnosis import Advice, Gain, RuleResult
from perfdoc.reports import units
from perfdoc.reports.names import shorten

_MS_NS = 1e6


def gain_words(gain: Gain | None) -> str:
    """The gain as a sentence; empty where there is none."""
    if gain is None or gain.high_ms is None:
        return ""
    most = units.duration(round(gain.high_ms * _MS_NS))
    if gain.method == "ceiling" or gain.mid_ms is None or gain.low_ms is None:
        return f"Saves {most} per step at the very most; how much of it was not predicted."
    middle, least = (units.duration(round(ms * _MS_NS)) for ms in (gain.mid_ms, gain.low_ms))
    return f"Saves {middle} per step ({least} to {most}), by replay."


def setting_words(advice: Advice) -> tuple[str, str]:
    """(the change, why and at what price)."""
    now = "" if advice.from_value is None else f"{shorten(advice.from_value, 48)} → "
    change = f"{shorten(advice.knob, 64)}: {now}{shorten(advice.to_value, 48)}"
    if advice.forbidden:
        return change, f"would be good ({advice.why}), but this configuration forbids it: {advice.forbidden}"
    return change, advice.why + (f"; costs: {advice.costs}" if advice.costs else "")


def by_gain(rules: list[RuleResult]) -> list[RuleResult]:
    """What gains most by prediction first, then by ceiling, then the rest in the order of codes."""

    def key(rule: RuleResult) -> tuple[float, float]:
        gain = rule.gain
        return (-(gain.mid_ms or 0.0), -(gain.high_ms or 0.0)) if gain is not None else (0.0, 0.0)

    return sorted(rules, key=key)


def lines_of(rule: RuleResult) -> Iterator[tuple[str, str]]:
    """(label, words) of everything that a rule says beside its reason and evidence."""
    for advice in rule.advice:
        change, why = setting_words(advice)
        yield ("not set" if advice.forbidden else "set"), f"{change} ({why})"
    if rule.remedy:
        yield "do", rule.remedy
    if words := gain_words(rule.gain):
        yield "gain", words
    if rule.verify:
        yield "verify", rule.verify
    if rule.false_alarm:
        yield "false alarm if", rule.false_alarm
