"""Context parallelism splits the rows of every GEMM. A sequence shorter than the hidden size leaves thin
GEMMs: weights are read for less work, and keys and values still have to be communicated."""

from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import GPUS, WINDOW, given, known, several
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.bubble import bubble_grows
from perfdoc.rules.facts.degrees import CP, degrees_of, hidden_size_of, sequence_of
from perfdoc.rules.facts.exposed import MIN_FRAC, ceiling_of_transfer, exposed_evidence, exposed_ns
from perfdoc.rules.facts.memory_need import too_large

META = Meta(
    title="Context parallelism on short sequences",
    action="Drop context parallelism for short sequences",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide"),
    topic="parallel_mapping",
    time=("exposed_comm.cp",),
    needs=(
        GPUS,
        several(
            "context parallelism",
            lambda case: case.degree(CP),
            one="there is no context parallelism",
            unknown="the context-parallel degree is not known",
        ),
        known(
            "the sequence length and the hidden size",
            sequence_of,
            hidden_size_of,
            reason="the sequence length or the hidden size is not known",
        ),
        WINDOW,
    ),
    advice=("pm_cp_not_when_short", "pm_cp_shards_optimizer"),
)


_OTHERWISE = (
    "Use the ranks for data parallelism, or, if activations do not fit, for tensor parallelism with "
    "sequence parallelism."
)


def evaluate(case: Case) -> Verdict:
    """Fires if a sequence is split that has fewer tokens than the hidden size; a problem if exposed CP
    communication takes `exposed.MIN_FRAC` of the time, else information."""
    cp, share = given(case.degree(CP)), given(case.share(exposed_ns("cp")))
    sequence, hidden = given(sequence_of(case)), given(hidden_size_of(case))
    evidence = [
        ("tokens per sequence", f"{sequence:,}"),
        ("tokens per rank", f"{sequence // cp:,}"),
        ("hidden size", f"{hidden:,}"),
        exposed_evidence(case, "cp", share),
    ]
    if sequence >= hidden:
        return passes(evidence)
    advice = []
    now = degrees_of(case)
    then = None if now is None else now.with_model_parallel(tp=now.tp, pp=now.pp, cp=1)
    if (
        now is not None
        and then is not None
        and case.micro_batches_over(then.dp) is not None
        and not too_large(case, now, then)
        and bubble_grows(case, now, then) <= share
    ):
        why = f"whole sequences on each rank; data parallelism becomes {then.dp}, with the same sharding of "
        why += "optimizer states"
        costs = f"{cp} times the activations of a micro-batch per GPU"
        advice.append(advise(knob=CP, to=1, why=why, costs=costs))
    return fires(
        level="problem" if share >= MIN_FRAC else "information",
        reason=f"sequences of {sequence:,} tokens split over {cp} ranks, hidden size {hidden:,}",
        evidence=evidence,
        advice=advice,
        otherwise=_OTHERWISE,
        gain=ceiling_of_transfer(case, "cp"),
        verify="Run again: tokens per second rise; each GEMM takes longer, all GEMMs together less.",
        false_alarm="Packed batches with sequences longer than the setting.",
    )
