"""PD304: interleaving whose send/recv costs more than its smaller bubble saves."""

from __future__ import annotations

from perfdoc.results.figures import per_cent, significant
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.bubble import transfer_ceiling
from perfdoc.rules.facts.degrees import VPP
from perfdoc.rules.facts.interleaving import NEEDS, interleaving

META = Meta(
    code="PD304",
    title="Interleaving costs more than it saves",
    action="Use fewer virtual stages",
    why="Every chunk of a stage sends and receives: interleaving divides the bubble and multiplies "
    "send/recv.",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide", "megatron-core notes"),
    topic="pipeline",
    time=("pipeline.transfer",),
    needs=NEEDS,
    advice=("pp_vpp_smaller_when_many_mb", "pp_vpp_adds_comm"),
)


def evaluate(case: Case) -> Verdict:
    """Fires if exposed send/recv takes more than the bubble, and fewer chunks would save
    `interleaving.MIN_SAVED_FRAC`: send/recv is proportional to the chunks, the bubble inversely. Not if
    send/recv is not overlapped (PD307), nor if the replay of exactly this change gains nothing."""
    found = interleaving(case)
    now, best = found.now, found.to
    evidence = [
        Evidence(label="exposed send/recv between stages", value=per_cent(found.transfer_frac)),
        Evidence(label="pipeline bubble, of the step", value=per_cent(found.bubble_frac)),
        Evidence(label="chunks per stage", value=str(now)),
    ]
    if best is None or found.why_not:
        return Verdict(state="passes", reason=found.why_not, evidence=evidence)
    fewer = per_cent(1 - best / now, 0)
    why = f"{best} chunks, not {now}: {fewer} less send/recv, {significant(now / best)} times the bubble"
    return Verdict(
        state="fires",
        worst=worst_exposed(case, "pp"),
        reason="send/recv between stages costs more than the bubble that interleaving saves",
        evidence=evidence,
        advice=[advise(knob=VPP, to=best, why=why, gain=found.replayed)],
        gain=transfer_ceiling(case),
        verify="Run again: transfer in the pipeline section falls by more than the bubble grows.",
        false_alarm="Send/recv that is slow for another reason, such as stages on distant nodes.",
    )
