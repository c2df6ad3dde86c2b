"""In whose words predicted changes are named: the settings' own, else those of the framework of the job."""

from collections.abc import Sequence
from dataclasses import replace

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import PYTORCHS
from perfdoc.knobs.terms import OLD_FLOAT8
from perfdoc.results.headline import Framework
from perfdoc.results.replay import Prediction
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
