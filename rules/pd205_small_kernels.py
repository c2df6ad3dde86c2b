"""PD205: kernels too short for what it costs to launch them."""

from __future__ import annotations

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.rules.case import Case
from perfdoc.rules.gain import ceiling
from perfdoc.rules.model_memory import cp_of, micro_batch_of, tp_of
from perfdoc.rules.rule import Evidence, Meta, Verdict
from perfdoc.rules.time_evidence import time_evidence

META = Meta(
    code="PD205",
    title="Kernels shorter than their launches",
    why="A kernel that ends before the next can be launched leaves the device idle however fast it is: small "
    "hidden sizes, short sequences, unpacked samples and finely split layers make many of them.",
    sources=("seed 000", "seed 001", "seed 002"),
    topic="host_overhead",
    needs=("trace",),
    advice=("host_symptom_small",),
)

MIN_FRAC = 0.05
"""Of the window, mean over ranks: idle time that such kernels ended."""


def evaluate(case: Case) -> Verdict:
    """Fires where the device waits for `MIN_FRAC` of the window before kernels that are shorter than the
    calls which launch them."""
    if case.on_host:
        return Verdict(state="not_applicable", reason="the ranks train on the CPU: nothing is launched")
    unknown = next((s for r in case.ranks if (s := r.host.small_kernels).state != "measured"), None)
    if unknown is not None:
        return Verdict(state="skipped", reason=unknown.reason)
    if any(r.window.kind == "capture" and "asked for" not in r.window.reason for r in case.ranks):
        reason = "the window is the whole capture, start-up included: steps are not known (see PD902)"
        return Verdict(state="skipped", reason=reason)
    share = case.share(_idle_ns)
    if share is None:
        return Verdict(state="skipped", reason="every window is empty")
    evidence = time_evidence(case, "idle before kernels shorter than their launch", share, _idle_ns)
    worst = max(case.ranks, key=_idle_ns).host.small_kernels
    for label, ns in (
        ("median kernel", worst.median_kernel_ns),
        ("median call that launched one", worst.median_launch_ns),
        ("from one launch to the next, median", worst.median_launch_interval_ns),
    ):
        if ns is not None:
            evidence.append(Evidence(label=label, value=f"{ns / 1e3:.3g} us"))
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    if worst.names:
        name = worst.names[0]
        evidence.append(Evidence(label="most idle before", value=f"{name.name}, {name.count:,} times"))
    return Verdict(
        state="fires",
        reason="the device waits for kernels that take less time than their launches",
        evidence=evidence,
        remedy=_remedy(case),
        gain=ceiling(case, _idle_ns, "the idle time before kernels shorter than their launches"),
        verify="Run again: the host section shows fewer launch-bound kernels and a longer median.",
        false_alarm="Short kernels cost nothing while the queue is full; only those that the device waited "
        "for are counted here.",
    )


def _idle_ns(rank: RankMeasurement) -> int:
    return min(rank.host.small_kernels.idle_before_ns or 0, rank.ledger.idle_ns["host"])


def _remedy(case: Case) -> str:
    size, tp, cp = micro_batch_of(case), tp_of(case), cp_of(case)
    words = [f"a micro-batch above {size}" if size else "a larger batch"]
    if (tp or 1) * (cp or 1) > 1:
        words.append("less tensor or context parallelism")
    words.append("packs where short samples are fine-tuned")
    return (
        f"Make tensors larger: {', '.join(words)}. Or launch fewer kernels: CUDA graphs (PD201), fused "
        "operators (PD404)."
    )
