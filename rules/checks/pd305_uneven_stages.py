"""PD305: pipeline stages that take unequally long."""

from __future__ import annotations

import math

from perfdoc.results.figures import per_cent
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise, all_or_none
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import at_most, predicted
from perfdoc.rules.engine.needs import Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import bubble
from perfdoc.rules.facts.bubble import PIPELINE, late_peer_ceiling
from perfdoc.rules.facts.stage_split import (
    as_settings,
    balanced,
    layers_apart,
    layers_by_stage,
    own_ns_by_stage,
)


def _no_passes(case: Case) -> Missing | None:
    found = case.job.pipeline
    if found.state == "measured" and found.imbalance_ns is not None and found.window_ns:
        return None
    return skipped(found.reason or "the stages' passes are not known")


META = Meta(
    code="PD305",
    title="Uneven pipeline stages",
    why="The slowest stage sets the pace of the pipeline; all others wait for it in every micro-batch. The "
    "embedding of a large vocabulary loads the first stage, its output layer and the loss the last one.",
    sources=("seed 000", "seed 001", "seed 002", "seed 004"),
    topic="pipeline",
    time=("pipeline.late_peer",),
    needs=(PIPELINE, Need(words="the passes of all stages", missing=_no_passes)),
    advice=("pp_asymmetric", "pp_flexible_layout"),
)

MIN_FRAC = 0.03
"""Of the step: what stages wait because their mean times differ."""
EVEN_ENOUGH = 1.02
"""Longest stage over the mean: layers are whole, so that no split is even."""
A_LAYER = 1.0
"""Slowest stage over the fastest, in layers' time: with less, that would be slower with a layer more."""
MOSTLY_FRAC = 0.5
"""Of what the slowest stage takes beyond the mean."""
_MTP_MAX = 8


def evaluate(case: Case) -> Verdict:
    """Fires where unequal stages cost `MIN_FRAC` of it, in all replicas of the slow one, and it is not their
    hosts that hold them up; as information where no split of whole layers is more even, or the most even one
    is predicted to gain nothing. Layers are spread anew where the settings say how they are spread now and it
    is the first or the last stage that is slow."""
    found = case.job.pipeline
    share = given(found.imbalance_ns) / given(found.window_ns)
    evidence = [Evidence(label="waiting for slower stages, of the step", value=per_cent(share))]
    if found.slowest_over_mean is not None and found.slowest_stage is not None:
        evidence.append(
            Evidence(
                label=f"stage {found.slowest_stage}, over the mean", value=f"{found.slowest_over_mean:.3g}"
            )
        )
    if (apart := layers_apart(case)) is not None:
        evidence.append(Evidence(label="above the fastest, in layers' time", value=f"about {apart:.2g}"))
    if share < MIN_FRAC or found.slowest_stage is None:
        return Verdict(state="passes", evidence=evidence)
    if _some_replicas_only(case, found.slowest_stage):
        reason = f"other replicas of stage {found.slowest_stage} are as fast as other stages: see PD303"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    if (host := _held_up(case, found.slowest_stage)) is not None:
        reason = (
            f"stage {found.slowest_stage} takes longer since {host}: more or fewer layers do not change that"
        )
        return Verdict(state="passes", reason=reason, evidence=evidence)
    at_end = found.slowest_stage in (0, (found.pp or 0) - 1)
    where = "first" if found.slowest_stage == 0 else "last" if at_end else "a middle"
    advice = _split(case) if at_end else []
    whole = at_end and not advice and apart is not None and apart < A_LAYER
    vain = at_end and not advice and not whole and _moves_in_vain(case)
    why = "; no split of whole layers is more even" if whole else _VAIN if vain else ""
    reason = f"{'the ' if at_end else ''}{where} stage{_HOLDS.get(where, '')} takes longer than the others"
    return Verdict(
        state="fires",
        worst=bubble(case),
        level="information" if whole or vain else "problem",
        reason=f"{reason}{why}",
        evidence=evidence,
        advice=advice,
        remedy=_WHOLE if whole else _STAY if vain else _WORDS if at_end else _MIDDLE,
        otherwise="" if at_end else _MIDDLE,
        gain=late_peer_ceiling(case) if advice or whole else _moved(case),
        verify="Run again: own time of the stages in the pipeline section comes closer, and late_peer falls.",
        false_alarm="One slow GPU looks like a slow stage: with several replicas, compare the same stage of "
        "each (PD303).",
    )


def _moves_in_vain(case: Case) -> bool:
    """Whether the replay of the most even split of whole layers gains nothing."""
    whole = predicted(case, "balanced_layers")
    return whole is not None and whole.method == "replay" and (whole.mid_ms or 0.0) <= 0


