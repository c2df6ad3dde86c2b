"""Every chunk of a stage sends and receives: interleaving divides the bubble and multiplies send/recv."""

from perfdoc.results.figures import per_cent, significant
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.bubble import INTERLEAVED, interleaving, transfer_ceiling
from perfdoc.rules.facts.degrees import VPP

META = Meta(
    title="Interleaving costs more than it saves",
    action="Use fewer virtual stages",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "megatron-core notes"),
    topic="pipeline",
    time=("pipeline.transfer",),
    needs=INTERLEAVED,
    advice=("pp_vpp_smaller_when_many_mb", "pp_vpp_adds_comm"),
)


def evaluate(case: Case) -> Verdict:
    """Fires if exposed send/recv takes more than the bubble, and fewer chunks would save
    `bubble.MIN_SAVED_FRAC`: send/recv is proportional to the chunks, the bubble inversely. Not if
    send/recv is not overlapped (PD307), nor if the replay of exactly this change gains nothing."""
    found = interleaving(case)
    now, best = found.now, found.to
    evidence = [
        ("exposed send/recv between stages", per_cent(found.transfer_frac)),
        ("bubble between first and last pass, waits in collectives included", per_cent(found.bubble_frac)),
        ("chunks per stage", str(now)),
    ]
    if best is None or found.why_not:
        return passes(evidence, found.why_not)
    fewer = per_cent(1 - best / now, 0)
    why = f"{best} chunks, not {now}: {fewer} less send/recv, {significant(now / best)} times the bubble"
    return fires(
        reason="send/recv between stages costs more than the bubble that interleaving saves",
        evidence=evidence,
        advice=[advise(knob=VPP, to=best, why=why, gain=found.replayed)],
        gain=transfer_ceiling(case),
        verify="Run again: transfer in the pipeline section falls by more than the bubble grows.",
        false_alarm="Send/recv that is slow for another reason, such as stages on distant nodes.",
    )
