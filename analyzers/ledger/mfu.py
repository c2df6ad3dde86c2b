"""Model FLOPs utilization over the steps of the window, and the way down to it from 100 %.

MFU = model FLOPs of a step / (step time x GPUs x peak of the training dtype). The peak is the data sheet's
dense one where that is known, else the one measured on the device, and the result says which. The step time
is the windows' mean over steps and ranks, so that the loss from 100 % is a sum of ledger leaves, to the
nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from perfdoc.analyzers.base.ceilings import CPU, ceilings_of
from perfdoc.profiling.flops import CONVENTION, flops_per_token
from perfdoc.records import dataclass
from perfdoc.results.ceilings import CeilingSource
from perfdoc.results.efficiency import NO_EFFICIENCY, KernelEfficiency
from perfdoc.results.figures import duration
from perfdoc.results.headline import Mfu, WaterfallBar
from perfdoc.results.ranks import Ledger, Window
from perfdoc.traces.job_facts import JobFacts

IDEAL, BEYOND_IDEAL = "ideal", "compute_beyond_ideal"


@dataclass(frozen=True, kw_only=True)
class MfuRank:
    """What MFU needs of one rank."""

    gpu_name: str | None
    window: Window
    ledger: Ledger


@dataclass(frozen=True, kw_only=True)
class _Known:
    """A factor of the formula and who said so; None with the reason."""

    value: float | None
    text: str
    remedy: str = ""
    kind: CeilingSource | None = None
    """Of a peak."""


def measure_mfu(
    ranks: Sequence[MfuRank],
    facts: JobFacts,
    world_size: int | None,
    communicates: bool,
    efficiency: KernelEfficiency = NO_EFFICIENCY,
) -> Mfu:
    """MFU of a job.

    ranks: those that the captures show. world_size: ranks of the whole job as the captures say, None where
    they do not. communicates: whether any of them moves data to another rank. efficiency: of the same ranks,
    by which the bar of compute is split.
    """
    steps = sum(r.window.steps for r in ranks)
    in_steps = steps > 0 and all(r.window.kind == "steps" for r in ranks)
    total_ns = sum(r.window.duration_ns for r in ranks)
    step_ns = total_ns / steps if in_steps and total_ns else None
    flops = _flops(facts)
    gpus = _gpus(ranks, facts, world_size, communicates)
    peak = _peak(ranks, facts)
    value: float | None = None
    waterfall: list[WaterfallBar] = []
    unknown = next((f for f in (flops, gpus, peak) if f.value is None), None)
    reason, remedy = "", ""
    if unknown is not None:
        reason, remedy = unknown.text, unknown.remedy
    elif step_ns is None:
        reason = "the windows are not made of whole steps"
        remedy = "Name the ranges that are steps with --step-range."
    else:
        ideal_ns = _ideal_ns(steps, flops, gpus, peak)
        compute_ns = sum(r.ledger.compute for r in ranks)
        if not 0 < ideal_ns <= compute_ns:
            reason, remedy = _beyond(peak, round(ideal_ns / steps), round(compute_ns / steps))
        else:
            waterfall = _waterfall(ranks, ideal_ns, total_ns, _lost(efficiency, facts, compute_ns))
            value = ideal_ns / total_ns
    return Mfu(
        value=value,
        reason=reason,
        remedy=remedy,
        flops_per_step=None if flops.value is None else int(flops.value),
        flops_source=flops.text if flops.value is not None else "",
        step_time_ns=None if step_ns is None else round(step_ns),
        gpus=None if gpus.value is None else int(gpus.value),
        gpus_source=gpus.text if gpus.value is not None else "",
        peak_flops=peak.value,
        peak_source=peak.text if peak.value is not None else "",
        dtype=facts.dtype,
        convention=_convention(facts) if flops.value is not None else None,
        waterfall=waterfall,
        peak_kind=peak.kind,
    )


def _beyond(peak: _Known, ideal_ns: int, compute_ns: int) -> tuple[str, str]:
    """Reason and remedy where a step's FLOPs would take longer at the peak than everything computed took."""
    measured = peak.kind == "measured"
    wrong = (
        "the measured peak is too low, or model or batch are wrong"
        if measured
        else ("model, batch, GPUs or dtype are wrong")
    )
    reason = (
        f"the model's FLOPs would take {duration(ideal_ns)} of a step at the peak, "
        f"the device computed for {duration(compute_ns)}: {wrong}"
    )
    if measured:
        return reason, "Measure again while nothing else runs, and train again: perfdoc peak --again."
    return reason, "Check what was given with --set and --config, or what run.json says."


def _convention(facts: JobFacts) -> str:
    if facts.flops_per_step is None:
        return CONVENTION
    return facts.flops_convention or "counted as given"


def _ideal_ns(steps: int, flops: _Known, gpus: _Known, peak: _Known) -> int:
    """Time that the steps of the shown ranks would take if all their FLOPs ran at the peak."""
    assert flops.value is not None
    assert gpus.value is not None
    assert peak.value is not None
    return int(steps * flops.value / (gpus.value * peak.value) * 1e9)


_SUCH_AS = {"model": "model=NAME", "gbs": "gbs=N", "seq": "seq=N"}


