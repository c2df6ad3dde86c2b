"""The rules that fire as things to do: what, what it gains, how sure that is, and what it asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.reports.advice import by_gain, excluding, gain_words, related_words, rough
from perfdoc.results import Advice, Combined, Diagnosis, Gain, Prediction, RuleResult
from perfdoc.results.figures import UNKNOWN, plural, share
from perfdoc.results.names import prose, shorten

DIALECT_TITLES = {
    "megatron_bridge": "Megatron-Bridge",
    "megatron_core": "megatron-core",
    "megatron_lm": "Megatron-LM",
    "nemo": "NeMo",
    "verl": "verl",
    "env": "environment",
    "perfdoc": "perfdoc run",
}
"""In the order of the page."""
_SURE_FRAC, _LIKELY_FRAC = 0.25, 0.6
"""Half of the band by its middle."""
_CODE = re.compile(r"[A-Z]{1,8}[0-9]{1,6}\Z")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s")


@dataclass(frozen=True, kw_only=True)
class Opportunity:
    """One rule that fires."""

    anchor: str
    """Id on the page: the code where it is fit for that."""
    rule: RuleResult
    action: str
    """What to do, in the imperative."""
    gain: str
    band: str
    """Empty where there is no figure."""
    method: str
    share: str
    confidence: str
    effort: str
    gain_words: str
    related: list[str]
    """What other rules that fire have to do with it."""
    choice: int | None
    """Its change among those of which every set was simulated."""


@dataclass(frozen=True, kw_only=True)
class SetOfChanges:
    """One set that was simulated together."""

    members: str
    """Numbers of the changes, with commas."""
    names: list[str]
    gain: str
    band: str
    share: str


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Changes of which every set was simulated."""

    changes: list[tuple[str, str]]
    """(name, what it gains alone)."""
    sets: list[SetOfChanges]
    reason: str
    """Why there are not more; empty otherwise."""


def opportunities(diagnosis: Diagnosis) -> list[Opportunity]:
    """Problems that rules found, what gains most first."""
    firing = by_gain([r for r in diagnosis.rules if r.state == "fires" and r.level == "problem"])
    taken = _members(diagnosis.combined)
    counts = {code: sum(r.code == code for r in firing) for code in {r.code for r in firing}}
    return [
        _opportunity(
            rule,
            rule.code if _CODE.match(rule.code) and counts[rule.code] == 1 else f"opportunity-{i + 1}",
            taken.index(rule.gain.key) if rule.gain is not None and rule.gain.key in taken else None,
        )
        for i, rule in enumerate(firing)
    ]


def _opportunity(rule: RuleResult, anchor: str, choice: int | None) -> Opportunity:
    gain = rule.gain
    figure, band = _figures(gain)
    return Opportunity(
        anchor=anchor,
        rule=rule,
        action=action_of(rule),
        gain=figure,
        band=band,
        method={"replay": "by replay", "ceiling": "at the very most"}.get(gain.method, "") if gain else "",
        share=share(rule.gain_frac) if rule.gain_frac is not None and figure != UNKNOWN else "",
        confidence=confidence(gain),
        effort=_effort(rule),
        gain_words=gain_words(gain, rule.gain_per),
        related=related_words(rule),
        choice=choice,
    )


def _figures(gain: Gain | None) -> tuple[str, str]:
    """(figure, band) of a gain; of a ceiling, the most there is; of a loss, what it costs."""
    if gain is None or gain.high_ms is None:
        return UNKNOWN, ""
    if gain.method != "replay" or gain.mid_ms is None or gain.low_ms is None:
        return f"≤ {rough(gain.high_ms)}", ""
    if gain.mid_ms < 0:
        return f"costs {rough(-gain.mid_ms)}", f"{rough(-gain.high_ms)} to {rough(-gain.low_ms)}"
    return rough(gain.mid_ms), f"{rough(gain.low_ms)} to {rough(gain.high_ms)}"


