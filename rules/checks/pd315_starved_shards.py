"""Tensor and context parallelism split each kernel's work but not the number of launches: beyond some degree
the GPU finishes kernels faster than the host launches them."""

import statistics

from perfdoc.results.figures import brief
from perfdoc.rules.engine.gain import ceiling, time_evidence
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, given, not_applicable
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes
from perfdoc.rules.facts.capture import LAUNCHES
from perfdoc.rules.facts.degrees import DEGREES, degrees_of
from perfdoc.rules.facts.graphs import MIN_HOST_FRAC, launched_late_ns, launching_ns
from perfdoc.rules.facts.smaller_mapping import halved, splits_too_far


def _few_ranks(case: Case) -> Missing | None:
    now = degrees_of(case)
    count = 1 if now is None else now.tp * now.cp
    return not_applicable(f"a layer's tensors are split over {count} ranks") if count < MIN_RANKS else None


META = Meta(
    title="Launch-bound from too much TP x CP",
    action="Lower TP x CP",
    sources=("Megatron-Bridge guide", "NeMo guide", "LLM training guide"),
    topic="parallel_mapping",
    time=("idle.host",),
    needs=(
        GPUS,
        DEGREES,
        Need(words="a layer's tensors split over many ranks", missing=_few_ranks),
        LAUNCHES,
        WINDOW,
    ),
    advice=("pm_large_tp_cp_starves", "host_mbs"),
)

MIN_RANKS = 8
"""TP x CP from which small shards are a suspect."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, if each layer's tensors are split over `MIN_RANKS` or more and the device is
    launch-bound for `graphs.MIN_HOST_FRAC` of the window, with kernels shorter than the launch interval, if
    known."""
    now, share = given(degrees_of(case)), given(case.share(launching_ns))
    evidence = time_evidence(case, "launch-bound idle time", share, launching_ns)
    evidence.append(("ranks per layer, TP x CP", f"{now.tp} x {now.cp}"))
    medians = [r.host.small_kernels.median_kernel_ns for r in case.ranks]
    if known := [m for m in medians if m is not None]:
        evidence.append(("median kernel", brief(statistics.median(known))))
    if share < MIN_HOST_FRAC:
        return passes(evidence)
    between = [r.host.small_kernels.median_launch_interval_ns for r in case.ranks]
    apart = [ns for ns in between if ns is not None]
    if known and apart and statistics.median(known) >= statistics.median(apart):
        reason = "most kernels take longer than the launch interval: their size is not the cause"
        return passes(evidence, reason)
    if splits_too_far(case):
        return passes(evidence, "the model fits on fewer ranks: see PD310")
    return informs(
        reason="launch-bound, with kernels split over many ranks",
        evidence=evidence,
        advice=halved(case),
        remedy="Split tensors less, and use more stages or replicas instead; a larger micro-batch also "
        "enlarges each kernel, and CUDA graphs remove launches (PD201).",
        gain=ceiling(case, launched_late_ns, "all launch-bound idle time", anywhere=True),
        verify="Run again: idle.host falls and the median kernel grows.",
        false_alarm="A host that is slow for another reason: profiler, garbage collection, synchronising "
        "calls. Templates with TP 8 exist for models with a much larger hidden size.",
    )
