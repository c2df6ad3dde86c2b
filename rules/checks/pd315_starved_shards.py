"""PD315: shards of tensors so small that the host cannot keep the GPU busy."""

from __future__ import annotations

import statistics

from perfdoc.results.figures import brief, gib
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise, all_or_none
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.evidence import time_evidence
from perfdoc.rules.engine.gain import ceiling
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, given, not_applicable
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_instance
from perfdoc.rules.facts.bubble import bubble_grows
from perfdoc.rules.facts.capture import LAUNCHES
from perfdoc.rules.facts.degrees import CP, DEGREES, TP, degrees_of, without_tensor_ranks
from perfdoc.rules.facts.idle import MIN_HOST_FRAC
from perfdoc.rules.facts.memory_need import fits
from perfdoc.rules.facts.smaller_mapping import splits_too_far


def _few_ranks(case: Case) -> Missing | None:
    now = degrees_of(case)
    count = 1 if now is None else now.tp * now.cp
    return not_applicable(f"{count} ranks share a layer's tensors") if count < LARGE else None


META = Meta(
    code="PD315",
    title="Tensors split so far that the GPU runs dry",
    why="Tensor and context parallelism split each kernel's work and leave the number of launches: past a "
    "point the host cannot launch as fast as the GPU finishes.",
    sources=("seed 000", "seed 001", "seed 002"),
    topic="parallel_mapping",
    time=("idle.host",),
    needs=(
        GPUS,
        DEGREES,
        Need(words="a layer's tensors shared by many ranks", missing=_few_ranks),
        LAUNCHES,
        WINDOW,
    ),
    advice=("pm_large_tp_cp_starves",),
)

LARGE = 8
"""Ranks that share a layer's tensors, tp x cp, from which they are the suspect."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where `LARGE` ranks or more share each layer's tensors and the host holds the
    device up for `idle.MIN_HOST_FRAC` of the window, with kernels shorter than what lies between
    launches, where that is known."""
    now, share = given(degrees_of(case)), given(case.share(lambda r: r.ledger.idle_ns["host"]))
    evidence = time_evidence(case, "idle behind the host", share, lambda r: r.ledger.idle_ns["host"])
    evidence.append(
        Evidence(label="ranks that share a layer's tensors, TP x CP", value=f"{now.tp} x {now.cp}")
    )
    medians = [r.host.small_kernels.median_kernel_ns for r in case.ranks]
    if known := [m for m in medians if m is not None]:
        evidence.append(Evidence(label="median kernel", value=brief(statistics.median(known))))
    if share < MIN_HOST_FRAC:
        return Verdict(state="passes", evidence=evidence)
    between = [r.host.small_kernels.median_launch_interval_ns for r in case.ranks]
    apart = [ns for ns in between if ns is not None]
    if known and apart and statistics.median(known) >= statistics.median(apart):
        reason = "most kernels take longer than the host takes to launch the next: it is not their size"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    if splits_too_far(case):
        reason = "the model fits on fewer ranks: see PD310"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    knob, other = (TP, now.tp) if now.tp >= now.cp else (CP, now.cp)
    return Verdict(
        state="fires",
        worst=worst_instance(case, "idle.host"),
        level="information",
        reason="the host is late with launches of kernels that many ranks share",
        evidence=evidence,
        advice=all_or_none(case, _halved(case, knob, other)),
        remedy="Split the tensors less, by more stages or more replicas instead; a larger micro-batch does "
        "the same for each kernel, and CUDA graphs take the launches off the host (PD201).",
        gain=ceiling(case, lambda r: r.ledger.idle_ns["host"], "the idle time behind the host"),
        verify="Run again: idle.host falls and the median kernel grows.",
        false_alarm="A host that is slow for its own reasons: profiler, collections, synchronising calls. "
        "Templates with TP 8 exist for models much wider than this may be.",
    )


def _halved(case: Case, knob: str, degree: int) -> list[Advice]:
    """Half the larger degree, where the model is estimated to fit so and no bubble grows."""
    now = degrees_of(case)
    if now is None or degree % 2:
        return []
    tp, cp = (now.tp // 2, now.cp) if knob == TP else (now.tp, now.cp // 2)
    then = now.with_model_parallel(tp=tp, pp=now.pp, cp=cp)
    if then is None or then.expert_dp is None or (estimates := fits(case, now, then)) is None:
        return []
    if bubble_grows(case, now, then) > 0:
        return []
    why = f"twice the work in each kernel; estimated {gib(estimates[1], '.3g')} on the fullest GPU"
    found = [advise(knob=knob, to=degree // 2, why=why, costs="twice the weights or activations on a GPU")]
    return [*(without_tensor_ranks(case) if then.tp == 1 else []), *found]
