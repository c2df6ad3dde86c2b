"""Dispatch and combine stand between the router, the experts and the next layer. Only another micro-batch's
compute, or a shared expert's, can hide them."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires
from perfdoc.rules.facts.exposed import WITH_WAITS, ceiling_of_transfer, judged, time_ns
from perfdoc.rules.facts.overlaps import EP_NEEDS, ep_overlap, exchange

META = Meta(
    title="Exposed expert-parallel communication",
    action="Overlap expert-parallel communication",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide", "megatron-core notes"),
    topic="moe",
    time=("exposed_comm.ep",),
    with_it=WITH_WAITS,
    needs=EP_NEEDS,
    advice=(
        "moe_ep_overlap_future",
        "moe_ep_overlap_verl",
        "moe_ep_comm_opt",
        "moe_batch_overlap",
        "moe_tldr",
    ),
)


def evaluate(case: Case) -> Verdict:
    """Fires at `exposed.MIN_FRAC` of the window, mean over ranks."""
    nothing, evidence = judged(case, "ep")
    if nothing is not None:
        return nothing
    advice = [*exchange(case), *ep_overlap(case)]
    evidence += _over_compute(case)
    return fires(
        reason="exposed: no compute overlaps with it",
        evidence=evidence,
        advice=advice,
        remedy="" if advice else _OTHERWISE if case.configuration.values else f"{_OTHERWISE} {_GIVE}",
        otherwise=_OTHERWISE,
        gain=ceiling_of_transfer(case, "ep"),
        verify="Run again: exposed EP communication in the ledger falls, and step time by the same.",
        false_alarm="Unevenly loaded experts: ranks then wait for the one with most tokens, which overlap "
        "does not change.",
    )


def _over_compute(case: Case) -> list[Evidence]:
    """Above 100 % the layer's own compute could not hide it."""
    parts = [rank.kernel_parts for rank in case.ranks]
    attention, experts = sum(p.attention_ns or 0 for p in parts), sum(p.grouped_linear_ns or 0 for p in parts)
    if not experts or any(p.attention_ns is None or p.grouped_linear_ns is None for p in parts):
        return []
    ratio = time_ns(case, "ep") / (attention + experts)
    return [("EP communication over attention and experts' GEMMs", per_cent(ratio, 0))]


_GIVE = "Give the job's configuration (--config FILE): it tells which overlap is not on yet."
_OTHERWISE = (
    "Let the exchange run beside another micro-batch "
    "(with a pipeline that needs virtual stages; full recomputation forbids it), keep expert ranks inside "
    "the NVLink domain (PD343), or use fewer of them."
)
