"""PD307: messages between pipeline stages that nothing hides."""

from __future__ import annotations

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.bubble import PIPELINE, transfer_ceiling
from perfdoc.rules.facts.degrees import VPP
from perfdoc.rules.facts.interleaving import costs_more_than_it_saves


def _no_messages(case: Case) -> Missing | None:
    found = case.job.pipeline
    if found.state == "measured" and None not in (found.transfer_frac, found.handover_frac):
        return None
    return skipped(found.reason or "messages were not measured")


META = Meta(
    code="PD307",
    title="Exposed messages between pipeline stages",
    why="A stage that waits for an activation on its way computes nothing. Only with virtual stages can "
    "messages run beside the passes of other micro-batches.",
    sources=("seed 000", "seed 001", "seed 003"),
    topic="pipeline",
    time=("pipeline.transfer",),
    needs=(PIPELINE, Need(words="messages between stages", missing=_no_messages)),
    advice=("pp_p2p_overlap_steady", "pp_p2p_exposed_warmup", "pp_p2p_modes"),
)

MIN_FRAC = 0.03
"""Of the step: messages on their way and handing them over, waiting for a late stage not counted."""
_OVERLAP, _BATCH = "overlap_p2p_comm", "batch_p2p_comm"
_ENDS = "overlap_p2p_comm_warmup_flush"


def evaluate(case: Case) -> Verdict:
    """Fires where stages wait for messages for `MIN_FRAC` of the step; not where all that is left is to have
    fewer of them, which PD304 says."""
    found = case.job.pipeline
    transfer, handover = given(found.transfer_frac), given(found.handover_frac)
    share = transfer + handover
    evidence = [
        Evidence(label="messages on their way, of the step", value=per_cent(transfer)),
        Evidence(label="handing them to and from compute", value=per_cent(handover)),
    ]
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    vpp = case.degree(VPP) or found.vpp or 1
    advice = _modes(case) if vpp > 1 else []
    if not advice and costs_more_than_it_saves(case):
        reason = "there are more messages than the smaller bubble is worth: see PD304"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    return Verdict(
        state="fires",
        worst=worst_exposed(case, "pp"),
        reason="stages wait for messages on their way",
        evidence=evidence,
        advice=advice,
        remedy=_WITHOUT_CHUNKS if vpp == 1 else "" if advice else _OVERLAPPED,
        otherwise=_OVERLAPPED,
        gain=transfer_ceiling(case),
        verify="Run again: transfer and handover in the pipeline section fall.",
        false_alarm="Captures whose clocks differ: see the uncertainty in the pipeline section.",
    )


_OVERLAPPED = (
    "No setting that is known would overlap more. Keep neighbouring stages on one node or rail, or hold "
    "fewer chunks on each stage."
)
_WITHOUT_CHUNKS = (
    "Without virtual stages megatron-core sends and receives between passes, whatever overlap_p2p_comm says "
    "(the guides' overlap by default holds with them only). Take virtual stages where the bubble pays for "
    "them (PD301), a larger micro-batch, or fewer stages."
)


def _modes(case: Case) -> list[Advice]:
    """Only what is known to be off; batching excludes overlap, the ends need it."""
    found = []
    if case.is_set_to(_OVERLAP, False):
        if case.is_set_to(_BATCH, True):
            why = "batched messages cannot run beside compute"
            found.append(advise(knob=_BATCH, to=False, why=why))
        why = "sends and receives beside the passes of other micro-batches; the guides' 5-15 % is their claim"
        found.append(advise(knob=_OVERLAP, to=True, why=why))
    if case.is_set_to(_ENDS, False) and (found or case.is_set_to(_OVERLAP, True)):
        why = "hides messages also while the pipeline fills and drains, where they are exposed by default"
        found.append(advise(knob=_ENDS, to=True, why=why))
    return found
