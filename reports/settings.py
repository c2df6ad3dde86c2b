"""Settings to copy: of each piece of advice in every spelling, and the one that a short text has room for."""

from __future__ import annotations

import re
from collections.abc import Sequence

from perfdoc.reports.advice import OWN_WORDS
from perfdoc.reports.ranking import Ranked
from perfdoc.results import Advice, Diagnosis, Prediction, RuleResult
from perfdoc.results.names import columns, prose, shorten
from perfdoc.results.rules import there_for_others

DIALECT_TITLES = {
    "megatron_bridge": "Megatron-Bridge",
    "megatron_core": "megatron-core",
    "megatron_lm": "Megatron-LM",
    "nemo": "NeMo",
    "verl": "verl",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
    "pytorch": "PyTorch",
    "vllm": "vLLM",
    "env": "environment",
    "perfdoc": "perfdoc run",
}
"""In the order of the page."""

_EXAMPLE = "megatron_lm"

Spelling = tuple[str, str, str]
"""Dialect, its title, what to paste."""
_SETTINGS = 3
_AS_NAMED = "as perfdoc names it"
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


def allowed_in(rule: RuleResult) -> list[Advice]:
    """What this configuration does not forbid."""
    return [advice for advice in rule.advice if not advice.forbidden]


def snippets(advice: Advice) -> list[Spelling]:
    """Every spelling, none where the configuration forbids it."""
    order = [*(d for d in DIALECT_TITLES if d in advice.dialects)]
    order += [d for d in advice.dialects if d not in DIALECT_TITLES]
    return [] if advice.forbidden else [_snippet(d, advice.dialects[d]) for d in order]


def _snippet(dialect: str, text: str) -> Spelling:
    known = dialect if dialect in DIALECT_TITLES else "other"
    return known, DIALECT_TITLES.get(dialect, shorten(dialect, 48)), shorten(text, 400)


def knows_settings(diagnosis: Diagnosis) -> bool:
    """Whether it is known whose settings the job has; else those of one framework are an example."""
    job = diagnosis.job
    return job is None or job.dialect not in (None, "env") or bool(job.framework)


def pieces_of(ranked: Ranked, diagnosis: Diagnosis) -> list[Advice]:
    """What is set for a thing to do: the main setting, then what belongs to it. Of a simulated change, only
    what makes that change; a rule's further advice may be another way, or change the job."""
    found = ranked.prediction
    own = allowed_in(ranked.rules[0]) if ranked.rules and ranked.own else []
    if found is None:
        return _with_it(own, own)
    fires = [rule for rule in diagnosis.rules if rule.state == "fires"]
    for rule in (*ranked.rules, *(rule for rule in fires if rule not in ranked.rules)):
        pool = allowed_in(rule)
        named = [a for a in pool if a.gain is not None and a.gain.key and a.gain.key == found.key]
        other = rule.gain is not None and rule.gain.key not in ("", found.key)
        if pieces := _with_it(named or [a for a in pool if not other and _is_of(a, found)], pool):
            return pieces
    return _with_it([a for a in own if a.gain is None or not a.gain.key], own)


def _is_of(advice: Advice, change: Prediction) -> bool:
    value = change.settings.get(advice.knob)
    return value is not None and str(value).lower() == advice.to_value.lower()


def _with_it(chosen: Sequence[Advice], pool: Sequence[Advice]) -> list[Advice]:
    """The first of the chosen that is not there for another piece, then what belongs to it."""
    beside = there_for_others(pool)
    order = sorted((a for a in chosen if snippets(a)), key=lambda a: a.knob in beside)
    if not order:
        return []
    main, *rest = order
    same = [a.knob for a in rest if a.gain is not None and a.gain.key and a.gain == main.gain]
    return [main, *(a for a in pool if a is not main and a.knob in (*main.together, *same) and snippets(a))]


def spellings(ranked: Ranked, diagnosis: Diagnosis) -> list[Spelling]:
    """The main setting of a thing to do: in the job's own spelling, then PyTorch's words, then the others.
    Of a change that no rule proposes, what was simulated. Empty where no setting makes it."""
    if pieces := pieces_of(ranked, diagnosis):
        return _in_order(snippets(pieces[0]), diagnosis)
    changes = ", ".join(_simulated(ranked, diagnosis))
    return [("other", _AS_NAMED, shorten(changes, 400))] if changes else []


def _simulated(ranked: Ranked, diagnosis: Diagnosis) -> list[str]:
    """The settings of a change that no rule proposes; none where a rule knows that they are forbidden."""
    job, change = diagnosis.job, ranked.prediction
    if change is None or (ranked.rules and ranked.own) or job is None or job.framework != "megatron":
        return []  # others have no such settings
    refused = {
        a.knob for rule in diagnosis.rules if rule.state == "fires" for a in rule.advice if a.forbidden
    }
    return [] if refused & change.settings.keys() else [f"{k}={v}" for k, v in change.settings.items()]


def _in_order(found: Sequence[Spelling], diagnosis: Diagnosis) -> list[Spelling]:
    own = diagnosis.job.dialect if diagnosis.job is not None else None
    example = not knows_settings(diagnosis)
    return sorted(
        found,
        key=lambda s: (
            s[0] != own,
            s[0] not in OWN_WORDS,
            example and s[0] != "env",
            example and s[0] != _EXAMPLE,
        ),
    )


def setting_lines(ranked: Ranked, diagnosis: Diagnosis, room: int) -> list[str]:
    """`set (Megatron-LM): --overlap-grad-reduce`, a line a setting, the main one first; where no setting does
    it, what does.

    A setting stands at the end of its line, to be copied: one that is wider than room is left to the report.
    """
    rule = ranked.rules[0] if ranked.rules and ranked.own else None
    pieces = pieces_of(ranked, diagnosis)
    if pieces:
        dialect, title, _ = _in_order(snippets(pieces[0]), diagnosis)[0]
        word = "set" if knows_settings(diagnosis) or dialect == "env" else "for example"
        before = f"{word} ({title}): "
        lines = [
            _line(piece, dialect, before if piece is pieces[0] else " " * columns(before)) for piece in pieces
        ]
    elif changes := [shorten(change, 400) for change in _simulated(ranked, diagnosis)]:
        before = f"set ({_AS_NAMED}): "
        lines = [before + changes[0], *(" " * columns(before) + change for change in changes[1:])]
    else:
        remedy = rule.remedy if rule is not None else ""
        return [f"do: {_SENTENCE_END.split(prose(remedy, 400))[0]}"] if remedy else []
    if columns(lines[0]) > room:
        return [f"{before}too long for this line; the report has it"]
    lines = list(dict.fromkeys(lines))
    shown = [line for line in lines[:_SETTINGS] if columns(line) <= room]
    more = len(lines) - len(shown)
    return [*shown, f"and {more} more: --full"] if more else shown


def _line(piece: Advice, dialect: str, before: str) -> str:
    """In the main setting's dialect, under it; in another, such as a variable beside options, named."""
    spelled = {s[0]: s for s in snippets(piece)}
    if dialect in spelled:
        return before + spelled[dialect][2]
    _, title, text = spelled.get("env") or next(iter(spelled.values()))
    return f"set ({title}): {text}"
