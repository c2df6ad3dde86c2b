"""Most weights of a mixture of experts are the experts'. Expert parallelism splits those without a bubble; a
pipeline pays with one."""

from dataclasses import replace

from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import advise, all_or_none, needing
from perfdoc.rules.engine.needs import given, several
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes, skips
from perfdoc.rules.facts.bubble import BUBBLE, MIN_FRAC, bubble_at, bubble_ceiling, without_chunks
from perfdoc.rules.facts.degrees import (
    EP,
    EXPERTS,
    NOT_DENSE,
    PP,
    degrees_of,
    experts_of,
    nvlink_domain,
    why_unknown,
)
from perfdoc.rules.facts.memory_need import too_large
from perfdoc.rules.facts.smaller_mapping import splits_too_far

META = Meta(
    title="Pipeline parallelism where expert parallelism would do",
    action="Use expert parallelism instead of pipeline stages",
    sources=("megatron-core notes",),
    topic="moe",
    time=("pipeline.bubble",),
    needs=(
        several(
            "a pipeline degree above 1, or unknown", lambda case: case.degree(PP), one="there is no pipeline"
        ),
        NOT_DENSE,
        EXPERTS,
        BUBBLE,
    ),
    advice=("moe_ep_over_pp", "moe_ep_independent_tp", "pm_table_moe"),
)

MIN_SAVED_FRAC = 0.02
"""Of the step: by how much the ideal bubble must fall. Fewer stages make more replicas, each with fewer
micro-batches of the same global batch, so that it falls by less than one might think."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where the bubble takes `bubble.MIN_FRAC` of the step, experts can
    be spread over more ranks inside the NVLink domain, and fewer stages save `MIN_SAVED_FRAC`."""
    now, share = degrees_of(case), given(case.job.pipeline.bubble_frac)
    evidence = [("bubble, of the step", per_cent(share))]
    if share < MIN_FRAC:
        return passes(evidence)
    domain = nvlink_domain(case)
    if now is None or domain is None:
        unreached = "it is not known how many GPUs reach one another over NVLink here"
        return skips(why_unknown(case) if now is None else unreached)
    then = _best(case, now, domain)
    if splits_too_far(case):
        return passes(evidence, "the model fits on fewer stages as it is: see PD310")
    if then is None:
        return passes(evidence, "no such mapping has a smaller bubble")
    after = bubble_at(case, then)
    evidence += [
        ("expert ranks and stages", f"{now.ep} and {now.pp}"),
        (f"bubble of equal stages with EP {then.ep}, PP {then.pp}", per_cent(after)),
    ]
    first = without_chunks(case) if then.vpp < now.vpp else []
    why = f"a bubble of {per_cent(after)} instead of {per_cent(bubble_at(case, now))} with equal stages"
    stages = advise(knob=PP, to=then.pp, why=why, costs="a GPU holds more of the attention's weights")
    advice = needing(stages, first)
    why = "as many expert weights on a GPU as before, inside the NVLink domain"
    advice.append(advise(knob=EP, to=then.ep, why=why, costs="tokens travel among more ranks"))
    return informs(
        reason=f"{now.pp} stages idle for the bubble, where experts could be spread over {then.ep} ranks",
        evidence=evidence,
        advice=all_or_none(case, advice),
        remedy="Raise expert parallelism before pipeline parallelism where the degrees allow it.",
        gain=bubble_ceiling(case),
        verify="Run both for some twenty steps and compare tokens per second; take a memory snapshot.",
        false_alarm="A dense part that fills the GPU: without the model's shape nothing was estimated.",
    )


def _best(case: Case, now: Degrees, domain: int) -> Degrees | None:
    """Fewest stages for which expert ranks make up, if that saves enough."""
    experts = experts_of(case)
    if not experts or now.expert_dp is None or now.pp > 4096:
        return None
    for pp in (d for d in range(1, now.pp) if now.pp % d == 0):
        factor = now.pp // pp
        wider = now.with_model_parallel(tp=now.tp, pp=pp)
        if wider is None or experts % (now.ep * factor) or now.ep * factor * now.etp > domain:
            continue
        then = replace(wider, ep=now.ep * factor)
        if too_large(case, now, then) or case.micro_batches_over(then.dp) is None:
            continue
        if bubble_at(case, then) <= bubble_at(case, now) - MIN_SAVED_FRAC:
            return then
    return None
