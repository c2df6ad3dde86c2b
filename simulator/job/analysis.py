"""The job's model as a diagnosis has it: its stages, its error, and what another schedule would gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from perfdoc.results.job_model import JobModelAnalysis, ModelledStage
from perfdoc.results.replay import Gain, Prediction
from perfdoc.simulator.job.model import JobModel
from perfdoc.simulator.job.predict import Models, build_models
from perfdoc.simulator.job.rank import RankWork
from perfdoc.simulator.job.settings import JobSettings, captured_settings
from perfdoc.simulator.replay.proposals import change_title
from perfdoc.traces.job_facts import JobFacts

VPP = "virtual_pipeline_model_parallel_size"
_VPP_MAX = 8
"""More chunks on a stage are not tried."""
_NO_PASSES = "no range of the captures shows the passes of whole steps"
_NAME_PASSES = "Name forward and backward passes of micro-batches with ranges (perfdoc run does)."
_SET = "Give what is missing with --set or --config."
Value: TypeAlias = bool | int | str | None
WhyNot = Callable[[str, Sequence[Mapping[str, Value]]], str]
"""(key, ways to set it) -> why the job cannot have a change; empty where nothing is known against it."""


@dataclass(frozen=True, kw_only=True)
class ModelledJob:
    """The model, or why there is none, and what it predicts."""

    analysis: JobModelAnalysis
    models: Models | None
    predictions: tuple[Prediction, ...] = ()


def model_job(
    ranks: Sequence[RankWork],
    facts: JobFacts,
    *,
    messages_overlap: bool | None = None,
    why_not: WhyNot = lambda _key, _ways: "",
) -> ModelledJob:
    """Model the job of these ranks, as many as there are. messages_overlap: see captured_settings."""
    if not ranks:
        return _none(_NO_PASSES, _NAME_PASSES)
    try:
        settings = captured_settings(ranks, facts, messages_overlap)
        models = build_models(ranks, settings, facts.model)
    except ValueError as error:
        return _none(str(error), _SET)
    analysis = _analysis(models.model, ranks)
    if models.withheld:
        return ModelledJob(analysis=replace(analysis, notes=[models.withheld]), models=models)
    predictions = tuple(_schedules(models, len(ranks), why_not))
    return ModelledJob(analysis=analysis, models=models, predictions=predictions)


def _none(reason: str, remedy: str) -> ModelledJob:
    return ModelledJob(
        analysis=JobModelAnalysis(state="not_measured", reason=reason, remedy=remedy), models=None
    )


def _analysis(model: JobModel, ranks: Sequence[RankWork]) -> JobModelAnalysis:
    settings = model.settings
    chunks = settings.vpp
    takes = [s.takes(chunks) for s in model.stages]
    return JobModelAnalysis(
        state="measured",
        reason="",
        remedy="",
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


def _schedules(models: Models, ranks: int, why_not: WhyNot) -> list[Prediction]:
    """The best number of chunks above the captured one, and the best below it."""
    base = models.model.settings
    found = []
    if base.pp == 1:
        return []
    for key, chunks in (
        ("more_virtual_stages", range(base.vpp + 1, _VPP_MAX + 1)),
        ("fewer_virtual_stages", range(1, base.vpp)),
    ):
        some = []
        for vpp in chunks:
            # Without chunks messages cannot overlap; with them megatron-core overlaps them by default.
            overlap = vpp > 1 and (base.messages_overlap or base.vpp == 1)
            new = replace(base, vpp=vpp, messages_overlap=overlap)
            ways = _ways(new)
            try:
                some.append((models.gain(new), new, why_not(key, ways)))
            except ValueError:
                continue
        allowed = [s for s in some if not s[2]] or some
        if allowed:
            best = max(allowed, key=lambda s: s[0].mid_ms or 0.0)
            found.append(_prediction(models, key, *best, ranks))
    return found


def _ways(new: JobSettings) -> list[dict[str, Value]]:
    to: dict[str, Value] = {VPP: new.vpp if new.vpp > 1 else None}
    return [to, {**to, "overlap_p2p_comm": True}]


def _prediction(
    models: Models, key: str, gain: Gain, new: JobSettings, left_out: str, ranks: int
) -> Prediction:
    step_ns = round(models.model.measured_ns)
    low, mid, high = (round((ms or 0.0) * 1e6) for ms in (gain.low_ms, gain.mid_ms, gain.high_ms))
    tried_with = f", {new.vpp} per rank" if new.vpp > 1 else ", none"
    return Prediction(
        key=key,
        change=change_title(key, tried_with),
        scope="job",
        ranks=ranks,
        gain=replace(gain, key=key),
        step_ns=step_ns,
        low_ns=low,
        mid_ns=mid,
        high_ns=high,
        low_frac=low / step_ns,
        mid_frac=mid / step_ns,
        high_frac=high / step_ns,
        replay_error_frac=models.model.error_frac,
        exact=True,
        reason="",
        left_out=left_out,
        settings=dict(_ways(new)[0]),
    )
