"""All other stages wait for the slowest one in every micro-batch. With a large vocabulary the embedding loads
the first stage, the output layer and the loss the last one."""

import math
from collections.abc import Callable
from dataclasses import replace

from perfdoc.knobs.pipeline_layout import LAYOUT
from perfdoc.results.figures import brief, per_cent, significant
from perfdoc.results.names import opening
from perfdoc.results.what_if import WhatIfCause
from perfdoc.rules.engine.advise import Advice, advise, all_or_none
from perfdoc.rules.engine.gain import Gain, RankMeasurement, predicted
from perfdoc.rules.engine.needs import Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.bubble import PIPELINE, late_peer_ceiling
from perfdoc.rules.facts.culprit import cause_of, gain_of, leading
from perfdoc.rules.facts.culprit_words import does, stage_words, who
from perfdoc.rules.facts.degrees import PP, VPP, layers_of
from perfdoc.rules.facts.stage_split import (
    EMBEDDING,
    LOSS,
    layers_apart,
    layers_by_stage,
    layout_of,
    mixed_layers,
    own_ns_by_stage,
    switched_off,
)
from perfdoc.simulator.replay.edits.pipeline import FIRST, LAST


def _no_passes(case: Case) -> Missing | None:
    found = case.job.pipeline
    if found.state == "measured" and found.imbalance_ns is not None and found.window_ns:
        return None
    if cause_of(case.what_if, "long_stage") is not None:
        return None
    return skipped(found.reason or "the passes of the stages are not known")


META = Meta(
    title="Uneven pipeline stages",
    action="Balance the pipeline stages",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "megatron-core notes"),
    topic="pipeline",
    time=("pipeline.late_peer",),
    needs=(PIPELINE, Need(words="the passes of all stages", missing=_no_passes)),
    advice=("pp_asymmetric", "pp_flexible_layout"),
)

MIN_FRAC = 0.03
"""Of the step: waiting because mean stage times differ."""
EVEN_RATIO = 1.02
"""Longest stage over the mean, since whole layers cannot be split evenly."""
MIN_LAYERS = 1.0
"""Slowest less fastest stage, in layers: below this, moving a layer makes the fastest the slowest."""
ONE_CAUSE_FRAC = 0.5
"""Of the slowest stage's time above the mean."""


def evaluate(case: Case) -> Verdict:
    """Fires if uneven stages cost `MIN_FRAC` of the step, in all replicas of the slow stage, and their hosts
    are not the cause; as information if no split of whole layers is more even, or the most even one has no
    predicted gain. Another split is advised if the settings give the current one and the first or the last
    stage is slow."""
    cause, found = cause_of(case.what_if, "long_stage"), case.job.pipeline
    late_host = cause is not None and cause.stage is not None and _host_cause(case, cause.stage) is not None
    if cause is not None and not late_host and predicted(case, "balanced_layers") is None:
        return _by_what_if(case, cause)
    share = given(found.imbalance_ns) / given(found.window_ns)
    evidence = [("waiting for late peers, of the step", per_cent(share))]
    if found.slowest_over_mean is not None and found.slowest_stage is not None:
        evidence.append((f"stage {found.slowest_stage}, over the mean", significant(found.slowest_over_mean)))
    if (apart := layers_apart(case)) is not None:
        evidence.append(("slowest less fastest stage, in layers", f"about {significant(apart, 2)}"))
    if share < MIN_FRAC or found.slowest_stage is None:
        return passes(evidence)
    if _some_replicas_only(case, found.slowest_stage):
        reason = f"other replicas of stage {found.slowest_stage} are as fast as the other stages: see PD303"
        return passes(evidence, reason)
    if (host := _host_cause(case, found.slowest_stage)) is not None:
        reason = (
            f"stage {found.slowest_stage} takes longer because {host}: moving layers does not change that"
        )
        return passes(evidence, reason)
    at_end = found.slowest_stage in (0, (found.pp or 0) - 1)
    where = "first" if found.slowest_stage == 0 else "last" if at_end else "a middle"
    advice = _split(case) if at_end and not mixed_layers(case) else []
    whole = at_end and not advice and apart is not None and apart < MIN_LAYERS
    vain = at_end and not advice and not whole and _moves_in_vain(case)
    left_out = _left_out(case)
    why = "; no split of whole layers is more even" if whole else ""
    if vain:
        why = f"; the fastest split {left_out}" if left_out else _VAIN
    reason = f"{'the ' if at_end else ''}{where} stage{_HOLDS.get(where, '')} takes longer than the others"
    return fires(
        level="information" if whole or vain else "problem",
        blames="" if cause is None or cause not in leading(case.what_if) else does(cause, case.what_if),
        cause=cause,
        reason=f"{reason}{why}",
        evidence=evidence,
        advice=advice,
        remedy=_WHOLE if whole else _STAY if vain else _fewer(case, where) if at_end else _MIDDLE,
        otherwise="" if at_end else _MIDDLE,
        action=_ELSE if vain else "",
        gain=(None if cause is None else _if_even(gain_of(case, cause)))
        if left_out
        else late_peer_ceiling(case)
        if advice or whole
        else _moved(case),
        verify="Run again: the stages' own times in the pipeline section come closer, and late_peer falls.",
        false_alarm="One slow GPU looks like a slow stage: compare the same stage of several replicas "
        "(PD303).",
    )


