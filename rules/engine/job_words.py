"""What rules say, as it fits the job: in the words of its own framework, without what assumes another one.

Rules name settings by their canonical ids, which are Megatron's. In a job of another framework an id says
nothing: what it does stands there instead; where the framework is not known, with the id as an example.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from perfdoc.analyzers.device.frameworks import NOTHING_SHOWN, Program
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import PYTORCHS
from perfdoc.knobs.load import ELSEWHERE, catalogue
from perfdoc.knobs.terms import OLD_FLOAT8
from perfdoc.knobs.words import words
from perfdoc.patterns import pattern_of
from perfdoc.results.headline import Framework
from perfdoc.results.names import opening
from perfdoc.results.replay import Prediction
from perfdoc.rules.engine.rule import Case, Meta, Verdict, passes
from perfdoc.rules.facts.framework import (
    accelerates_way,
    has_own_file,
    is_verls_fsdp,
    uses_deepspeed,
    zero_stage,
)
from perfdoc.simulator.replay.gains import Gains
from perfdoc.simulator.replay.proposals import CHANGES


def in_words_of(
    framework: Framework,
    gains: Gains,
    configuration: Configuration,
    program: Program = NOTHING_SHOWN,
    *,
    sharded: bool = False,
) -> Gains:
    """The same predictions, with what a framework calls the setting in brackets. configuration: the settings
    that were given. program: what the captures show to run. sharded: data-parallel ranks gather weights.
    """
    predictions = list(gains.predictions)
    if framework != "megatron":
        seen: list[str] = [mark for mark in ("sglang", "torchtitan", "transformers") if mark in program.marks]
        seen += ["DeepSpeed's file"] if "deepspeed" in program.marks else ["FSDP"] if sharded else []
        own = {"pytorch": [*_own_ways(configuration), *seen, "pytorch"], "vllm": ["vllm", "pytorch"]}
        predictions = [replace(p, change=_renamed(p, own.get(framework, []))) for p in predictions]
    if terms := (*words().terms.get(program.vendor, ()), *(_NO_PYTHON if program.has_no_python else ())):
        predictions = [replace(p, change=_in_terms(p.change, terms)) for p in predictions]
    return replace(gains, analysis=replace(gains.analysis, predictions=predictions))


def _in_terms(text: str, terms: Sequence[tuple[str, str]]) -> str:
    for theirs, own in terms:
        text = text.replace(f". {theirs}", f". {opening(own)}").replace(theirs, own)
    return text


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


_NO_PYTHON = ((": .item, blocking .to, synchronize", ""),)
"""Of a program of no framework."""
_HOLES = pattern_of(r"(\()(?:, )+|(?:, )+(\))| \(\)|(?<=,)(?: ,)+")
"""Of a list in brackets from which something is left out."""


def fitted(case: Case, meta: Meta, verdict: Verdict) -> Verdict:
    """The same without words whose assumption does not hold; it passes where nothing is left to do."""
    if verdict.state != "fires":
        return verdict
    verdict = replace(verdict, action=verdict.action or meta.action)
    broken = [a for a in meta.assumes if a.words and a.of.holds(case) is False]

    def said(text: str) -> str:
        for one in broken:
            text = text.replace(one.words, one.instead)
        host = ["cpu"] if case.on_host else []
        for name in (case.program.vendor, *(case.program.marks & {"paddle"}), *host):
            text = _in_terms(text, words().terms.get(name, ()))
        return " ".join(_HOLES.sub(lambda hole: hole[1] or hole[2] or "", text).split())

    texts = ("reason", "remedy", "otherwise", "action", "verify", "false_alarm")
    fits = replace(verdict, **{name: said(getattr(verdict, name)) for name in texts})  # type: ignore[arg-type]
    if broken and verdict.remedy and not (fits.remedy or fits.advice):
        needed = " and ".join(dict.fromkeys(one.of.words for one in broken))
        return passes(verdict.evidence, f"what would help takes {needed}")
    return fits


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
        text = _ALONE_IN_BRACKETS.sub(lambda aside: "" if aside[1] in _knobs() else aside[0], text)

    def word(match: re.Match[str]) -> str:
        knob = match[0]
        if knob not in _knobs():
            return knob
        plain = words().nouns.get(knob, knob.replace("_", " "))
        if match.start() == 0 or text[: match.start()].endswith((". ", "? ")):
            plain = opening(plain)
        inside = text[: match.start()].count("(") > text[: match.start()].count(")")
        if not example:
            return plain
        return f"Megatron's {knob}" if inside else f"{plain} (Megatron's {knob})"

    return _SETTING.sub(word, text)


_SETTING = pattern_of(r"(?<![\w./-])\w+(?![\w(/=]|\.\w| \([^()\s]{1,200}\.\w+\))")
_ALONE_IN_BRACKETS = pattern_of(r" \((\w+)\)")
"""An aside of one such word: ` (cp_comm_type)`."""


@cache
def _knobs() -> frozenset[str]:
    megatrons = [name for name, knob in catalogue().items() if knob.topic not in ELSEWHERE]
    return frozenset(k for k in megatrons if "_" in k and k not in _NOT_MEGATRONS)