def confidence(gain: Gain | None) -> str:
    """In a word, from the method and the width of the band: 10 ms of 8 to 12 is `high`, of 5 to 15 `medium`,
    and a ceiling is `low`, whatever it is."""
    if gain is None or gain.high_ms is None or gain.method == "none":
        return "not predicted"
    if gain.method == "ceiling" or gain.mid_ms is None or gain.low_ms is None or gain.mid_ms <= 0:
        return "low"
    half = (gain.high_ms - gain.low_ms) / 2 / gain.mid_ms
    return "high" if half <= _SURE_FRAC else "medium" if half <= _LIKELY_FRAC else "low"


def _allowed(rule: RuleResult) -> list[Advice]:
    return [advice for advice in rule.advice if not advice.forbidden]


def _effort(rule: RuleResult) -> str:
    allowed = len(_allowed(rule))
    return plural(allowed, "setting") if allowed else "no setting does it"


def action_of(rule: RuleResult) -> str:
    """What to do first, in the imperative: the first setting that is allowed, else what the rule advises."""
    allowed = _allowed(rule)
    if allowed:
        return f"Set `{shorten(allowed[0].knob, 64)}` to `{shorten(allowed[0].to_value, 48)}`."
    if rule.remedy:
        return _SENTENCE_END.split(prose(rule.remedy, 400), maxsplit=1)[0]
    return f"Look into it: {shorten(rule.title)}"


def snippets(advice: Advice) -> list[tuple[str, str, str]]:
    """(dialect, its title, what to paste), none where the configuration forbids it."""
    order = [*(d for d in DIALECT_TITLES if d in advice.dialects)]
    order += [d for d in advice.dialects if d not in DIALECT_TITLES]
    return [] if advice.forbidden else [_snippet(d, advice.dialects[d]) for d in order]


def _snippet(dialect: str, text: str) -> tuple[str, str, str]:
    known = dialect if dialect in DIALECT_TITLES else "other"
    return known, DIALECT_TITLES.get(dialect, shorten(dialect, 48)), shorten(text, 400)


def dialects_of(found: Sequence[Opportunity]) -> list[tuple[str, str]]:
    """(dialect, title) of every dialect that has something to paste."""
    there = {dialect for o in found for a in o.rule.advice for dialect, _, _ in snippets(a)}
    titles = {**DIALECT_TITLES, "other": "other"}
    return [(dialect, titles[dialect]) for dialect in titles if dialect in there]


def _members(combined: Combined | None) -> list[str]:
    """Keys of the changes in the sets, in the order of the sets of one; none where there is nothing to choose
    between."""
    keys = list(dict.fromkeys(key for s in combined.sets for key in s.keys)) if combined else []
    return keys if len(keys) > 1 else []


def choices(diagnosis: Diagnosis) -> Choices | None:
    """What can be chosen, and every set's gain. None where no two changes were simulated together."""
    combined = diagnosis.combined
    keys = _members(combined)
    if combined is None or not keys:
        return None
    predictions = {p.key: p for p in diagnosis.analyses.gains.predictions}
    names = [_name(key, predictions) for key in keys]
    step_ns = max((p.step_ns for p in predictions.values() if p.step_ns), default=None)
    excluded = excluding(diagnosis.rules)
    possible = [s for s in combined.sets if not any(pair <= set(s.keys) for pair in excluded)]
    reasons = [combined.sets_reason] if combined.sets_reason else []
    if len(possible) < len(combined.sets):
        pairs = ", ".join(f"{shorten(a, 48)} with {shorten(b, 48)}" for a, b in excluded.values())
        reasons.append(f"advice that excludes other advice is in no set: {pairs}")
    alone = {s.keys[0]: _figures(s.gain)[0] for s in combined.sets if len(s.keys) == 1}
    return Choices(
        changes=[(name, alone.get(key, UNKNOWN)) for key, name in zip(keys, names, strict=True)],
        sets=[
            SetOfChanges(
                members=",".join(str(at) for at in sorted(keys.index(key) for key in s.keys)),
                names=[names[keys.index(key)] for key in s.keys],
                gain=_figures(s.gain)[0],
                band=_figures(s.gain)[1],
                share=share((s.gain.mid_ms or 0.0) * 1e6 / step_ns) if step_ns else "",
            )
            for s in possible
        ],
        reason="; ".join(reasons),
    )


def _name(key: str, predictions: dict[str, Prediction]) -> str:
    return shorten(predictions[key].change if key in predictions else key, 96)