def _by_what_if(case: Case, cause: WhatIfCause) -> Verdict:
    """Where the stages' windows were not measured, but what their ranks recorded was replayed."""
    pp = case.what_if.pp
    at_end = cause.stage in (0, (pp or 0) - 1)
    where = "first" if cause.stage == 0 else "last" if at_end else "middle"
    evidence = [
        (f"stage {cause.stage}, over the mean of the others", significant(cause.ratio)),
        ("the step without its excess", f"{brief(cause.step_ns)}, not {brief(case.what_if.step_ns or 0)}"),
    ]
    if cause.even_ns is not None:
        evidence.append(("the step with even stages", brief(cause.even_ns)))
    gain, remedy = gain_of(case, cause), _MIDDLE
    if at_end:
        keeps = _keeps(case, cause.stage or 0, pp or 0, cause.ratio or 0.0)
        held = [s.rank for s in case.job.pipeline.stages if s.stage == cause.stage and s.rank is not None]
        on = f" ({who(replace(cause, ranks=held))})" if held else ""
        remedy = _fewer(case, where, keeps, on) if keeps else _WHOLE
        if not keeps:  # no more than what a split of something else may save
            gain = _if_even(gain)
    note = f" {opening(cause.note)}." if cause.note else ""
    return fires(
        reason=f"{stage_words(cause, pp)}{_HOLDS.get(where, '')} takes longer than the others",
        evidence=evidence,
        remedy=f"{remedy}{note}",
        gain=gain,
        blames=does(cause, case.what_if) if cause in leading(case.what_if) else "",
        cause=cause,
        verify="Run again: forward and backward passes of the stages come closer, and the step shorter.",
        false_alarm="One slow GPU looks like a slow stage where only one replica was captured (PD303).",
    )


def _if_even(gain: Gain) -> Gain:
    """No more than that, and perhaps nothing: no split of whole layers that the job can have gives it."""
    return replace(gain, low_ms=0.0, mid_ms=None, method="ceiling", assumptions=[_IF_EVEN])


def _moves_in_vain(case: Case) -> bool:
    """Whether the fastest split of whole layers has no predicted gain, or the job cannot have it."""
    whole = predicted(case, "balanced_layers")
    gains = whole is None or not whole.is_predicted or (whole.mid_ms or 0.0) > 0
    return not gains or bool(_left_out(case))


def _left_out(case: Case) -> str:
    """Why the job cannot have the split that is predicted to be the fastest."""
    change = case.prediction("balanced_layers")
    return "" if change is None else change.left_out


def _moved(case: Case) -> Gain | None:
    """The predicted gain of another split of whole layers; else the upper bound of even stages."""
    whole = predicted(case, "balanced_layers")
    return whole if whole is not None and whole.is_predicted else late_peer_ceiling(case)


def _host_cause(case: Case, stage: int) -> str | None:
    """The host cause of a slow stage, if it is most of the stage's time above the mean; none where the stage
    computes as much longer."""
    own = own_ns_by_stage(case.job.pipeline)
    if own is None or stage >= len(own):  # messages show more stages than their group is said to have
        return None
    beyond = own[stage] - sum(own) / len(own)
    lost = {}
    for cause, words in _HOSTS.items():

        def idle(rank: RankMeasurement, name: str = cause) -> float:
            return rank.ledger.idle.by_name[name]

        lost[words] = _above_the_mean(case, len(own), stage, idle)
    computed = _above_the_mean(case, len(own), stage, lambda rank: rank.ledger.compute)
    if beyond <= 0 or sum(lost.values()) < ONE_CAUSE_FRAC * beyond or computed >= ONE_CAUSE_FRAC * beyond:
        return None
    return max(lost, key=lambda words: lost[words])


