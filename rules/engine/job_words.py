"""What rules say of settings, in the words of the job's own framework.

Rules name settings by their canonical ids, which are Megatron's. In a job of another framework an id says
nothing: what it does stands there instead; where the framework is not known, with the id as an example.
"""

import re
from dataclasses import replace
from functools import cache

from perfdoc.knobs.load import ELSEWHERE, catalogue
from perfdoc.knobs.words import words
from perfdoc.results.headline import Framework
from perfdoc.rules.engine.rule import Verdict

_NOT_MEGATRONS = frozenset({"record_shapes", "record_memory_history", "profile_memory", "with_stack"})
"""PyTorch's names."""


def in_job_words(framework: Framework, verdict: Verdict) -> Verdict:
    """The same verdict; of a job that is not Megatron's, without its settings' names. What a rule lacks that
    does not fire keeps the name under which it can be given; values of evidence are the capture's own."""
    if framework == "megatron" or verdict.state != "fires":
        return verdict

    return replace(
        verdict,
        reason=said_in(framework, verdict.reason),
        remedy=said_in(framework, verdict.remedy),
        otherwise=said_in(framework, verdict.otherwise),
        action=said_in(framework, verdict.action),
        verify=said_in(framework, verdict.verify),
        false_alarm=said_in(framework, verdict.false_alarm),
        evidence=[(said_in(framework, label), value) for label, value in verdict.evidence],
    )


def said_in(framework: Framework, text: str) -> str:
    """A text of a rule for a job of that framework."""
    return text if framework == "megatron" else plain_words(text, example=not framework)


def plain_words(text: str, *, example: bool = False) -> str:
    """A text with what settings do for their names. example: with the name behind, as Megatron's. Brackets
    with nothing but a name go; names of files, and of functions with their file behind, stay.

    >>> plain_words("overlap_p2p_comm is off; the scheme (cp_comm_type) is p2p")
    'Overlap of messages between stages is off; the scheme is p2p'
    """
    if "_" not in text:
        return text
    if not example:
        text = _alone_in_brackets().sub("", text)

    def word(match: re.Match[str]) -> str:
        knob = match[0]
        plain = words().nouns.get(knob, knob.replace("_", " "))
        if match.start() == 0 or text[: match.start()].endswith((". ", "? ")):
            plain = plain[:1].upper() + plain[1:]
        inside = text[: match.start()].count("(") > text[: match.start()].count(")")
        if not example:
            return plain
        return f"Megatron's {knob}" if inside else f"{plain} (Megatron's {knob})"

    return _names().sub(word, text)


@cache
def _any_knob() -> str:
    megatrons = [name for name, knob in catalogue().items() if knob.topic not in ELSEWHERE]
    known = [k for k in megatrons if "_" in k and k not in _NOT_MEGATRONS]
    return "(?:" + "|".join(re.escape(k) for k in sorted(known, key=len, reverse=True)) + ")"


@cache
def _names() -> re.Pattern[str]:
    return re.compile(rf"(?<![\w./-]){_any_knob()}(?![\w(/=]|\.\w| \([^()\s]{{1,200}}\.\w+\))")


@cache
def _alone_in_brackets() -> re.Pattern[str]:
    """An aside that is a setting's name: ` (cp_comm_type)`."""
    return re.compile(rf" \({_any_knob()}\)")
