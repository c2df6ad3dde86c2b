"""PD110: norm kernels that spin for SMs which communication holds."""

from __future__ import annotations

from perfdoc.results.figures import brief, per_cent
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import predicted
from perfdoc.rules.engine.needs import WINDOW, Missing, Need, given, not_applicable, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_instance


def _no_cost(case: Case) -> Missing | None:
    found = case.job.contention
    if found.state != "measured":
        return not_applicable(found.reason)
    if found.norm_cost is None:
        return skipped(found.reason or "too few norms ran beside communication to tell")
    return None


META = Meta(
    code="PD110",
    title="Norm kernels fighting communication for SMs",
    why="Norm kernels that launch one block for every SM cannot finish before communication gives its SMs "
    "back: "
    "short kernels become as long as a collective.",
    sources=("seed 000", "seed 001"),
    topic="comm_overlap",
    needs=(
        Need(words="norms with and without communication beside them", missing=_no_cost),
        WINDOW,
    ),
    advice=("dp_ln_sm_margin",),
)

MIN_FRAC = 0.005
"""Of the windows of all ranks: what the slower norms cost by the lower end of the estimate."""


def evaluate(case: Case) -> Verdict:
    """Fires where norms are provably slower beside communication, and it costs `MIN_FRAC` of the windows."""
    found = case.job.contention
    share = given(found.norm_cost).low_ns / sum(r.ledger.window_ns for r in case.ranks)
    worst = next((k for k in found.signatures if k.slower_devices), None)
    evidence = [
        Evidence(label="time that norms lose beside communication", value=f"{per_cent(share, 2)} or more")
    ]
    if worst is not None and worst.alone_ns is not None and worst.contended_ns is not None:
        evidence.append(
            Evidence(
                label=f"{worst.family or worst.kernel_class}, {worst.samples_alone} runs alone, "
                f"{worst.samples_contended} beside",
                value=f"{brief(worst.alone_ns)}, {brief(worst.contended_ns)}",
            )
        )
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    margin = found.suggested_sm_margin
    advice: list[Advice] = []
    remedy = "" if margin is not None else f"No margin is suggested: {found.margin_reason}."
    if margin is not None:
        evidence.append(Evidence(label="thread blocks that communication occupies", value=str(margin)))
        for way in ("fwd", "bwd"):
            known, now = case.setting(f"nvte_{way}_layernorm_sm_margin")
            if known and isinstance(now, int) and now >= margin:
                continue  # never a smaller one
            why = f"norms leave {margin} SMs to communication instead of waiting for them"
            costs = "norms that run alone have fewer SMs"
            knob = f"nvte_{way}_layernorm_sm_margin"
            gain = predicted(case, "norms_alone")
            advice.append(advise(knob=knob, to=margin, why=why, costs=costs, gain=gain))
        if not advice:
            remedy = "The margins that are set do not help: check that these norms read them (Transformer "
            remedy += "Engine's do)."
    return Verdict(
        state="fires",
        worst=worst_instance(case, "contention.norm"),
        reason="the same norms take longer while communication runs",
        evidence=evidence,
        remedy=remedy,
        advice=advice,
        verify="Run again: the contention table shows the same norms with and without communication alike.",
        false_alarm="Norms whose rows differ in length have one name and one grid; compare like with like.",
    )