def _above_the_mean(case: Case, stages: int, stage: int, of: Callable[[RankMeasurement], float]) -> float:
    """Of a stage, ns a step above the mean of all stages; 0 where not all of them were captured."""
    of_rank = {row.rank: row.stage for row in case.job.pipeline.stages}
    by_stage: dict[int, list[float]] = {}
    for rank, device in zip(case.ranks, case.job.devices, strict=False):
        where = None if device.rank is None else of_rank.get(device.rank)
        if rank.window.steps and where is not None:
            by_stage.setdefault(where, []).append(of(rank) / rank.window.steps)
    if sorted(by_stage) != list(range(stages)):
        return 0.0
    means = [sum(by_stage[s]) / len(by_stage[s]) for s in range(stages)]
    return means[stage] - sum(means) / stages


_HOLDS = {"first": ", which holds the embedding,", "last": ", which holds the output layer and the loss,"}
_HOSTS = {
    "host": "its host launches late (PD201)",
    "gc": "its host collects garbage (PD202)",
    "data": "its host loads data (PD203)",
}


def _some_replicas_only(case: Case, stage: int) -> bool:
    """Whether one of several replicas of the stage is about as fast as the other stages: then its layers are
    not the cause."""
    best: dict[int | None, float] = {}
    for row in case.job.pipeline.stages:
        if row.steps:
            best[row.stage] = min(best.get(row.stage, math.inf), row.own_ns / row.steps)
    several = sum(row.stage == stage and row.steps > 0 for row in case.job.pipeline.stages) > 1
    return several and stage in best and best[stage] <= EVEN_RATIO * sum(best.values()) / len(best)


_SETTING = {"first": (FIRST, "account_for_embedding"), "last": (LAST, "account_for_loss")}
_MIXED = "Mixed layers (dense and experts, multi-token prediction) need `pipeline_model_parallel_layout`."
_LOWER = "lower: its layers go to the others"
_NO_SIZE = "no size"


def _chunks(case: Case) -> int:
    """Virtual stages of a stage, over which its layers must divide; 1 unknown."""
    return case.degree(VPP) or case.what_if.vpp or case.job.facts.vpp or 1


def _fewer(case: Case, where: str, to: str = "", on: str = "") -> str:
    """What to set for an end stage. to: how many layers it keeps. on: its ranks, in brackets. megatron-core
    takes sizes, switches or a layout, one of them."""
    (setting, counted), vpp, layers, pp = _SETTING[where], _chunks(case), layers_of(case), case.degree(PP)
    if case.setting(LAYOUT)[1] is not None or to == _NO_SIZE:
        why = " (no size of this stage alone leaves the others equal and shorter)" if to == _NO_SIZE else ""
        return f"Move layers off this stage{on} in `{LAYOUT}`{why or to.removeprefix(_LOWER)}."
    said = f"Set `{setting}`{on} {to or _LOWER}. "
    if vpp > 1 and "which leaves" not in to:
        said += f"Each stage's must be a multiple of its {vpp} virtual stages. "
    if off := " and ".join(f"`{knob}`" for knob in switched_off(case)):
        return f"{said}Switch {off} off: sizes exclude that. {_MIXED}"
    over = f"stages x {vpp}" if vpp > 1 else "the stages"
    if layers is None or pp is None or (layers + 1) % (pp * vpp) == 0:
        said += f"If layers plus one divide over {over}, `{counted}_in_pipeline_split` takes one off it. "
    return said + _MIXED


def _keeps(case: Case, stage: int, stages: int, ratio: float) -> str:
    """What an end stage is to keep, from what the settings give it; without a number where the others do not
    hold as many each, or that is not known."""
    layers, now = layers_of(case), layers_by_stage(case, stages)
    if now is not None and layout_of(case, now) is not None:
        return _to_lay(case, now, stage, ratio)
    if layers and now is not None:
        own, others = now[stage], {*now[:stage], *now[stage + 1 :]}
        return _to_keep(ratio if len(others) == 1 and 0 < own < layers else 0, stages, layers, 1, own)
    is_set = any(case.setting(k)[1] not in (None, False) for k in (FIRST, LAST, EMBEDDING, LOSS, LAYOUT))
    return _to_keep(0 if is_set or (layers or 0) % max(stages, 1) else ratio, stages, layers, _chunks(case))


