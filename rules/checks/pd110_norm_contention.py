"""Norm kernels that launch one block per SM cannot finish before communication frees its SMs: short kernels
take as long as a collective."""

from perfdoc.results.figures import brief, per_cent
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.gain import predicted
from perfdoc.rules.engine.needs import WINDOW, Missing, Need, given, not_applicable, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.engine.worst import worst_instance


def _no_cost(case: Case) -> Missing | None:
    found = case.job.contention
    if found.state != "measured":
        return not_applicable(found.reason)
    if found.norm_cost is None:
        return skipped(found.reason or "too few norm kernels overlapped with communication")
    return None


META = Meta(
    title="SM contention between norm kernels and communication",
    action="Keep communication off the SMs of norm kernels",
    sources=("Megatron-Bridge guide", "NeMo guide"),
    topic="comm_overlap",
    needs=(Need(words="norm kernels with and without concurrent communication", missing=_no_cost), WINDOW),
    advice=("dp_ln_sm_margin",),
)

MIN_FRAC = 0.005
"""Of the windows of all ranks: lower end of the estimated cost of slower norms."""


def evaluate(case: Case) -> Verdict:
    """Fires if norm kernels are provably slower during communication, at a cost of `MIN_FRAC` of the
    windows."""
    found = case.job.contention
    share = given(found.norm_cost).low_ns / sum(r.ledger.total for r in case.ranks)
    worst = next((k for k in found.signatures if k.slower_devices), None)
    evidence = [("norm time lost to concurrent communication", f"{per_cent(share, 2)} or more")]
    if worst is not None and worst.alone_ns is not None and worst.contended_ns is not None:
        evidence.append(
            (
                f"{worst.family or worst.kernel_class}, {worst.samples_alone} runs alone, "
                f"{worst.samples_contended} overlapping",
                f"{brief(worst.alone_ns)}, {brief(worst.contended_ns)}",
            )
        )
    if share < MIN_FRAC:
        return passes(evidence)
    margin = found.suggested_sm_margin
    advice: list[Advice] = []
    remedy = "" if margin is not None else f"No margin is suggested: {found.margin_reason}."
    if margin is not None:
        evidence.append(("thread blocks of communication", str(margin)))
        for way in ("fwd", "bwd"):
            known, now = case.setting(f"nvte_{way}_layernorm_sm_margin")
            if known and isinstance(now, int) and now >= margin:
                continue  # never a smaller one
            why = f"norms leave {margin} SMs to communication instead of waiting for them"
            costs = "norms without communication get fewer SMs"
            knob = f"nvte_{way}_layernorm_sm_margin"
            gain = predicted(case, "norms_alone")
            advice.append(advise(knob=knob, to=margin, why=why, costs=costs, gain=gain))
        if not advice:
            remedy = "The margins are already set: check that these norms use them (Transformer Engine's do)."
    return fires(
        worst=worst_instance(case, "contention.norm"),
        reason="the same norms take longer during communication",
        evidence=evidence,
        remedy=remedy,
        advice=advice,
        verify="Run again: in the contention table these norms take as long with communication as without.",
        false_alarm="Norms of different row lengths share one name and one grid; compare equal sizes.",
    )
