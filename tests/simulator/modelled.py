"""The job's model of planted jobs: captures of some ranks, measured, and what it says of other settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from perfdoc.analyzers.device.window import WindowRequest
from perfdoc.analyzers.measure import measure_capture
from perfdoc.profiling.manifest import ModelShape
from perfdoc.simulator.job.predict import Models, build_models
from perfdoc.simulator.job.settings import JobSettings, captured_settings
from perfdoc.simulator.work.rank import RankWork, rank_work
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.known_models import known_models
from tests.planted.job import PlantedSteps
from tests.planted.spec import JobSpec

MBS = 4
LAYERS = 10
"""Of a stage: chunks of 5 or of 2."""


def shape_of(spec: JobSpec) -> ModelShape:
    """A model with layers for all stages."""
    return msgspec.structs.replace(known_models()["llama3-8b"], name="planted", layers=LAYERS * spec.pp)


def facts_of(spec: JobSpec) -> JobFacts:
    """As a user gives them."""
    known = ("world_size", "tp", "cp", "dp", "pp", "ep", "vpp", "micro_batches")
    sizes = {key: getattr(spec, key) for key in known}
    return JobFacts(**sizes, micro_batch_sequences=MBS, model=shape_of(spec))


def measured(path: Path, facts: JobFacts) -> RankWork:
    """The only rank of a capture, with its number."""
    (rank,) = measure_capture(path, WindowRequest(), facts, rank_work).ranks
    assert isinstance(rank.also, RankWork)
    return replace(rank.also, rank=rank.device.rank)


def works_of(spec: JobSpec, job: PlantedSteps, folder: Path) -> list[RankWork]:
    """What the captures of a planted job say."""
    return [measured(path, facts_of(spec)) for path in job.write(folder)]


def models_of(spec: JobSpec, works: Sequence[RankWork]) -> Models:
    """The model of these ranks."""
    facts = facts_of(spec)
    return build_models(works, captured_settings(works, facts, None), facts.model)


def settings_of(base: JobSettings, spec: JobSpec, new: JobSpec) -> JobSettings:
    """What a change of a planted job asks of its model."""
    # With TP as well the computing changes; what is sent between stages is a rank's part.
    size = new.pp_transfer_ns * new.tp / (spec.pp_transfer_ns * spec.tp)
    return replace(
        base,
        **{key: getattr(new, key) for key in ("tp", "cp", "dp", "pp", "ep", "vpp", "micro_batches")},
        mbs=round(MBS * size),
        messages_overlap=new.vpp > 1,
        overlap_reduce=base.overlap_reduce or ("dp" in spec.exposed and "dp" not in new.exposed),
    )
