"""Settings to copy: of each piece of advice in every spelling, and the one that a short text has room for."""

from __future__ import annotations

import re

from perfdoc.reports.advice import OWN_WORDS
from perfdoc.reports.ranking import Ranked
from perfdoc.results import Advice, Diagnosis, RuleResult
from perfdoc.results.names import columns, prose, shorten

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


def spellings(ranked: Ranked, diagnosis: Diagnosis) -> list[Spelling]:
    """The first setting of a thing to do: in the job's own spelling, then PyTorch's words, then the others.
    Of a change that no rule proposes, what was simulated. Empty where no setting makes it."""
    rule = ranked.rules[0] if ranked.rules else None
    job = diagnosis.job
    if rule is None or not ranked.own:
        named = job is not None and job.framework == "megatron"  # others have no such settings
        known = ranked.prediction.settings if ranked.prediction is not None and named else {}
        changes = ", ".join(f"{knob}={value}" for knob, value in known.items())
        return [("other", "as perfdoc names it", shorten(changes, 400))] if changes else []
    found = next((s for advice in allowed_in(rule) if (s := snippets(advice))), [])
    own = job.dialect if job is not None else None
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


def _with_it(rule: RuleResult) -> list[Advice]:
    """The first setting and what it needs beside it. A rule's further advice may be another way to the same
    end, or change the job: a larger batch beside more virtual stages."""
    found = [advice for advice in allowed_in(rule) if snippets(advice)]
    return [advice for advice in found if advice is found[0] or advice.knob in found[0].together]


def setting_lines(ranked: Ranked, diagnosis: Diagnosis, room: int) -> list[str]:
    """`set (Megatron-LM): --overlap-grad-reduce`, a line a setting; where no setting does it, what does.

    A setting stands at the end of its line, to be copied: one that is wider than room is left to the report.
    """
    rule = ranked.rules[0] if ranked.rules and ranked.own else None
    if not (found := spellings(ranked, diagnosis)):
        remedy = rule.remedy if rule is not None else ""
        return [f"do: {_SENTENCE_END.split(prose(remedy, 400))[0]}"] if remedy else []
    dialect, title, first = found[0]
    spelled = [{s[0]: s[2] for s in snippets(a)} for a in (_with_it(rule) if rule is not None else [])]
    texts = list(dict.fromkeys([first, *(s[dialect] for s in spelled if dialect in s)]))
    word = "set" if knows_settings(diagnosis) or dialect == "env" else "for example"
    before = f"{word} ({title}): "
    lines = [before + texts[0], *(" " * columns(before) + text for text in texts[1:_SETTINGS])]
    if any(columns(line) > room for line in lines):
        return [f"{before}too long for this line; the report has it"]
    return [*lines, "and more: the report has them"] if texts[_SETTINGS:] else lines