def _flops(facts: JobFacts) -> _Known:
    if facts.flops_per_step is not None:
        return _Known(value=facts.flops_per_step, text=facts.sources.get("flops_per_step", ""))
    model, batch, length = facts.model, facts.global_batch_sequences, facts.sequence_length
    if model is None or batch is None or length is None:
        given = (("model", model), ("gbs", batch), ("seq", length))
        missing = [key for key, value in given if value is None]
        such_as = " ".join(_SUCH_AS[key] for key in missing)
        return _Known(
            value=None,
            text=f"model FLOPs unknown: {', '.join(missing)} not given",
            remedy=f"Give the job's --set flops_per_step=N, or {such_as} (of a language model).",
        )
    shape = msgspec.structs.replace(model, sequence_length=length)
    return _Known(value=batch * length * flops_per_token(shape), text="computed from model, gbs and seq")


def _gpus(ranks: Sequence[MfuRank], facts: JobFacts, world_size: int | None, communicates: bool) -> _Known:
    shown = max(len(ranks), world_size or 0)
    if facts.world_size is not None and facts.world_size < shown:
        return _Known(
            value=None,
            text=f"the captures show {shown:,} ranks, and world_size={facts.world_size:,} is given",
            remedy="Give the GPUs of the whole job.",
        )
    if facts.world_size is not None:
        return _Known(value=facts.world_size, text=facts.sources.get("world_size", ""))
    if world_size is not None:
        return _Known(value=world_size, text="the capture")
    several = math.prod(d or 1 for d in (facts.tp, facts.cp, facts.pp, facts.dp)) > len(ranks)
    if not communicates and not several:
        return _Known(value=len(ranks), text="the captures, which show no communication with others")
    return _Known(
        value=None,
        text="the captures do not show the job's number of GPUs",
        remedy="Give it: --set world_size=64.",
    )


def _peak(ranks: Sequence[MfuRank], facts: JobFacts) -> _Known:
    """The peak of one device, or why it is not known."""
    if facts.peak_flops_per_second is not None:
        source = facts.peak_source or facts.sources.get("peak_flops_per_second", "")
        kind = facts.peak_kind or "given"
        return _Known(value=facts.peak_flops_per_second, text=source, kind=kind)
    names = {r.gpu_name for r in ranks}
    begin = "Name the GPU, --set gpu_name=H100, or give" if None in names else "Give"
    remedy = f"{begin} its dense peak in teraflop/s: --set peak_tflops=989."
    if names == {CPU} and facts.measured_ceilings is None:
        return _Known(
            value=None,
            text="the peak of a CPU is unknown: none was measured before the run",
            remedy="Let perfdoc run measure it (without --no-peak), or give one: --set peak_tflops=0.1.",
        )
    if len(names) != 1 or None in names:
        return _Known(value=None, text="the captures do not name one GPU for all ranks", remedy=remedy)
    if facts.dtype is None:
        return _Known(
            value=None, text="the dtype of the GEMMs is unknown", remedy="Give it: --set dtype=bf16 (or fp8)."
        )
    (name,) = names
    known = ceilings_of(facts, name).flops
    if facts.dtype == "fp32" and "tf32" in known:
        return _Known(
            value=None,
            text=f"fp32 GEMMs of {name} run on CUDA cores or, as TF32, on tensor cores: which is not known",
            remedy="Give the peak of the one that ran, in teraflop/s: --set peak_tflops=67.",
        )
    if facts.dtype not in known:
        return _Known(value=None, text=f"no {facts.dtype} peak is listed for {name}", remedy=remedy)
    peak = known[facts.dtype]
    return _Known(value=peak.value, text=peak.text, kind=peak.source)


def _lost(efficiency: KernelEfficiency, facts: JobFacts, compute_ns: int) -> dict[str, int]:
    """Compute that the roofline explains, by cause; empty where it is of other ranks or unknown."""
    if efficiency.state != "measured" or efficiency.compute_ns != compute_ns or facts.dtype is None:
        return {}
    # The ideal of a job in FP32 is at the peak of FP32: what a faster dtype would save is inside of it.
    inside = "precision" if facts.dtype in ("fp32", "tf32") else ""
    return {row.cause: row.total_ns for row in efficiency.losses if row.cause != inside}


def _waterfall(
    ranks: Sequence[MfuRank], ideal_ns: int, total_ns: int, lost: Mapping[str, int]
) -> list[WaterfallBar]:
    """What of compute is beyond the ideal and in no cause is work that is unknown, or that the model's count
    of FLOPs has not."""
    each = [r.ledger.by_leaf for r in ranks]
    summed = {name: sum(leaves[name] for leaves in each) for name in each[0]}
    beyond = summed.pop("compute") - ideal_ns
    if sum(lost.values()) > beyond:
        lost = {}  # the model's FLOPs are more than the kernels': the two do not add up
    split = {f"compute.{cause}": ns for cause, ns in lost.items()}
    leaves = {IDEAL: ideal_ns, **split, BEYOND_IDEAL: beyond - sum(lost.values())} | summed
    assert sum(leaves.values()) == total_ns, (leaves, total_ns)
    return [
        WaterfallBar(name=name, total_ns=time_ns, frac=time_ns / total_ns) for name, time_ns in leaves.items()
    ]
