"""PD113: matrix products that share SMs with communication."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.results.figures import brief, per_cent
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling
from perfdoc.rules.engine.needs import GPUS, Missing, Need, not_applicable, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_instance


def _lost_frac(case: Case) -> float | None:
    """What products lose, of the windows of all ranks; None where that was not measured."""
    cost, windows = case.job.contention.other_cost, sum(r.ledger.window_ns for r in case.ranks)
    measured = case.job.contention.state == "measured" and cost is not None and windows
    return cost.low_ns / windows if measured and cost is not None else None


def _not_compared(case: Case) -> Missing | None:
    """Without the measurement a cluster above `MAX_CGA` is judged all the same."""
    if _lost_frac(case) is not None or any(a.knob == _CGA for a in _usual(case)):
        return None
    if not any(r.communication for r in case.ranks):
        return not_applicable("no communication was seen")
    found = case.job.contention
    few = "too few products ran with and without communication beside them to tell"
    return skipped(found.reason if found.state != "measured" and found.reason else few)


META = Meta(
    code="PD113",
    title="Matrix products slowed by communication beside them",
    why="Kernels of communication take SMs from the product that hides them: past some number the product "
    "loses more than the transfer gains.",
    sources=("seed 000", "seed 001"),
    topic="comm_overlap",
    needs=(
        GPUS,
        Need(words="products with and without communication beside them", missing=_not_compared),
    ),
    advice=("tp_overlap_sms", "tp_overlap_cga"),
)

MIN_FRAC = 0.01
"""Of the windows of all ranks: what products lose by the lower end of the estimate."""
USUAL_SM = 16
"""SMs that guides give to a bulk or pipelined overlap, to be tuned from there."""
MAX_CGA = 2
"""Larger clusters of thread blocks leave gaps between the SMs that products get."""
_SM, _CGA = "tp_overlap_num_sm", "tp_overlap_cga_size"
_REMEDY = (
    "Fewer channels leave products more SMs: max_ctas of the group in NCCL's communicator configuration "
    "(nccl_communicator_config_path), or registered buffers (nccl_ub). Lower it step by step while the "
    "communication stays hidden."
)


def evaluate(case: Case) -> Verdict:
    """Fires where products are provably slower beside communication and it costs `MIN_FRAC` of the windows;
    as a problem where the settings of TP overlap go beyond what is usual, else as information, since every
    overlap has a price. Without that measurement a cluster above `MAX_CGA` is worth a note."""
    odd = list(_usual(case))
    found, share = case.job.contention, _lost_frac(case)
    if share is None:
        return _fires(case, [], [a for a in odd if a.knob == _CGA], measured=False)
    evidence = [
        Evidence(label="time that products lose beside communication", value=f"{per_cent(share, 2)} or more")
    ]
    worst = next((k for k in found.other_signatures if k.slower_devices), None)
    if worst is not None and worst.alone_ns and worst.contended_ns:
        label = f"{worst.kernel_class}, {worst.samples_alone} runs alone, {worst.samples_contended} beside"
        value = f"{brief(worst.alone_ns)}, {brief(worst.contended_ns)}"
        evidence.append(Evidence(label=label, value=value))
    if found.occupied_blocks is not None:
        label = "thread blocks that communication occupies at most"
        evidence.append(Evidence(label=label, value=str(found.occupied_blocks)))
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    return _fires(case, evidence, odd, measured=True)


def _fires(case: Case, evidence: list[Evidence], advice: list[Advice], *, measured: bool) -> Verdict:
    cost = case.job.contention.other_cost
    ranks = max(len(case.ranks), 1)
    return Verdict(
        state="fires",
        worst=worst_instance(case, "contention.other"),
        level="problem" if measured and advice else "information",
        reason="the same products take longer while communication runs"
        if measured
        else "TP overlap runs in clusters larger than products stand well",
        evidence=evidence,
        advice=advice,
        remedy="" if advice else _REMEDY,
        otherwise=_REMEDY,
        gain=ceiling(case, lambda _: cost.low_ns // ranks, "what products lose beside communication")
        if measured and cost is not None
        else None,
        verify="Run again: products with and without communication come closer in the contention table, and "
        "exposed communication does not grow by as much.",
        false_alarm="Products of several sizes in one kernel and grid; or a transfer that would be exposed "
        "if it had fewer SMs.",
    )


def _usual(case: Case) -> Iterator[Advice]:
    if not case.is_set_to("tp_comm_overlap", True):
        return
    sms, cga = case.number(_SM), case.number(_CGA)
    if sms is not None and sms > USUAL_SM:
        why = f"gives products {sms - USUAL_SM} SMs back; tune from there by the profile"
        yield advise(knob=_SM, to=USUAL_SM, why=why, costs="the transfer takes longer, and its end may show")
    if cga is not None and cga > MAX_CGA:
        to = MAX_CGA if sms is None else max(1, min(MAX_CGA, sms))
        yield advise(knob=_CGA, to=to, why="leaves products SMs side by side")
