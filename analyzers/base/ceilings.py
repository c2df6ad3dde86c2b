"""What a job's devices can reach: given, by the data sheet, or measured before the run.

MFU's convention is the data sheet's dense peak, so that this goes before a measured one where both are known.
"""

from __future__ import annotations

from perfdoc.profiling.gpus import GpuModel, gpu_model
from perfdoc.profiling.measured import MeasuredCeilings, Rate
from perfdoc.results.ceilings import Ceiling, Ceilings
from perfdoc.traces.job_facts import JobFacts

CPU = "CPU"
"""What captures of ranks without a GPU call their device."""


def ceilings_of(facts: JobFacts, gpu_name: str | None) -> Ceilings:
    """Ceilings of one device. gpu_name: as its capture calls it.

    A peak that the user gave is the one of the job's dtype. What was measured counts for the device on which
    it was: a GPU of the same name, or the CPU.
    """
    model = gpu_model(gpu_name)
    measured = _measured(facts.measured_ceilings, gpu_name)
    flops = {} if measured is None else {d: _by(measured, rate) for d, rate in measured.flops.items()}
    memory = None
    if measured is not None and (rate := measured.memory_bytes_per_s) is not None:
        memory = _by(measured, rate)
    if model is not None:
        for dtype, tera in model.tflops.items():
            flops[str(dtype)] = _listed(tera * 1e12, f"dense {dtype} peak", gpu_name)
        if model.memory_gbps is not None:
            memory = _listed(model.memory_gbps * 1e9, "memory bandwidth", gpu_name)
    if facts.peak_flops_per_second is not None and facts.dtype is not None:
        flops[facts.dtype] = Ceiling(
            value=facts.peak_flops_per_second,
            source=facts.peak_kind or "given",
            text=facts.peak_source or facts.sources.get("peak_flops_per_second", ""),
        )
    return Ceilings(
        device=gpu_name or "",
        flops=dict(sorted(flops.items())),
        memory=memory,
        sm_count=None if model is None else model.sm_count,
        reason=_why_missing(gpu_name, model, measured),
    )


def _listed(value: float, what: str, name: str | None) -> Ceiling:
    return Ceiling(value=value, source="datasheet", text=f"{what} of {name}")


def _by(measured: MeasuredCeilings, rate: Rate) -> Ceiling:
    text = measured.text(rate)
    return Ceiling(value=rate.best, source="measured", text=text, spread_frac=rate.spread_frac)


def _measured(found: MeasuredCeilings | None, gpu_name: str | None) -> MeasuredCeilings | None:
    """What was measured, where it was measured on this kind of device."""
    if found is None:
        return None
    same = gpu_name == CPU if found.kind == "cpu" else gpu_name == found.device
    return found if same else None


def _why_missing(gpu_name: str | None, model: GpuModel | None, measured: MeasuredCeilings | None) -> str:
    if model is not None and model.memory_gbps is not None:
        return ""
    if measured is not None:
        return "; ".join(f"{what}: {why}" for what, why in measured.missing.items())
    if gpu_name is None:
        return "the captures do not name the device"
    if gpu_name == CPU:
        return "a CPU has no data sheet's peak, and none was measured before the run"
    if model is not None:
        return f"the name {gpu_name} does not say which memory it has"
    return f"{gpu_name} is not in the table of GPUs, and nothing was measured before the run"
