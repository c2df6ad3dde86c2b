"""The job to be tuned: its model, its settings, what memory it needs, and what is not known of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfdoc.analyzers.job import JobMeasurement, measure_job
from perfdoc.analyzers.measure import CaptureMeasurement
from perfdoc.analyzers.memory.job import job_memory
from perfdoc.analyzers.request import AnalysisRequest
from perfdoc.diagnose.contradictions import without_contradictions
from perfdoc.diagnose.job import job_configuration
from perfdoc.diagnose.job_memory import Memory, memory_of
from perfdoc.diagnose.measuring import Found, measure_all
from perfdoc.knobs.configuration import Configuration
from perfdoc.knobs.knob import Value
from perfdoc.profiling.errors import UserError
from perfdoc.records import dataclass
from perfdoc.results.headline import Mfu
from perfdoc.results.quality import in_words
from perfdoc.rules.facts.hardware import gpu_of, job_nvlink_domain
from perfdoc.simulator.job.predict import Models, build_models
from perfdoc.simulator.job.settings import JobSettings, captured_settings
from perfdoc.simulator.work.rank import RankWork, rank_work
from perfdoc.traces.job_facts import JobFacts
from perfdoc.tune.space import P2P

_NO_PASSES = (
    "no range of the captures shows the forward and backward passes of whole steps. Name them with ranges "
    "(perfdoc run does; see docs/ranks.md)."
)


class NotPredictedError(UserError):
    """The captures were read, and nothing can be predicted from them."""

    exit_code = 3


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the search goes by."""

    models: Models
    facts: JobFacts
    configuration: Configuration
    memory: Memory
    mfu: Mfu
    captured: int
    """Ranks whose passes were measured."""
    notes: tuple[str, ...]
    """What to know before trusting figures, and what is not known, with how to give it."""

    @property
    def base(self) -> JobSettings:
        """As captured."""
        return self.models.model.settings

    @property
    def nvlink_domain(self) -> int | None:
        """GPUs of the job in one NVLink domain; None unknown."""
        return self.models.model.network.domain

    @property
    def degrees_known(self) -> bool:
        """Whether all parallel degrees are."""
        facts = self.facts
        return None not in (facts.tp, facts.cp, facts.pp, facts.dp)

    def setting(self, knob: str) -> tuple[bool, Value]:
        """(whether it is known, its value)."""
        return self.configuration.setting(knob)


def read_job(request: AnalysisRequest, *, gpu_memory_bytes: int | None = None) -> Job:
    """Measure the captures and model their job.

    Raises UserError where nothing can be read of it or settings are missing, NotPredictedError where the
    model is off, TraceError and WorkerLostError of reading.
    """
    found = measure_all(request, also=rank_work)
    if not found.captures:
        raise UserError(str(found.silent[0]) if found.silent else "no capture was given.")
    return job_of(found, config=request.config, gpu_memory_bytes=gpu_memory_bytes)


def job_of(found: Found, *, config: object = None, gpu_memory_bytes: int | None = None) -> Job:
    """The job of what was measured, each rank with its RankWork. Raises as read_job."""
    captures: Sequence[CaptureMeasurement] = found.captures
    notes: list[str] = []
    job = measure_job(captures)
    configuration = job_configuration(job.facts, config)  # type: ignore[arg-type]
    settled = without_contradictions(captures, job, configuration)
    captures, job, configuration = settled.captures, settled.job, settled.configuration
    facts = job.facts
    if settled.contradicted:
        said = in_words(settled.contradicted)
        notes.append(f"the settings contradict the capture and count as unknown: {said}")
    works = _works(captures, job)
    measured = [r for c in captures for r in c.ranks]
    if withheld := next((r.withheld for r in measured if r.withheld), ""):
        raise NotPredictedError(f"nothing is predicted from these captures: {withheld}.")
    if not works:
        raise UserError(_NO_PASSES)
    known, overlap = configuration.setting(P2P)
    gpu = gpu_of(next((d.gpu_name for d in job.devices if d.gpu_name), None))
    try:
        settings = captured_settings(works, facts, overlap is True if known else None)
        settings = _with_layers(settings, configuration)
        domain = job_nvlink_domain(gpu, configuration.setting("nproc_per_node")[1])
        models = build_models(works, settings, facts.model, domain=domain)
    except ValueError as error:
        raise UserError(f"the job cannot be modelled: {error}.") from error
    if models.withheld:
        raise NotPredictedError(
            f"nothing is predicted: {models.withheld}. Capture steady steps, or more ranks."
        )
    return Job(
        models=models,
        facts=facts,
        configuration=configuration,
        memory=memory_of(
            settings,
            facts,
            configuration,
            devices=job.devices,
            measured=job_memory(found.memory),
            given_bytes=gpu_memory_bytes,
            on_host=all(r.on_host for r in measured),
        ),
        mfu=job.mfu,
        captured=len(works),
        notes=(*notes, *_missing(facts, settings)),
    )


def _with_layers(settings: JobSettings, configuration: Configuration) -> JobSettings:
    """The layers that a configuration names where no model does: alike on every stage, if they divide so."""
    _, layers = configuration.setting("num_layers")
    if all(settings.layers) or not isinstance(layers, int) or layers < 1 or layers % settings.pp:
        return settings
    return replace(settings, layers=(layers // settings.pp,) * settings.pp)


def _works(captures: Sequence[CaptureMeasurement], job: JobMeasurement) -> list[RankWork]:
    """Of each rank that shows its passes, with its number as all captures together tell it."""
    ranks = [r for c in captures for r in c.ranks]
    return [
        replace(r.also, rank=device.rank, facts=job.facts)
        for r, device in zip(ranks, job.devices, strict=True)
        if isinstance(r.also, RankWork)
    ]


def _missing(facts: JobFacts, settings: JobSettings) -> list[str]:
    """What was not searched or not said for want of a fact, and how to give it."""
    found = []
    degrees = {"tp": facts.tp, "cp": facts.cp, "pp": facts.pp, "dp": facts.dp}
    if lacking := [name for name, value in degrees.items() if value is None]:
        given = " ".join(f"{name}=N" for name in lacking)
        found.append(f"parallel degrees are not all known, so none was changed: give --set {given}")
    if facts.micro_batch_sequences is None:
        found.append("the size of a micro-batch is unknown, so it was not changed: give --set mbs=N")
    if settings.pp > 1 and not all(settings.layers):
        found.append(
            "the number of layers is unknown, so no chunks were tried: give --set model=NAME, or a "
            "--config with num_layers"
        )
    tokens = {"gbs": facts.global_batch_sequences, "seq": facts.sequence_length}
    if lacking := [name for name, value in tokens.items() if value is None]:
        given = " ".join(f"{name}=N" for name in lacking)
        found.append(f"tokens per second are unknown: give --set {given}")
    return found
