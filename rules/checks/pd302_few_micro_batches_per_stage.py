"""PD302: too few micro-batches per pipeline stage."""

from __future__ import annotations

from perfdoc.analyzers.pipeline.layout import ideal_bubble_frac
from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import bubble
from perfdoc.rules.facts.bubble import PER_STAGE, PIPELINE
from perfdoc.rules.facts.degrees import PP, VPP
from perfdoc.rules.facts.micro_batches import OTHERWISE, few, more, wanted


def _chunks(case: Case) -> int | None:
    return case.degree(VPP) or case.job.facts.vpp


def _unknown(case: Case) -> Missing | None:
    count, vpp = case.micro_batches, _chunks(case)
    if case.degree(PP) is None or count is None or vpp is None or min(count, vpp) < 1:
        return skipped("the stages, their chunks or the micro-batches are not known")
    return None


META = Meta(
    code="PD302",
    title="Too few micro-batches for the pipeline depth",
    action="Use more micro-batches",
    why="The fewer micro-batches per stage, the larger the share of the step in which the pipeline fills and "
    "drains.",
    sources=("Megatron-LM guide", "megatron-core notes"),
    topic="pipeline",
    needs=(
        PIPELINE,
        Need(words="stages, their chunks and the micro-batches of a step", missing=_unknown),
    ),
    advice=(
        "pp_m_rule",
        "pp_bubble_formula",
        "mlm_quick_scale",
    ),
)

MAX_PER_STAGE = 8
"""Micro-batches per stage beyond which the guides see no benefit."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, below `bubble.PER_STAGE` micro-batches per stage, each counted per chunk. If the
    bubble was measured, PD301 covers it."""
    pp, micro_batches, vpp = given(case.degree(PP)), given(case.micro_batches), given(_chunks(case))
    ideal = ideal_bubble_frac(pp=pp, vpp=vpp, micro_batches=micro_batches)
    evidence = [
        Evidence(label="micro-batches of a step", value=str(micro_batches)),
        Evidence(label="stages x chunks", value=f"{pp} x {vpp}"),
        Evidence(label="expected pipeline bubble, of the step, at least", value=per_cent(ideal)),
    ]
    if not few(pp=pp, vpp=vpp, micro_batches=micro_batches):
        return Verdict(state="passes", evidence=evidence)
    if case.job.pipeline.state == "measured" and case.job.pipeline.bubble_frac is not None:
        return Verdict(state="passes", reason="the bubble was measured, see PD301", evidence=evidence)
    chunks = f" of {vpp} chunks" if vpp > 1 else ""
    least = wanted(pp=pp, vpp=vpp)
    advice = more(case, pp=pp, vpp=vpp, micro_batches=micro_batches)
    return Verdict(
        state="fires",
        worst=bubble(case),
        level="information",
        reason=f"{micro_batches} micro-batches for {pp} stages{chunks}: the guides advise {least} to "
        f"{least * MAX_PER_STAGE // PER_STAGE}",
        evidence=evidence,
        advice=advice,
        remedy="" if advice else OTHERWISE,
        otherwise=OTHERWISE,
        verify="Run again: the bubble in the pipeline section falls, and tokens per second rise.",
        false_alarm="A global batch fixed by the recipe, or a smaller micro-batch whose slower kernels cost "
        "more than the bubble.",
    )
