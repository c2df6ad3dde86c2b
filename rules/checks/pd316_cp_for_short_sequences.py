"""PD316: context parallelism of sequences shorter than the model is wide."""

from __future__ import annotations

from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import GPUS, WINDOW, given, known, several
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.bubble import bubble_grows
from perfdoc.rules.facts.degrees import CP, batch_divides, degrees_of, hidden_size_of, sequence_of
from perfdoc.rules.facts.exposed import MIN_FRAC, ceiling_of_transfer, exposed_evidence, exposed_ns
from perfdoc.rules.facts.memory_need import too_large

META = Meta(
    code="PD316",
    title="Context parallelism of short sequences",
    why="Context parallelism cuts the rows of every product. Of a sequence shorter than the model is wide, "
    "thin slices are left: weights are read for less work, and keys and values still travel.",
    sources=("seed 000", "seed 001", "seed 002"),
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
    "Use the ranks for data parallelism, or, where activations do not fit, for tensor parallelism with "
    "sequence parallelism."
)


def evaluate(case: Case) -> Verdict:
    """Fires where a sequence is divided that has fewer tokens than the model is wide; a problem where exposed
    CP communication takes `exposed.MIN_FRAC` of the time, else information."""
    cp, share = given(case.degree(CP)), given(case.share(exposed_ns("cp")))
    sequence, hidden = given(sequence_of(case)), given(hidden_size_of(case))
    evidence = [
        Evidence(label="tokens of a sequence", value=f"{sequence:,}"),
        Evidence(label="tokens on each rank", value=f"{sequence // cp:,}"),
        Evidence(label="hidden size", value=f"{hidden:,}"),
        exposed_evidence(case, "cp", share),
    ]
    if sequence >= hidden:
        return Verdict(state="passes", evidence=evidence)
    advice = []
    now = degrees_of(case)
    then = None if now is None else now.with_model_parallel(tp=now.tp, pp=now.pp, cp=1)
    if (
        now is not None
        and then is not None
        and batch_divides(case, then.dp)
        and not too_large(case, now, then)
        and bubble_grows(case, now, then) <= share
    ):
        why = f"whole sequences on each rank; data parallelism becomes {then.dp}, over which the "
        why += "optimizer states stay sharded as they are"
        costs = f"{cp} times the activations of a micro-batch on each GPU"
        advice.append(advise(knob=CP, to=1, why=why, costs=costs))
    return Verdict(
        state="fires",
        worst=worst_exposed(case, "cp"),
        level="problem" if share >= MIN_FRAC else "information",
        reason=f"sequences of {sequence:,} tokens are divided over {cp} ranks of a model {hidden:,} wide",
        evidence=evidence,
        advice=advice,
        remedy="" if advice else _OTHERWISE,
        otherwise=_OTHERWISE,
        gain=ceiling_of_transfer(case, "cp"),
        verify="Run again: tokens per second rise; matrix products take longer each and less in sum.",
        false_alarm="Packed batches whose real sequences are longer than the setting says.",
    )
