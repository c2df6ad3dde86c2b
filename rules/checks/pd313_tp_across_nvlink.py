"""Tensor parallelism communicates several times in every layer. Over the network each collective takes ten
times as long as over NVLink, mostly exposed."""

from perfdoc.analyzers.pipeline.layout import ideal_bubble_frac
from perfdoc.results.figures import per_cent, significant
from perfdoc.rules.engine.advise import Advice, advise, all_or_none, needing
from perfdoc.rules.engine.needs import WINDOW, given, several
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.degrees import (
    NVLINK,
    PP,
    TP,
    heads_of,
    layers_of,
    leaves_nvlink,
    nvlink_domain,
    without_tensor_ranks,
)
from perfdoc.rules.facts.exposed import MIN_FRAC, ceiling_of_transfer, exposed_evidence, exposed_ns, rows_of

META = Meta(
    title="Tensor parallelism across NVLink domains",
    action="Keep tensor parallelism within an NVLink domain",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "megatron-core notes"),
    topic="parallel_mapping",
    time=("exposed_comm.tp",),
    needs=(
        several(
            "tensor parallelism",
            lambda case: case.degree(TP),
            one="there is no tensor parallelism",
            unknown="the tensor-parallel degree is not known",
        ),
        NVLINK,
        WINDOW,
    ),
    advice=("pm_tp_in_nvlink", "pm_table_too_big"),
)


def evaluate(case: Case) -> Verdict:
    """Fires if a tensor-parallel group has more ranks than the NVLink domain, or does not divide it; a
    problem if exposed TP communication takes `exposed.MIN_FRAC` of the time, else information."""
    tp, domain = given(case.degree(TP)), given(nvlink_domain(case))
    share = given(case.share(exposed_ns("tp")))
    evidence = [
        ("ranks of a tensor-parallel group", str(tp)),
        ("GPUs of an NVLink domain", str(domain)),
        exposed_evidence(case, "tp", share),
    ]
    rates = [row.bus_bandwidth_gbps for row in rows_of(case, "tp")]
    if known := [rate for rate in rates if rate is not None]:
        evidence.append(("lowest bus bandwidth of its collectives", f"{significant(min(known))} GB/s"))
    if not leaves_nvlink(case):
        return passes(evidence)
    advice, words = all_or_none(case, _advice(case, tp, domain, share)), _words(domain)
    return fires(
        level="problem" if share >= MIN_FRAC else "information",
        reason="the GPUs have no NVLink"
        if domain == 1
        else f"groups of {tp} cross NVLink domains of {domain}",
        evidence=evidence,
        advice=advice,
        otherwise=words,
        gain=ceiling_of_transfer(case, "tp"),
        verify="Run again: the bus bandwidth of TP collectives rises to that of NVLink.",
        false_alarm="Servers with an unusual NVLink domain, such as bridges, racks of 36 or 72, or partly "
        "filled racks; or another rank placement.",
    )


def _words(domain: int) -> str:
    if domain == 1:
        return "Use pipeline parallelism, or shard over data-parallel ranks (FSDP), instead."
    return (
        f"Use a tensor-parallel degree that divides {domain}, and instead more stages, or context "
        "parallelism for long sequences."
    )


def _advice(case: Case, tp: int, domain: int, share: float) -> list[Advice]:
    """The largest degree that divides domain, heads and the current one, with more stages instead, if layers,
    ranks and batch allow and the bubble grows by less than the exposed share of the time."""
    heads, layers, pp = heads_of(case), layers_of(case), case.degree(PP)
    if heads is None or layers is None or pp is None or tp > 4096:
        return []
    to = max(d for d in range(1, min(tp, domain) + 1) if tp % d == 0 and domain % d == 0 and heads % d == 0)
    stages = pp * (tp // to)
    vpp = case.degree("virtual_pipeline_model_parallel_size") or case.job.facts.vpp or 1
    if layers % (stages * vpp) or case.dp is None or case.micro_batches_over(case.dp) is None:
        return []
    bubbles = [
        ideal_bubble_frac(pp=p, vpp=vpp if p > 1 else 1, micro_batches=case.micro_batches or 1)
        for p in (pp, stages)
    ]
    if bubbles[1] - bubbles[0] >= share:
        return []
    why = f"keeps each group inside an NVLink domain of {domain}"
    narrow = advise(knob=TP, to=to, why=why)
    found = needing(narrow, then=without_tensor_ranks(case) if to == 1 else [])
    why = "splits the weights as far as before, by layers"
    costs = f"a bubble of {per_cent(bubbles[1])} of the step instead of {per_cent(bubbles[0])}"
    found.append(advise(knob=PP, to=stages, why=why, costs=costs))
    return found
