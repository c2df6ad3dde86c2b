"""The fewer micro-batches per stage, the larger the share of the step in which the pipeline fills and
drains."""

from perfdoc.analyzers.pipeline.layout import ideal_bubble_frac
from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.needs import Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.engine.worst import bubble
from perfdoc.rules.facts.bubble import OTHERWISE, PER_STAGE, PIPELINE, few, more, wanted
from perfdoc.rules.facts.degrees import PP, VPP


def _chunks(case: Case) -> int | None:
    return case.degree(VPP) or case.job.facts.vpp


def _unknown(case: Case) -> Missing | None:
    count, vpp = case.micro_batches, _chunks(case)
    if case.degree(PP) is None or count is None or vpp is None or min(count, vpp) < 1:
        return skipped("the stages, their chunks or the micro-batches are not known")
    return None


META = Meta(
    title="Too few micro-batches for the pipeline depth",
    action="Use more micro-batches",
    sources=("Megatron-LM guide", "megatron-core notes"),
    topic="pipeline",
    needs=(PIPELINE, Need(words="stages, their chunks and the micro-batches of a step", missing=_unknown)),
    advice=("pp_m_rule", "pp_bubble_formula", "mlm_quick_scale"),
)

MAX_PER_STAGE = 8
"""Micro-batches per stage beyond which the guides see no benefit."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, below `bubble.PER_STAGE` micro-batches per stage, each counted per chunk. If the
    bubble was measured, PD301 covers it."""
    pp, micro_batches, vpp = given(case.degree(PP)), given(case.micro_batches), given(_chunks(case))
    ideal = ideal_bubble_frac(pp=pp, vpp=vpp, micro_batches=micro_batches)
    evidence = [
        ("micro-batches of a step", str(micro_batches)),
        ("stages x chunks", f"{pp} x {vpp}"),
        ("expected pipeline bubble, of the step, at least", per_cent(ideal)),
    ]
    if not few(pp=pp, vpp=vpp, micro_batches=micro_batches):
        return passes(evidence)
    if case.job.pipeline.state == "measured" and case.job.pipeline.bubble_frac is not None:
        return passes(evidence, "the bubble was measured, see PD301")
    chunks = f" of {vpp} chunks" if vpp > 1 else ""
    least = wanted(pp=pp, vpp=vpp)
    advice = more(case, pp=pp, vpp=vpp, micro_batches=micro_batches)
    return informs(
        worst=bubble(case),
        reason=f"{micro_batches} micro-batches for {pp} stages{chunks}: the guides advise {least} to "
        f"{least * MAX_PER_STAGE // PER_STAGE}",
        evidence=evidence,
        advice=advice,
        otherwise=OTHERWISE,
        verify="Run again: the bubble in the pipeline section falls, and tokens per second rise.",
        false_alarm="A global batch fixed by the recipe, or a smaller micro-batch whose slower kernels cost "
        "more than the bubble.",
    )