def _moved(case: Case) -> Gain | None:
    """What whole layers that are spread by hand gain; else no more than even stages would."""
    whole, even = predicted(case, "balanced_layers"), predicted(case, "even_stages")
    if whole is not None and whole.method == "replay":
        return whole
    ceilings = [late_peer_ceiling(case), at_most(even, "predicted for even stages, and layers are whole")]
    return min((g for g in ceilings if g is not None), key=lambda g: g.high_ms or 0.0, default=None)


def _held_up(case: Case, stage: int) -> str | None:
    """What holds up the hosts of a stage, where that is most of what it takes beyond the mean stage."""
    own = own_ns_by_stage(case.job.pipeline)
    of_rank = {row.rank: row.stage for row in case.job.pipeline.stages}
    if own is None:
        return None
    beyond = own[stage] - sum(own) / len(own)
    lost = {}
    for cause, words in _HOSTS.items():
        idle: dict[int, list[float]] = {}
        for rank, device in zip(case.ranks, case.job.devices, strict=False):
            where = None if device.rank is None else of_rank.get(device.rank)
            if rank.window.steps and where is not None:
                idle.setdefault(where, []).append(rank.ledger.idle_ns[cause] / len(rank.window.steps))
        if sorted(idle) == list(range(len(own))):
            means = [sum(idle[s]) / len(idle[s]) for s in range(len(own))]
            lost[words] = means[stage] - sum(means) / len(means)
    if beyond <= 0 or not lost or sum(lost.values()) < MOSTLY_FRAC * beyond:
        return None
    return max(lost, key=lambda words: lost[words])


_HOLDS = {
    "first": ", which holds the embedding,",
    "last": ", which holds the output layer and the loss,",
}
_HOSTS = {
    "host": "its host launches late (PD201)",
    "gc": "its host collects garbage (PD202)",
    "data": "its host loads data (PD203)",
}


def _some_replicas_only(case: Case, stage: int) -> bool:
    """Whether one of several ranks that hold the stage is as fast as the fastest of the other stages, about:
    then it is not its layers."""
    best: dict[int | None, float] = {}
    for row in case.job.pipeline.stages:
        if row.steps:
            best[row.stage] = min(best.get(row.stage, math.inf), row.own_ns / row.steps)
    several = sum(row.stage == stage and row.steps > 0 for row in case.job.pipeline.stages) > 1
    return several and stage in best and best[stage] <= EVEN_ENOUGH * sum(best.values()) / len(best)


_WORDS = (
    "Give this stage a layer or two less (num_layers_in_first/last_pipeline_stage); where layers plus one or "
    "two divide over the stages, account_for_embedding/loss_in_pipeline_split does it. Layers of different "
    "kinds (dense and experts, multi-token prediction) need pipeline_model_parallel_layout."
)
_WHOLE = (
    "There is nothing to move: with a layer more, even the fastest stage would be slower than this one is. "
    "Another number of stages or a smaller vocabulary changes it."
)
_VAIN = "; spreading whole layers otherwise is predicted to gain nothing"
_STAY = (
    "Leave the layers where they are, and look at what else the ranks of this stage do: late ranks (PD303), "
    "exposed communication."
)
_MIDDLE = (
    "A middle stage holds neither embedding nor loss: look for layers that do more (experts beside dense "
    "ones), which pipeline_model_parallel_layout spreads by hand, or for a slow GPU (PD303)."
)


def _split(case: Case) -> list[Advice]:
    found = case.job.pipeline
    own, layers = own_ns_by_stage(found), layers_by_stage(case, found.pp or 0)
    known, mtp = case.setting("mtp_num_layers")
    mtp = mtp if known and isinstance(mtp, int) else 0
    if own is None or layers is None or min(layers) < 1 or not 0 <= mtp <= _MTP_MAX:
        return []
    counts, uneven = balanced(own, layers)
    if counts == layers:
        return []
    gain = predicted(case, "even_stages")
    if uneven > EVEN_ENOUGH:
        # The replay moves whole layers too, though it may count them otherwise.
        whole = predicted(case, "balanced_layers")
        gain = at_most(
            gain if whole is None or whole.method != "replay" else whole,
            f"predicted for even stages; whole layers leave the longest {uneven:.3g} of the mean",
        )
    shown = [f"{a} to {b}" for a, b in zip(layers, counts, strict=True)]
    why = f"layers by stage: {', '.join(shown) if len(shown) <= 8 else f'{shown[0]} … {shown[-1]}'}"
    costs = "the middle stages hold more weights and activations"
    knobs = as_settings(case, counts, mtp)
    pieces = [
        advise(knob=knob, to=to, why=why, costs=costs, gain=gain, together=[k for k in knobs if k != knob])
        for knob, to in knobs.items()
    ]
    return all_or_none(case, pieces)
