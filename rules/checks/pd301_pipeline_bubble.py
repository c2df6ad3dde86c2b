"""Stages idle while the pipeline fills and drains: (pp - 1) / (vpp x micro-batches) of the compute, at any
kernel speed."""

from dataclasses import replace

from perfdoc.results.figures import per_cent, significant
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.gain import at_most, predicted, worth_frac
from perfdoc.rules.engine.needs import Missing, Need, given
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.bubble import (
    BUBBLE,
    MIN_FRAC,
    PIPELINE,
    bubble_ceiling,
    few,
    more,
    overlapped_messages,
)
from perfdoc.rules.facts.degrees import PP, VPP, layers_of
from perfdoc.rules.facts.exposed import MIN_FRAC as EXPOSED_MIN_FRAC
from perfdoc.rules.facts.exposed import exposed_ns


def _no_bubble(case: Case) -> Missing | None:
    """A measured bubble implies a pipeline, whatever the settings say."""
    without = BUBBLE.missing(case)
    return None if without is None else PIPELINE.missing(case) or without


META = Meta(
    title="Pipeline bubble",
    action="Shrink the pipeline bubble",
    sources=(
        "Megatron-Bridge guide",
        "NeMo guide",
        "LLM training guide",
        "Megatron-LM guide",
        "megatron-core notes",
    ),
    topic="pipeline",
    time=("pipeline.bubble",),
    with_it=("waits for late stages", "waits for late stages"),
    needs=(Need(words="a measured bubble", missing=_no_bubble),),
    advice=(
        "pp_raise_m_vpp",
        "pp_bubble_formula",
        "pp_m_rule",
        "pp_interleave_half",
        "pp_scatter_layers",
        "pp_grad_sync_bubble",
    ),
)

EXPECTED_WITHIN_FRAC = 0.01
"""Of the step: a bubble above the schedule's own by no more than this is as expected."""


def evaluate(case: Case) -> Verdict:
    """Fires if the bubble takes `bubble.MIN_FRAC` of the step; as information if there are `bubble.PER_STAGE`
    micro-batches per stage, the bubble is as expected, and the predicted gain of more chunks is below
    `bubble.MIN_FRAC`. More chunks are advised only if layers divide over pp x vpp."""
    found = case.job.pipeline
    share = given(found.bubble_frac)
    evidence = [("bubble between first and last pass, waits in collectives included", per_cent(share))]
    if found.ideal_bubble_frac is not None:
        evidence.append(("expected with equal stages", per_cent(found.ideal_bubble_frac)))
    if share < MIN_FRAC:
        return passes(evidence)
    return fires(
        level="problem" if _too_large(case) else "information",
        reason=_reason(case),
        evidence=evidence,
        action="Shrink the pipeline bubble and waits for late stages",  # of both is the bound
        remedy=f"{_not_more_chunks(case)}More micro-batches per step shrink the bubble; "
        "so does a smaller micro-batch at the same global batch, if its kernels stay efficient.",
        advice=[*_chunks(case, found.vpp), *_more(case), *_reduce_meanwhile(case)],
        gain=bubble_ceiling(case),
        verify="Run again: the bubble in the pipeline section falls by more than send/recv grows.",
        false_alarm="Uneven stages cause idle time that more virtual stages do not remove.",
    )


def _reason(case: Case) -> str:
    """The cause: expected for the layout and the batch, if no more was measured."""
    found = case.job.pipeline
    reason = "stages wait for the pipeline to fill and drain"
    if (
        found.pp is None
        or found.vpp is None
        or found.micro_batches is None
        or found.ideal_bubble_frac is None
    ):
        return reason
    if (found.bubble_frac or 0.0) > found.ideal_bubble_frac + EXPECTED_WITHIN_FRAC:
        return reason
    chunks = f"VPP={found.vpp}" if found.vpp > 1 else "no interleaving"
    count = f"{found.micro_batches} micro-batch{'es' if found.micro_batches != 1 else ''}"
    return f"{reason}, expected for PP={found.pp}, {count}, {chunks}; faster kernels do not change its share"


