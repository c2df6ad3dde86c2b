"""The job's model as a diagnosis has it: its stages, its error, and what another schedule would gain."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from perfdoc.records import dataclass
from perfdoc.results.job_model import JobModelAnalysis, ModelledStage
from perfdoc.results.quality import MEASURED
from perfdoc.results.replay import Gain, Prediction
from perfdoc.simulator.job.settings import JobSettings, captured_settings, ends_near, uneven_split
from perfdoc.simulator.replay.edits.edit import Value
from perfdoc.simulator.replay.edits.pipeline import FIRST, LAST, VPP
from perfdoc.simulator.replay.gains import WhyNot, prediction_of
from perfdoc.simulator.replay.proposals import change_title
from perfdoc.simulator.work.rank import RankWork
from perfdoc.traces.job_facts import JobFacts

if TYPE_CHECKING:
    from perfdoc.simulator.job.model import JobModel
    from perfdoc.simulator.job.predict import Models

_VPP_MAX = 8
"""More chunks on a stage are not tried where its layers are unknown."""
_CHUNKS_MAX = 64
"""More are not tried at all, whatever a configuration says of layers."""
_NO_PASSES = "no range of the captures shows the passes of whole steps"
_NAME_PASSES = "Name forward and backward passes of micro-batches with ranges (perfdoc run does)."
_SET = "Give what is missing with --set or --config."


@dataclass(frozen=True, kw_only=True)
class ModelledJob:
    """The model, or why there is none, and what it predicts."""

    analysis: JobModelAnalysis
    predictions: tuple[Prediction, ...] = ()


def model_job(
    ranks: Sequence[RankWork],
    facts: JobFacts,
    *,
    messages_overlap: bool | None = None,
    domain: int | None = None,
    why_not: WhyNot = lambda _key, _ways: "",
    too_large: TooLarge = lambda _now: lambda _then: "",
) -> ModelledJob:
    """Model the job of these ranks, as many as there are. messages_overlap: see captured_settings;
    domain: see build_model. why_not, too_large: why the job cannot have a change."""
    if not ranks:
        return _none(_NO_PASSES, _NAME_PASSES)
    from perfdoc.simulator.job.predict import build_models  # and with it all that models a job

    try:
        settings = captured_settings(ranks, facts, messages_overlap)
        models = build_models(ranks, settings, facts.model, domain=domain)
    except ValueError as error:
        return _none(str(error), _SET)
    analysis = _analysis(models.model, ranks)
    if models.withheld:
        return ModelledJob(analysis=replace(analysis, notes=[models.withheld]))

    is_too_large = too_large(settings)

    def against(key: str, new: JobSettings) -> str:
        return why_not(key, _ways(key, new)) or is_too_large(new)

    predictions = tuple(_schedules(models, len(ranks), against))
    return ModelledJob(analysis=analysis, predictions=predictions)


def _none(reason: str, remedy: str) -> ModelledJob:
    return ModelledJob(analysis=JobModelAnalysis(state="not_measured", reason=reason, remedy=remedy))


def _analysis(model: JobModel, ranks: Sequence[RankWork]) -> JobModelAnalysis:
    settings = model.settings
    chunks = settings.vpp
    takes = [s.takes(chunks) for s in model.stages]
    return JobModelAnalysis(
        **MEASURED,
        step_ns=round(model.measured_ns),
        modelled_ns=round(model.modelled_ns),
        error_frac=model.error_frac,
        message_ns=round(model.message_ns) if settings.pp > 1 else None,
        output_over_flops=model.output_inferred if model.shape is not None else None,
        stages=[
            ModelledStage(
                stage=i,
                layers=stage.layers if all(settings.layers) else None,
                origin=stage.origin,
                ranks=list(stage.ranks),
                forward_ns=round(sum(forward)),
                backward_ns=round(sum(backward)),
                spread_frac=stage.spread_frac,
            )
            for i, (stage, (forward, backward)) in enumerate(zip(model.stages, takes, strict=True))
        ],
        world_size=ranks[0].world_size,
    )


TooLarge: TypeAlias = Callable[[JobSettings], Callable[[JobSettings], str]]
"""Of the settings now: others → why those do not fit into memory; empty where they do, or nobody knows."""
_Tried: TypeAlias = tuple[Gain, JobSettings, str]
"""(gain, settings, why the job cannot have it)."""


def _schedules(models: Models, ranks: int, against: Callable[[str, JobSettings], str]) -> list[Prediction]:
    """The best number of chunks above the captured one, the best below it; and other splits of the layers."""
    base = models.model.settings
    if base.pp == 1:
        return []
    most = min(max(base.layers) or _VPP_MAX, _CHUNKS_MAX)
    found = []
    for key, some in (
        ("more_virtual_stages", [_with_chunks(base, n) for n in range(base.vpp + 1, most + 1)]),
        ("fewer_virtual_stages", [_with_chunks(base, n) for n in range(1, min(base.vpp, most + 1))]),
        ("balanced_layers", _splits(models.model)),
    ):
        tried = [(gain, new, against(key, new)) for new in some if (gain := _gain(models, new)) is not None]
        if allowed := [t for t in tried if not t[2]] or tried:
            best = max(allowed, key=lambda t: t[0].mid_ms or 0.0)
            found.append(_prediction(models, key, best, ranks))
    return found


def _gain(models: Models, new: JobSettings) -> Gain | None:
    try:
        return models.gain(new)
    except ValueError:
        return None


def _with_chunks(base: JobSettings, vpp: int) -> JobSettings:
    """Without chunks messages cannot overlap; with them megatron-core overlaps them by default."""
    overlap = vpp > 1 and (base.messages_overlap or base.vpp == 1)
    return replace(base, vpp=vpp, messages_overlap=overlap)


def _splits(model: JobModel) -> list[JobSettings]:
    """Other numbers of layers on the end stages. Only where every stage was captured: what was composed is
    as even as the others."""
    base = model.settings
    if not all(base.layers) or base.vpp > 1 or any(s.origin == "composed" for s in model.stages):
        return []
    layers = sum(base.layers)
    ends = ends_near(layers // base.pp)
    some = (uneven_split(layers, base.pp, first, last) for first in ends for last in ends)
    return [replace(base, layers=n) for n in some if n is not None and n != base.layers]


def _ways(key: str, new: JobSettings) -> list[dict[str, Value]]:
    """Settings that make it."""
    if key == "balanced_layers":
        return [{FIRST: new.layers[0], LAST: new.layers[-1]}]
    to: dict[str, Value] = {VPP: new.vpp if new.vpp > 1 else None}
    return [to, {**to, "overlap_p2p_comm": True}]


def _prediction(models: Models, key: str, tried: _Tried, ranks: int) -> Prediction:
    gain, new, left_out = tried
    tried_with = f", {new.vpp} per rank" if new.vpp > 1 else ", none" if key == "fewer_virtual_stages" else ""
    return prediction_of(
        replace(gain, key=key),
        round(models.model.measured_ns),
        change=change_title(key, tried_with),
        scope="job",
        ranks=ranks,
        replay_error_frac=models.model.error_frac,
        exact=True,
        reason="",
        left_out=left_out,
        settings=dict(_ways(key, new)[0]),
    )
