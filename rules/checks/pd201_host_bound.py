"""PD201: launch-bound idle time."""

from __future__ import annotations

from collections.abc import Iterator

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.results.figures import brief, per_cent
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.evidence import time_evidence
from perfdoc.rules.engine.gain import at_most, ceiling, predicted, worth_frac
from perfdoc.rules.engine.needs import GPUS, WINDOW, given
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.engine.worst import worst_instance
from perfdoc.rules.facts.capture import AFTER_START_UP, LAUNCHES, why_start_up_counts
from perfdoc.rules.facts.degrees import uses_fsdp
from perfdoc.rules.facts.graphs import graph_advice, why_no_room
from perfdoc.rules.facts.idle import MIN_HOST_FRAC
from perfdoc.rules.facts.micro_batches import fits_doubled, larger
from perfdoc.rules.facts.model_memory import cp_of, tp_of

META = Meta(
    code="PD201",
    title="Launch-bound device",
    why="The device idles because the next kernel is launched too late, while Python and the driver work.",
    sources=("seed 000", "seed 001", "seed 003"),
    topic="host_overhead",
    time=("idle.host",),
    needs=(GPUS, LAUNCHES, AFTER_START_UP, WINDOW),
    advice=(
        "host_symptom_flops",
        "host_symptom_small",
        "host_mbs",
        "host_cuda_graph",
        "host_cuda_graph_moe",
        "host_cuda_graph_mem",
        "fsdp_host_bound",
    ),
)

MOST_FRAC = 0.5
"""The same for a window without steps: a smaller share may be start-up."""
_LARGER = "more work per launch, fewer launches"


def evaluate(case: Case) -> Verdict:
    """Fires if the device is launch-bound for `idle.MIN_HOST_FRAC` of the window; if that is the whole
    capture, start-up included, only from `MOST_FRAC` on and as information."""
    start_up = why_start_up_counts(case)
    share = given(case.share(lambda r: r.ledger.idle_ns["host"]))
    if start_up and share < MOST_FRAC:
        return Verdict(state="skipped", reason=start_up)
    evidence = time_evidence(case, "launch-bound idle time", share, lambda r: r.ledger.idle_ns["host"])
    if max(share, worth_frac(case, "without_launches")) < MIN_HOST_FRAC:
        return Verdict(state="passes", evidence=evidence)
    if case.job.mfu.value is not None:
        evidence.append(Evidence(label="MFU", value=per_cent(case.job.mfu.value)))
    evidence += _small_kernels(case)
    gain = predicted(case, "without_launches")
    part = at_most(gain, "predicted for whole layers in graphs; here experts stay outside the graphs")
    return Verdict(
        state="fires",
        worst=worst_instance(case, "idle.host"),
        level="information" if start_up else "problem",
        reason="kernels are launched too late" + (f"; {start_up}" if start_up else ""),
        evidence=evidence,
        remedy=_remedy(case),
        advice=[*graph_advice(case, gain, part), *larger(case, _LARGER)],
        gain=ceiling(case, lambda r: r.ledger.idle_ns["host"], "all launch-bound idle time"),
        verify="Run again: idle.host in the ledger falls, and launch-queue depth stays above 0.",
        false_alarm="A capture with Python stacks or --cuda-memory-usage slows the host; compare profiled "
        "with unprofiled steps.",
    )


def _before_small_ns(rank: RankMeasurement) -> int:
    return min(rank.host.small_kernels.idle_before_ns or 0, rank.ledger.idle_ns["host"])


def _small_kernels(case: Case) -> Iterator[Evidence]:
    """Idle time that ends with a kernel shorter than its launch call; nothing if a rank lacks the
    measurement."""
    if not case.ranks or any(r.host.small_kernels.state != "measured" for r in case.ranks):
        return
    share = case.share(_before_small_ns) or 0.0
    yield Evidence(
        label="idle before kernels shorter than their launch, of the window", value=per_cent(share)
    )
    worst = max(case.ranks, key=_before_small_ns).host.small_kernels
    for label, ns in (
        ("median kernel", worst.median_kernel_ns),
        ("median launch interval", worst.median_launch_interval_ns),
    ):
        if ns is not None:
            yield Evidence(label=label, value=brief(ns))
    if share and worst.names:
        name = worst.names[0]
        yield Evidence(label="most idle before", value=f"{name.name}, {name.count:,} times")


def _remedy(case: Case) -> str:
    tp, cp = tp_of(case), cp_of(case)
    sharded = [name for name, size in (("tensor", tp), ("context", cp)) if size and size > 1]
    less = f", or less {' and '.join(sharded)} parallelism" if sharded else ""
    if fits_doubled(case) == "no":
        words = ["Twice the micro-batch does not fit: save memory first (PD503, PD504, PD507)."]
    else:
        words = [f"Give each launch more work: a larger micro-batch{less}, if memory allows."]
    if tp and tp > 1 and not uses_fsdp(case):
        words.append(
            "FSDP shards the states over data-parallel ranks instead of splitting each GEMM, and can "
            f"replace TP {tp}."
        )
    if (case.share(_before_small_ns) or 0.0) >= MIN_HOST_FRAC:
        words.append(
            "Many kernels are shorter than their launches: fuse operators (PD404), and for fine-tuning pack "
            "short samples."
        )
    words += [no_room] if (no_room := why_no_room(case)) else []
    words.append("The host section lists the calls that wait for the device; remove those first.")
    return " ".join(words)
