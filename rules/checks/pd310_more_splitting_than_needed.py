"""Tensor parallelism communicates in every layer and a pipeline has a bubble; data parallelism communicates
once per step. The least model parallelism that fits is the fastest start."""

from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.results.figures import gib, per_cent
from perfdoc.rules.engine.advise import Advice, advise, all_or_none, needing
from perfdoc.rules.engine.gain import ceiling
from perfdoc.rules.engine.needs import given
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.bubble import without_chunks
from perfdoc.rules.facts.degrees import PP, TP, degrees_of, without_tensor_ranks
from perfdoc.rules.facts.memory_need import FIT_FRAC, device_bytes
from perfdoc.rules.facts.smaller_mapping import MIN_FRAC, NEEDS, smallest_that_fits, splitting_ns

META = Meta(
    title="More model parallelism than memory requires",
    action="Use less model parallelism",
    sources=(
        "Megatron-Bridge guide",
        "NeMo guide",
        "LLM training guide",
        "Megatron-LM guide",
        "megatron-core notes",
    ),
    topic="parallel_mapping",
    time=("exposed_comm.tp", "pipeline.bubble", "pipeline.transfer"),
    needs=NEEDS,
    advice=(
        "pm_start_dp",
        "pm_table_fits",
        "pm_tp_reduces_weights_compute",
        "pm_verl_order",
        "pm_cp_shards_optimizer",
        "moe_ep_purpose",
        "moe_dp_replaces_cp",
        "mlm_13",
    ),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if model parallelism costs `smaller_mapping.MIN_FRAC` of the time and fewer
    tensor ranks or stages are estimated to fit in `memory_need.FIT_FRAC` of the device. Not if exposed DP
    communication would grow by as much: its messages grow as model parallelism falls."""
    now, memory, cost_ns = given(degrees_of(case)), given(device_bytes(case)), splitting_ns(case)
    share = given(case.share(cost_ns))
    label = "exposed TP and PP communication without waiting for late peers, mean over ranks"
    evidence = [(label, per_cent(share))]
    if share < MIN_FRAC:
        return passes(evidence, "model parallelism costs little here")
    found = smallest_that_fits(case, now, share)
    if found is None:
        return passes(evidence, "no smaller mapping is certain to fit and to gain")
    then, before, after = found
    advice = all_or_none(case, _advice(case, now, then))
    evidence += [
        ("estimated memory of the fullest GPU, now", gib(before, 3)),
        (f"with TP {then.tp}, PP {then.pp}, DP {then.dp}", gib(after, 3)),
        ("memory of a GPU", gib(memory, 3)),
    ]
    return informs(
        reason=f"TP {now.tp} x PP {now.pp}; TP {then.tp} x PP {then.pp} is estimated to fit in "
        f"{per_cent(FIT_FRAC, 0)} of the memory",
        evidence=evidence,
        advice=advice,
        otherwise=_OTHERWISE,
        gain=ceiling(case, cost_ns, "all exposed TP and PP communication; DP communication grows"),
        verify="Run again with a memory snapshot: it fits, and tokens per second rise.",
        false_alarm="The estimate assumes fused attention and evenly loaded experts; long sequences, other "
        "buffers or a larger batch may need the headroom. Guides that decide TP first reach the same "
        "mapping.",
    )


_OTHERWISE = "Use the smallest tensor- and pipeline-parallel degrees at which the model fits."


def _advice(case: Case, now: Degrees, then: Degrees) -> list[Advice]:
    found = []
    if then.pp < now.pp:
        first = without_chunks(case) if then.vpp < now.vpp else []
        why = f"fewer stages, a smaller bubble; data parallelism becomes {then.dp}"
        stages = advise(knob=PP, to=then.pp, why=why, costs="more layers and weights per GPU")
        found += needing(stages, first)
    if then.tp < now.tp:
        first = without_tensor_ranks(case) if then.tp == 1 else []
        why = f"larger GEMMs, less communication in every layer; data parallelism becomes {then.dp}"
        ranks = advise(knob=TP, to=then.tp, why=why, costs="more weights and activations per GPU")
        found += needing(ranks, first)
    return found
