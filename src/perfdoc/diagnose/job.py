"""What is known of the job: its settings, who said them, and its tokens per second."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from perfdoc import results as d
from perfdoc.analyzers.job import JobMeasurement
from perfdoc.analyzers.layout.degrees import SHOWN
from perfdoc.diagnose.configured import stated_facts
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.knobs.reading.entry import NotAConfigurationError
from perfdoc.knobs.settings import read_configuration
from perfdoc.results.headline import Framework
from perfdoc.results.quality import Contradiction
from perfdoc.traces.job_facts import JobFacts

_KNOB_OF_FACT: Mapping[str, str] = MappingProxyType(
    {
        "world_size": "world_size",
        "tp": "tensor_model_parallel_size",
        "pp": "pipeline_model_parallel_size",
        "vpp": "virtual_pipeline_model_parallel_size",
        "cp": "context_parallel_size",
        "ep": "expert_model_parallel_size",
        "etp": "expert_tensor_parallel_size",
        "dp": "data_parallel_size",
        "sequence_parallel": "sequence_parallel",
        "micro_batch_sequences": "micro_batch_size",
        "global_batch_sequences": "global_batch_size",
        "sequence_length": "seq_length",
        "recompute": "recompute_granularity",
    }
)


def settings_of_file(path: Path) -> Configuration | None:
    """What a file sets that the catalogue knows; None where it is no configuration."""
    try:
        return read_configuration(path)
    except (NotAConfigurationError, OSError):
        return None


_AT_ODDS = ("world_size", "global_batch_sequences")
"""What is left out first where a file's numbers contradict each other: a script is for several sizes."""


def stated_by(found: Configuration | None) -> Iterator[Mapping[str, Any]]:
    """Facts that a configuration states, then with ever fewer of those that may contradict the others."""
    stated = {} if found is None else stated_facts(found)
    yield dict(stated)
    for name in _AT_ODDS:
        if stated.pop(name, None) is not None:
            yield dict(stated)
    if stated:
        yield {}


def job_configuration(facts: JobFacts, given: Path | None) -> Configuration:
    """Settings by canonical id. given: the file of --config, which goes before run.json.

    Facts fill in what neither says. A file that the catalogue cannot read says nothing: whether it may be
    read at all was decided where its facts were taken.
    """
    found = Configuration()
    for path in (given, facts.run_directory):
        if path is None:
            continue
        try:
            found = read_configuration(path)
            break
        except (NotAConfigurationError, OSError):
            continue
    known: dict[str, Value] = {
        knob: None if value == "none" else value
        for fact, knob in _KNOB_OF_FACT.items()
        if (value := getattr(facts, fact)) is not None and knob not in found.values
    }
    return replace(
        found,
        values={**known, **found.values},
        unknown=found.unknown - frozenset(known),
        filled=frozenset(known) - found.unknown,
    )


def with_shown_degrees(configuration: Configuration, facts: JobFacts) -> Configuration:
    """The same with the degrees that nobody set and the captures show."""
    known: dict[str, Value] = {
        knob: getattr(facts, fact)
        for fact, knob in _KNOB_OF_FACT.items()
        if facts.sources.get(fact) == SHOWN
        and knob not in configuration.values.keys() | configuration.unknown
    }
    filled = configuration.filled | frozenset(known)
    return replace(configuration, values={**known, **configuration.values}, filled=filled)


_SAME = (
    *("world_size", "tp", "cp", "pp", "dp", "vpp", "ep", "etp", "sequence_parallel", "micro_batches"),
    *("micro_batch_sequences", "global_batch_sequences", "sequence_length", "dtype", "recompute"),
)
_NO_STEPS = (
    "the windows are not made of whole steps",
    "Name the ranges that are steps with --step-range.",
)
_NO_GPUS = ("the job's number of GPUs is unknown", "Give it: --set world_size=64.")
_NO_BATCH = (
    "batch unknown: {} not given",
    "Give the global batch and the sequence length, such as --set gbs=128 seq=8192.",
)


def job_of(
    job: JobMeasurement,
    configuration: Configuration,
    contradicted: Sequence[Contradiction] = (),
    framework: Framework = "",
) -> d.Job:
    """Tokens per second and GPU = global batch x sequence length / (mean step time x GPUs): 128 sequences of
    8,192 in 2 s on 64 GPUs are 8,192."""
    facts = job.facts
    batch, length = facts.global_batch_sequences, facts.sequence_length
    step_ns, gpus = job.mfu.step_time_ns, job.mfu.gpus
    tokens = None if batch is None or length is None else batch * length
    reason, remedy = "", ""
    if tokens is None:
        missing = [key for key, value in (("gbs", batch), ("seq", length)) if value is None]
        reason, remedy = _NO_BATCH[0].format(", ".join(missing)), _NO_BATCH[1]
    elif not step_ns:
        reason, remedy = _NO_STEPS
    elif not gpus:
        reason, remedy = _NO_GPUS
    known = {name: getattr(facts, name) for name in _SAME}
    return d.Job(
        **known,
        model=None if facts.model is None else facts.model.name or None,
        dialect=configuration.dialect,
        sources={name: said for name, said in facts.sources.items() if name in (*_SAME, "model")},
        tokens_per_step=tokens,
        tokens_per_s_per_gpu=(
            tokens / (step_ns * 1e-9) / gpus if tokens is not None and step_ns and gpus else None
        ),
        tokens_reason=reason,
        tokens_remedy=remedy,
        contradictions=list(contradicted),
        degrees=list(job.degrees),
        framework=framework,
    )