def _too_large(case: Case) -> bool:
    """Whether it is above the expected bubble, or the guides' number of micro-batches or more chunks would
    shrink it."""
    found = case.job.pipeline
    if found.pp is None or found.vpp is None or found.micro_batches is None:
        return True
    ideal, measured = found.ideal_bubble_frac or 0.0, found.bubble_frac or 0.0
    chunks = worth_frac(case, "more_virtual_stages") >= MIN_FRAC
    scarce = few(pp=found.pp, vpp=found.vpp, micro_batches=found.micro_batches)
    return scarce or chunks or measured >= ideal + MIN_FRAC


def _more(case: Case) -> list[Advice]:
    """More micro-batches, if there are few."""
    pp, vpp, count = case.degree(PP), case.degree(VPP) or case.job.pipeline.vpp, case.micro_batches
    if not pp or not vpp or not count or not few(pp=pp, vpp=vpp, micro_batches=count):
        return []
    return more(case, pp=pp, vpp=vpp, micro_batches=count)


def _not_more_chunks(case: Case) -> str:
    """Why the job cannot have the chunks that would shrink it."""
    prediction = case.prediction("more_virtual_stages")
    if prediction is None or not prediction.left_out or (prediction.gain.mid_ms or 0.0) <= 0:
        return ""
    return f"More virtual stages would, but: {prediction.left_out}. "


def _chunks(case: Case, vpp: int | None) -> list[Advice]:
    """As many chunks as the prediction is of, if layers divide and its gain is positive."""
    prediction = case.prediction("more_virtual_stages")
    if prediction is None:
        return _first_chunks(case, vpp)
    if prediction.left_out or not (prediction.gain.low_ms or 0.0) > 0:
        return []
    known, setting = case.setting(VPP)
    now = setting if known and isinstance(setting, int) else 1 if known else vpp or 1
    if now != (case.job.facts.vpp or 1):
        return []  # a different change than the replayed one
    to = prediction.settings.get(VPP, 2 * now)
    layers, pp = layers_of(case), case.degree(PP)
    if layers is None or pp is None or not isinstance(to, int) or layers % (pp * to):
        return []
    why = f"{to} chunks per stage instead of {now}: the pipeline fills {significant(to / now)} times as fast"
    costs = f"{significant(to / now)} times the send/recv between stages, and some memory"
    first = overlapped_messages(case) if pp == 2 else []
    return needing(advise(knob=VPP, to=to, why=why, costs=costs, gain=prediction.gain), first)


def _first_chunks(case: Case, vpp: int | None) -> list[Advice]:
    """Two chunks where there are none and nothing was replayed: by the formula they halve the bubble."""
    layers, pp, count = layers_of(case), case.degree(PP), case.micro_batches
    if vpp != 1 or case.degree(VPP) != 1 or not layers or not pp or not count:
        return []
    if layers % (2 * pp) or count % pp:
        return []
    half = at_most(bubble_ceiling(case), "by the formula two chunks halve the bubble; their messages cost")
    gain = None if half is None or half.high_ms is None else replace(half, high_ms=half.high_ms / 2)
    why = "2 chunks per stage instead of 1: the pipeline fills 2 times as fast"
    costs = "twice the send/recv between stages, and some memory"
    first = overlapped_messages(case) if pp == 2 else []
    return needing(advise(knob=VPP, to=2, why=why, costs=costs, gain=gain), first)


def _reduce_meanwhile(case: Case) -> list[Advice]:
    """Gradient reduction on drained stages while others still compute; without a prediction of its own it is
    PD101's to advise, for the rule's bound is the bubble's."""
    exposed, gain = case.share(exposed_ns("dp")) or 0.0, predicted(case, "overlapped_dp")
    if exposed < EXPOSED_MIN_FRAC or gain is None or not case.is_set_to("overlap_grad_reduce", False):
        return []
    share = per_cent(exposed)
    why = f"reduces gradients while the pipeline drains; {share} of the time is exposed DP communication"
    return [advise(knob="overlap_grad_reduce", to=True, why=why, gain=gain)]
