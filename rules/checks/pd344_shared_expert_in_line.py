"""The shared expert sees every token where it is: it can compute while the others' tokens travel."""

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.needs import GPUS, Missing, Need, given, not_applicable, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.engine.worst import worst_exposed
from perfdoc.rules.facts.degrees import EXPERTS_SPREAD
from perfdoc.rules.facts.exposed import ceiling_of_transfer, exposed_ns, seen
from perfdoc.rules.facts.overlaps import EP_OVERLAP, ep_overlap_allowed

_SHARED, _KNOB = "moe_shared_expert_intermediate_size", "moe_shared_expert_overlap"
_DISPATCHER = "moe_token_dispatcher_type"


def _is_overlapped(case: Case) -> bool:
    """Whether something is known to compute while tokens travel."""
    return case.is_set_to(_KNOB, True) or case.is_set_to(EP_OVERLAP, True)


def _nothing_shared(case: Case) -> Missing | None:
    known, shared = case.setting(_SHARED)
    if not known and case.job.facts.model is not None:
        known, shared = True, case.job.facts.model.shared_expert_ffn_hidden_size
    if known and not shared:
        return not_applicable("there is no shared expert")
    if not known or not case.setting(_DISPATCHER)[0] or not case.setting(_KNOB)[0]:
        return skipped("the shared expert, the dispatcher or the overlap is not known")
    return None


def _no_all_to_all(case: Case) -> Missing | None:
    """Where it is overlapped already, there is nothing to see."""
    if _is_overlapped(case):
        return None
    dispatcher = case.setting(_DISPATCHER)[1]
    if dispatcher != "alltoall":
        return not_applicable(f"the overlap needs the alltoall dispatcher, and it is {dispatcher}")
    if case.share(exposed_ns("ep")) is None or not seen(case, "ep"):
        return skipped("no EP communication is known in the capture")
    return None


META = Meta(
    title="Shared expert not overlapped with token dispatch",
    action="Overlap the shared expert with token dispatch",
    sources=("megatron-core notes",),
    topic="moe",
    needs=(
        GPUS,
        EXPERTS_SPREAD,
        Need(words="a shared expert, and how its tokens are sent", missing=_nothing_shared),
        Need(words="tokens that go by all-to-all, and are seen", missing=_no_all_to_all),
    ),
    advice=("moe_shared_expert_overlap",),
)

MIN_FRAC = 0.01
"""Of the window, mean over ranks: with less exposed there is nothing to hide."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where there is a shared expert, tokens go by all-to-all, `MIN_FRAC` of the time
    is exposed, and the overlap is known to be off; it excludes the flex dispatcher (a guide lists them
    together) and the 1F1B overlap, which PD342 advises first where it can be."""
    if _is_overlapped(case):
        return passes()
    share = given(case.share(exposed_ns("ep")))
    evidence = [("exposed EP communication, mean over ranks", per_cent(share))]
    if share < MIN_FRAC:
        return passes(evidence)
    if ep_overlap_allowed(case):
        return passes(evidence, "the 1F1B overlap is advised instead, which excludes this one: see PD342")
    why = "computes the shared expert during dispatch and combine"
    gain = ceiling_of_transfer(case, "ep")
    return informs(
        worst=worst_exposed(case, "ep"),
        reason="the shared expert is not overlapped with token dispatch",
        evidence=evidence,
        advice=[advise(knob=_KNOB, to=True, why=why, gain=gain)],
        otherwise="Take the 1F1B overlap (PD342) instead, which excludes this one.",
        verify="Run again: exposed EP communication falls by about the shared expert's time.",
        false_alarm="A shared expert too small to hide much.",
    )
