"""The job's model as a diagnosis has it: its stages, its error, and what another schedule would gain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

from perfdoc.records import dataclass
from perfdoc.results.job_model import JobModelAnalysis, ModelledStage
from perfdoc.results.quality import MEASURED
from perfdoc.results.replay import Gain, Prediction
from perfdoc.simulator.job.model import JobModel
from perfdoc.simulator.job.predict import Models, build_models
from perfdoc.simulator.job.rank import RankWork
from perfdoc.simulator.job.settings import JobSettings, captured_settings, spread_layers
from perfdoc.simulator.replay.edits.edit import Value
from perfdoc.simulator.replay.edits.pipeline import VPP
from perfdoc.simulator.replay.gains import WhyNot
from perfdoc.simulator.replay.proposals import change_title
from perfdoc.traces.job_facts import JobFacts

_VPP_MAX = 8
"""More chunks on a stage are not tried."""
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
) -> ModelledJob:
    """Model the job of these ranks, as many as there are. messages_overlap: see captured_settings;
    domain: see build_model."""
    if not ranks:
        return _none(_NO_PASSES, _NAME_PASSES)
    try:
        settings = captured_settings(ranks, facts, messages_overlap)
        models = build_models(ranks, settings, facts.model, domain=domain)
    except ValueError as error:
        return _none(str(error), _SET)
    analysis = _analysis(models.model, ranks)
    if models.withheld:
        return ModelledJob(analysis=replace(analysis, notes=[models.withheld]))
    predictions = tuple(_schedules(models, len(ranks), why_not))
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


_Tried: TypeAlias = tuple[Gain, JobSettings, str]
"""(gain, settings, why the job cannot have it)."""


def _schedules(models: Models, ranks: int, why_not: WhyNot) -> list[Prediction]:
    """The best number of chunks above the captured one, the best below it; and other splits of the layers."""
    base = models.model.settings
    if base.pp == 1:
        return []
    found = []
    for key, chunks in (
        ("more_virtual_stages", range(base.vpp + 1, _VPP_MAX + 1)),
        ("fewer_virtual_stages", range(1, base.vpp)),
    ):
        some = [
            t for vpp in chunks if (t := _tried(models, key, _with_chunks(base, vpp), why_not)) is not None
        ]
        allowed = [t for t in some if not t[2]] or some
        if allowed:
            best = max(allowed, key=lambda t: t[0].mid_ms or 0.0)
            chosen = best[1].vpp
            tried_with = f", {chosen} per rank" if chosen > 1 else ", none"
            found.append(_prediction(models, key, tried_with, best, ranks))
    for key, layers in _splits(models.model):
        tried = _tried(models, key, replace(base, layers=layers), why_not)
        if tried is not None:
            found.append(_prediction(models, key, "", tried, ranks))
    return found


def _with_chunks(base: JobSettings, vpp: int) -> JobSettings:
    """Without chunks messages cannot overlap; with them megatron-core overlaps them by default."""
    overlap = vpp > 1 and (base.messages_overlap or base.vpp == 1)
    return replace(base, vpp=vpp, messages_overlap=overlap)


def _tried(models: Models, key: str, new: JobSettings, why_not: WhyNot) -> _Tried | None:
    try:
        return models.gain(new), new, why_not(key, _ways(key, new))
    except ValueError:
        return None


def _splits(model: JobModel) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Other numbers of layers on the stages: as even as can be, and so that the slowest stage is as fast
    as can be. Only where every stage was captured: what was composed is as even as the others."""
    base = model.settings
    if not all(base.layers) or base.vpp > 1 or any(s.origin == "composed" for s in model.stages):
        return
    even = spread_layers(sum(base.layers), base.pp)
    if even != base.layers:
        yield "even_layers", even
    balanced = _balanced(model)
    if balanced != base.layers:
        yield "balanced_layers", balanced


def _balanced(model: JobModel) -> tuple[int, ...]:
    """One layer after the other, to the stage that then takes least."""
    layer = [s.forward.length + s.backward.length for s in model.stages]
    ends = [s.forward_ends.length + s.backward_ends.length for s in model.stages]
    counts = [1] * len(layer)
    for _ in range(sum(model.settings.layers) - len(layer)):
        least = min(range(len(layer)), key=lambda i: (ends[i] + layer[i] * (counts[i] + 1), i))
        counts[least] += 1
    return tuple(counts)


def _ways(key: str, new: JobSettings) -> list[dict[str, Value]]:
    """Settings that make it; none is known that splits layers so in every framework."""
    if key in ("even_layers", "balanced_layers"):
        return []
    to: dict[str, Value] = {VPP: new.vpp if new.vpp > 1 else None}
    return [to, {**to, "overlap_p2p_comm": True}]


def _prediction(models: Models, key: str, tried_with: str, tried: _Tried, ranks: int) -> Prediction:
    gain, new, left_out = tried
    step_ns = round(models.model.measured_ns)
    low, mid, high = (round((ms or 0.0) * 1e6) for ms in (gain.low_ms, gain.mid_ms, gain.high_ms))
    ways = _ways(key, new)
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
        settings=dict(ways[0]) if ways else {},
    )