def _to_lay(case: Case, now: list[int], stage: int, ratio: float) -> str:
    """The layout that is set with fewer layers on a stage `ratio` as long as the mean of the others, and the
    other stages that hold any as even as whole layers are: what makes the longest about shortest. Its
    embedding or output layer stays, as of `_to_keep`. Empty: no whole layer of even stages."""
    others = sorted((s for s, n in enumerate(now) if n and s != stage), key=lambda s: s in (0, len(now) - 1))
    has, held = now[stage], [now[s] for s in others]
    takes = ratio * sum(held) / (len(now) - 1)
    if not held or not has or mixed_layers(case):
        return _LOWER
    one, before = min(takes / has, 1.0), max(takes, *held)
    splits: dict[int, float] = {}
    for n in range(1, has):
        each, more = divmod(sum(now) - n, len(others))
        if (longest := max(each + bool(more), one * n + max(takes - has, 0.0))) < before:
            splits[n] = longest
    if not splits:
        return "" if max(held) - min(held) <= 1 else _LOWER
    keeps = max(n for n, longest in splits.items() if longest <= EVEN_RATIO * min(splits.values()))
    each, more = divmod(sum(now) - keeps, len(others))
    counts = [keeps if s == stage else 0 for s in range(len(now))]
    for at, s in enumerate(others):
        counts[s] = each + (at < more)
    return f", to `{layout_of(case, counts)}`"


def _to_keep(ratio: float, stages: int, layers: int | None, vpp: int, own: int | None = None) -> str:
    """What an end stage keeps that is `ratio` as long as the mean of the others. Its embedding or output
    layer stays: spread over all stages, 1 - (1.63 - 1) x 3 / 4 = 0.53 of a stage. In whole layers, with as
    many on each other, what makes the longest about shortest. layers: of the model, None unknown. vpp:
    what a stage's layers divide over. own: those that it has, None an equal share. Empty: no whole layer."""
    if stages < 2 or ratio <= 0:
        return _LOWER
    part, of = (ratio - 1) * (stages - 1) / stages, layers or 8 * stages * vpp
    formula = f"to about {significant(1 - part, 2)} x layers / {stages}"
    ask = "`--set model=NAME` works it out"
    has = of / stages if own is None else own
    each = (of - has) / (stages - 1)
    if ratio <= 1 + 1 / each:
        return "" if layers or 8 * part < 0.5 else f"{formula}. {ask}"
    stays = max(ratio * each - has, 0.0)  # in layers; none where it is long by its layers
    one = min(ratio * each / has, 1.0)
    fits = [n for n in range(vpp, of, vpp) if n != has and (of - n) % ((stages - 1) * vpp) == 0]
    takes = {n: long for n in fits if (long := max((of - n) / (stages - 1), one * n + stays)) < ratio * each}
    if not takes:
        return _NO_SIZE if layers else _LOWER
    keeps = max(n for n, long in takes.items() if long <= EVEN_RATIO * min(takes.values()))
    rest = (of - keeps) // (stages - 1)
    if layers:
        return f"to {keeps}, which leaves {rest} on each other stage"
    return f"{formula}, equally many on the others; e.g. of {of}: {keeps} there, {rest} on each other. {ask}"


_WHOLE = (
    "No whole layer can be moved: with one more, another stage would take as long as this one. Only more "
    "stages of fewer layers, a smaller vocabulary, or the embedding or loss apart "
    "(`pipeline_model_parallel_layout`) help."
)
_IF_EVEN = "upper bound, not predicted: the stage as short as the others"
_VAIN = "; no other split of whole layers has a predicted gain"
_STAY = (
    "Keep the layers, and check what else slows the ranks of this stage: late ranks (PD303), exposed "
    "communication."
)
_ELSE = "Find what else slows this stage"
_MIDDLE = (
    "A middle stage has neither embedding nor loss: look for heavier layers (experts among dense ones), "
    "which pipeline_model_parallel_layout can distribute, or for a slow GPU (PD303)."
)


def _split(case: Case) -> list[Advice]:
    """The fastest split that was simulated."""
    change = case.prediction("balanced_layers")
    if change is None or not change.settings or _moves_in_vain(case):
        return []
    why, costs = "the fastest split that was simulated", "more weights and activations on other stages"
    settings = switched_off(case) | {knob: change.settings[knob] for knob in (FIRST, LAST)}
    pieces = [advise(knob=k, to=to, why=why, costs=costs, gain=change.gain) for k, to in settings.items()]
    return all_or_none(case, pieces)
