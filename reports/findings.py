"""What to do and what was found, as plain values: for an agent, and the text for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perfdoc.reports.advice import gain_words
from perfdoc.reports.inert import inert
from perfdoc.reports.ranking import INEXACT, ranking
from perfdoc.reports.settings import spellings
from perfdoc.results import Diagnosis, RuleResult
from perfdoc.results.names import prose

_NAME, _SENTENCE = 160, 500
_EVIDENCE = 12
_SPELLINGS = 8


def findings_of(diagnosis: Diagnosis) -> Iterator[dict[str, Any]]:
    """Every row of the ranking, best first. Times are milliseconds of a step, or of the window (`gain_per`);
    gains are of each alone. What is not known is None."""
    for place, ranked in enumerate(ranking(diagnosis), 1):
        row, gain = ranked.row, ranked.row.gain
        yield {
            "place": place,
            "kind": row.kind if ranked.leads or row.kind in ("trifle", "capture") else "information",
            "what": _text(ranked.title, _NAME),
            "codes": [_text(code, 48) for code in row.codes],
            "gain": _text(gain_words(gain, row.gain_per), _NAME),
            "gain_low_ms": gain.low_ms if gain is not None else None,
            "gain_mid_ms": gain.mid_ms if gain is not None else None,
            "gain_high_ms": gain.high_ms if gain is not None else None,
            "gain_per": row.gain_per,
            "gain_frac": row.gain_frac,
            "but": [*([] if row.exact else [INEXACT]), *(_text(c, _NAME) for c in row.conditions)],
            "set": {
                spelled.title: [_text(text, 400) for _, text in spelled.lines]
                for spelled in spellings(row.settings, diagnosis)[:_SPELLINGS]
            },
            "rules": [_rule(rule) for rule in ranked.rules],
        }


def _rule(rule: RuleResult) -> dict[str, Any]:
    return {
        "code": _text(rule.code, 48),
        "title": _text(rule.title, _NAME),
        "level": rule.level,
        "reason": _text(rule.reason, _SENTENCE),
        "evidence": [[_text(e.label, _NAME), _text(e.value, _NAME)] for e in rule.evidence[:_EVIDENCE]],
        "do": _text(rule.remedy, _SENTENCE),
        "check": _text(rule.verify, _SENTENCE),
        "no_problem_if": _text(rule.false_alarm, _SENTENCE),
    }


def _text(text: str, limit: int) -> str:
    return inert(prose(text, limit), limit)
