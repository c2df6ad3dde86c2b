"""A stage idles while it waits for an activation in transfer. Only with virtual stages can send/recv overlap
with the passes of other micro-batches."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.needs import Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.bubble import PIPELINE, costs_more_than_it_saves, transfer_ceiling
from perfdoc.rules.facts.degrees import VPP


def _no_messages(case: Case) -> Missing | None:
    found = case.job.pipeline
    if found.state == "measured" and None not in (found.transfer_frac, found.handover_frac):
        return None
    return skipped(found.reason or "send/recv was not measured")


META = Meta(
    title="Exposed send/recv between pipeline stages",
    action="Overlap send/recv between pipeline stages",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="pipeline",
    time=("pipeline.transfer",),
    needs=(PIPELINE, Need(words="measured send/recv between stages", missing=_no_messages)),
    advice=("pp_p2p_overlap_steady", "pp_p2p_exposed_warmup", "pp_p2p_modes"),
)

MIN_FRAC = 0.03
"""Of the step: transfer and handover of send/recv, without waiting for late peers."""
_OVERLAP, _BATCH = "overlap_p2p_comm", "batch_p2p_comm"
_ENDS = "overlap_p2p_comm_warmup_flush"


def evaluate(case: Case) -> Verdict:
    """Fires if stages wait for send/recv for `MIN_FRAC` of the step; not if the only remedy is fewer
    messages, which PD304 covers."""
    found = case.job.pipeline
    transfer, handover = given(found.transfer_frac), given(found.handover_frac)
    share = transfer + handover
    evidence = [
        ("send/recv transfer, of the step", per_cent(transfer)),
        ("handover to and from compute, of the step", per_cent(handover)),
    ]
    if share < MIN_FRAC:
        return passes(evidence)
    vpp = case.degree(VPP) or found.vpp or 1
    advice = _modes(case) if vpp > 1 else []
    if not advice and costs_more_than_it_saves(case):
        return passes(evidence, "interleaving costs more send/recv than it saves in bubble: see PD304")
    return fires(
        reason="stages wait for send/recv",
        evidence=evidence,
        advice=advice,
        remedy=_WITHOUT_CHUNKS if vpp == 1 else "" if advice else _OVERLAPPED,
        otherwise=_OVERLAPPED,
        gain=transfer_ceiling(case),
        verify="Run again: transfer and handover in the pipeline section fall.",
        false_alarm="Clock error between captures: see the uncertainty in the pipeline section.",
    )


_OVERLAPPED = (
    "No known setting would overlap more. Keep neighbouring stages on one node or rail, or use fewer chunks "
    "per stage."
)
_WITHOUT_CHUNKS = (
    "Without virtual stages megatron-core sends and receives between passes, with any overlap_p2p_comm (the "
    "guides' default overlap needs them). Use virtual stages if the smaller bubble pays for them (PD301), a "
    "larger micro-batch, or fewer stages."
)


def _modes(case: Case) -> list[Advice]:
    """Only settings known to be off; batching excludes overlap, warm-up and flush need it."""
    found = []
    if case.is_set_to(_OVERLAP, False):
        if case.is_set_to(_BATCH, True):
            found.append(advise(knob=_BATCH, to=False, why="batched send/recv cannot overlap"))
        why = "overlaps send/recv with the passes of other micro-batches; guides claim 5-15 %"
        found = needing(advise(knob=_OVERLAP, to=True, why=why), found)
    if case.is_set_to(_ENDS, False) and (found or case.is_set_to(_OVERLAP, True)):
        why = "overlaps send/recv in warm-up and flush too, where it is exposed by default"
        found.append(advise(knob=_ENDS, to=True, why=why))
    return found
