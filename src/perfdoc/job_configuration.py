"""What is known of a job's settings: the user's file, the run's own record, and facts that were given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.knobs.reading.entry import NotAConfigurationError
from perfdoc.knobs.settings import read_configuration
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


def holds_settings(path: Path) -> bool:
    """Whether a file sets anything that the catalogue knows."""
    try:
        found = read_configuration(path)
    except (NotAConfigurationError, OSError):
        return False
    return bool(found.values or found.unknown)


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
    return replace(found, values={**known, **found.values}, unknown=found.unknown - frozenset(known))
