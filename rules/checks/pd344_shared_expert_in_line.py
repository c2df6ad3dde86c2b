"""PD344: a shared expert that waits for the exchange of tokens, though it needs none of it."""

from __future__ import annotations

from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.checks.pd342_exposed_ep import overlap_allowed
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.degrees import EP, has_experts
from perfdoc.rules.facts.exposed import ceiling_of_transfer, exposed_ns, seen
from perfdoc.rules.facts.hidden import only_for_gpus

META = Meta(
    code="PD344",
    title="Shared expert in line with the exchange of tokens",
    why="The shared expert sees every token where it is: it can compute while the others' tokens travel.",
    sources=("seed 004",),
    topic="moe",
    needs=("trace", "settings"),
    advice=("moe_shared_expert_overlap",),
)

_SHARED, _KNOB = "moe_shared_expert_intermediate_size", "moe_shared_expert_overlap"
_DISPATCHER, _EP_OVERLAP = "moe_token_dispatcher_type", "overlap_moe_expert_parallel_comm"
MIN_FRAC = 0.01
"""Of the window, mean over ranks: with less exposed there is nothing to hide."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where there is a shared expert, tokens go by all-to-all, `MIN_FRAC` of the time
    is exposed, and the overlap is known to be off; it excludes the flex dispatcher (a guide lists them
    together) and the 1F1B overlap, which PD342 advises first where it can be."""
    if on_cpu := only_for_gpus(case):
        return on_cpu
    if has_experts(case) is False or case.degree(EP) == 1:
        return Verdict(state="not_applicable", reason="no tokens are exchanged")
    known, shared = case.setting(_SHARED)
    if not known and case.job.facts.model is not None:
        known, shared = True, case.job.facts.model.shared_expert_ffn_hidden_size
    if known and not shared:
        return Verdict(state="not_applicable", reason="there is no shared expert")
    dispatcher, overlap = case.setting(_DISPATCHER), case.setting(_KNOB)
    if not known or not dispatcher[0] or not overlap[0]:
        return Verdict(
            state="skipped", reason="the shared expert, the dispatcher or the overlap is not known"
        )
    if overlap[1] is True or case.is_set_to(_EP_OVERLAP, True):
        return Verdict(state="passes")
    if dispatcher[1] != "alltoall":
        reason = f"the overlap needs the alltoall dispatcher, and it is {dispatcher[1]}"
        return Verdict(state="not_applicable", reason=reason)
    share = case.share(exposed_ns("ep"))
    if share is None or not seen(case, "ep"):
        return Verdict(state="skipped", reason="no EP communication is known in the capture")
    evidence = [Evidence(label="exposed EP communication, mean over ranks", value=per_cent(share))]
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    if overlap_allowed(case):
        reason = "the 1F1B overlap is advised instead, which excludes this one: see PD342"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    why = "computes the shared expert while tokens travel"
    gain = ceiling_of_transfer(case, "ep")
    return Verdict(
        state="fires",
        worst=worst_exposed(case, "ep"),
        level="information",
        reason="the shared expert is not overlapped with the exchange",
        evidence=evidence,
        advice=[advise(knob=_KNOB, to=True, why=why, gain=gain)],
        otherwise="Take the 1F1B overlap (PD342) instead, which excludes this one.",
        verify="Run again: exposed EP communication falls by about the shared expert's time.",
        false_alarm="A shared expert so small that it hides next to nothing.",
    )
