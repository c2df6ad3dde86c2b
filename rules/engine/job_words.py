"""What rules say of settings, in the words of the job's own framework.

Rules name settings by their canonical ids, which are Megatron's. In a job of another framework an id says
nothing: what it does stands there instead; where the framework is not known, with the id as an example.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import PYTORCHS
from perfdoc.knobs.load import ELSEWHERE, catalogue
from perfdoc.knobs.terms import OLD_FLOAT8
from perfdoc.knobs.words import words
from perfdoc.results.headline import Framework
from perfdoc.results.replay import Prediction
from perfdoc.rules.engine.rule import Verdict
from perfdoc.rules.facts.framework import (
    accelerates_way,
    has_own_file,
    is_verls_fsdp,
    uses_deepspeed,
    zero_stage,
)
from perfdoc.simulator.replay.gains import Gains
from perfdoc.simulator.replay.proposals import CHANGES


def in_words_of(framework: Framework, gains: Gains, configuration: Configuration) -> Gains:
    """The same predictions, with what a framework calls the setting in brackets. configuration: the settings
    that were given."""
    ways = {"pytorch": [*_own_ways(configuration), "pytorch"], "vllm": ["vllm", "pytorch"], "": []}
    if framework not in ways:
        return gains
    predictions = [replace(p, change=_renamed(p, ways[framework])) for p in gains.predictions]
    return replace(gains, analysis=replace(gains.analysis, predictions=predictions))


def _own_ways(configuration: Configuration) -> list[str]:
    """How the job is run, as `Change.words` names it, what is asked first first: by the framework whose
    settings these are, as far as they are read with the others."""
    dialect, way = configuration.dialect, accelerates_way(configuration)
    if dialect not in (*PYTORCHS, "verl"):
        return []
    own: list[str] = [dialect]
    if dialect == "torchtitan" and {OLD_FLOAT8, "model_converters"} & configuration.written == {OLD_FLOAT8}:
        own = ["torchtitan, old float8", dialect]
    if way == "MULTI_GPU":
        return own
    if uses_deepspeed(configuration):
        unread = ["ZeRO stage 0"] if zero_stage(configuration) == 0 else []
        in_its_file = ["DeepSpeed's file"] if has_own_file(configuration) else []
        of_the_file = ["accelerate, DeepSpeed's file"] if dialect == "accelerate" and in_its_file else []
        own = [*unread, *in_its_file, *of_the_file, *own]
    elif way == "FSDP":
        own = ["accelerate's FSDP", *own]
    elif is_verls_fsdp(configuration):
        own = ["verl's FSDP", *own]
    return [*own, "not by DDP"]


def _renamed(prediction: Prediction, ways: Sequence[str]) -> str:
    change = CHANGES.get(prediction.key)
    if change is None or not change.settings or not prediction.change.endswith(f" ({change.settings})"):
        return prediction.change
    plain = prediction.change.removesuffix(f" ({change.settings})")
    words = next((change.words[way] for way in ways if way in change.words), "")
    return f"{plain} ({words})" if words else plain


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
