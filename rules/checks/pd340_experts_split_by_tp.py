"""An expert sees a fraction of the tokens, so its GEMMs are small already. Splitting them makes them smaller
and adds communication to each."""

from perfdoc.rules.engine.advise import advise, all_or_none
from perfdoc.rules.engine.needs import given, known
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.degrees import (
    EP,
    ETP,
    EXPERTS,
    NOT_DENSE,
    TP,
    degrees_of,
    expert_tp,
    experts_of,
    nvlink_domain,
)

META = Meta(
    title="Experts split by tensor parallelism",
    action="Split experts by expert parallelism, not tensor parallelism",
    sources=("Megatron-Bridge guide", "NeMo guide", "megatron-core notes"),
    topic="moe",
    needs=(
        NOT_DENSE,
        EXPERTS,
        known(
            "the tensor-parallel degree of experts",
            expert_tp,
            reason=f"{ETP} is not known; unset it follows {TP}",
        ),
    ),
    advice=("moe_etp_one", "moe_ep_independent_tp", "moe_tldr"),
)


_OTHERWISE = "Use expert parallelism only for experts (expert TP 1)."


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where the tensor-parallel degree of experts is above 1, also where it is known
    to be unset and so follows that of the other layers. More expert ranks in place of tensor ranks are
    advised where they stay in an NVLink domain."""
    etp = given(expert_tp(case))
    evidence = [("tensor ranks of an expert", str(etp))]
    if etp == 1:
        return passes(evidence)
    unset = case.number(ETP) is None
    now, experts = degrees_of(case), experts_of(case)
    why = "whole experts on each rank: larger GEMMs, no tensor-parallel communication inside"
    advice = [advise(knob=ETP, to=1, why=why, costs=f"{etp} times the expert weights on a GPU")]
    domain = nvlink_domain(case)
    inside = now is not None and domain is not None and now.ep * etp <= domain
    if inside and now and experts and experts % (now.ep * etp) == 0 and now.expert_dp is not None:
        why = "as many expert weights on a GPU as before: expert ranks do not depend on tensor ranks"
        costs = "tokens travel among more ranks"
        advice = [
            advise(knob=ETP, to=1, why=advice[0].why),
            advise(knob=EP, to=now.ep * etp, why=why, costs=costs),
        ]
    advice = all_or_none(case, advice)
    return informs(
        reason=f"{ETP} is unset and follows TP {etp}" if unset else f"experts are split over {etp} ranks",
        evidence=evidence,
        advice=advice,
        otherwise=_OTHERWISE,
        verify="Run again: the GEMMs of experts take longer each and less in sum.",
        false_alarm="Experts as wide as a dense layer, where no other split fits.",
    )
