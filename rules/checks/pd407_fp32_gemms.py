"""Tensor cores multiply 16-bit numbers many times as fast as other cores multiply FP32, and half the bytes go
through memory."""

from collections.abc import Callable

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.number_format import captured_format, tf32_speedup
from perfdoc.results.figures import brief, per_cent
from perfdoc.rules.engine.gain import Gain, RankMeasurement, bound_of, ceiling, predicted, time_evidence
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, not_applicable, skipped
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import KERNELS, slowed_by
from perfdoc.rules.facts.precision import (
    could_be_tf32_ns,
    fp32_ns,
    fp64_ns,
    in_fp32,
    lack_bf16,
    saved_by_16_bits_ns,
    tf32_ns,
)


def _not_fp32(case: Case) -> Missing | None:
    shown = captured_format(case.ranks)
    if any(in_fp32(rank) for rank in case.ranks):
        return None
    if shown is None:
        return skipped("the names of GEMMs, if there are any, do not tell their number format")
    return not_applicable(f"GEMMs run in {shown[0]}")


META = Meta(
    title="GEMMs, convolutions or attention in FP32",
    action="Run what multiplies in FP32 in 16 bits",
    sources=("kernel names of cuBLAS and CUTLASS",),
    topic="low_precision",
    needs=(GPUS, KERNELS, WINDOW, Need(words="kernels whose names tell FP32", missing=_not_fp32)),
)

_KEY = "bf16_gemm"
MIN_FRAC = 0.05
"""Of the window, mean over ranks; of start-up, of the time in which something ran."""
MIN_PART_FRAC = 0.1
"""Of the time in FP32: from here on a kind of kernel is named."""
_NAMES = {
    KernelClass.GEMM: "GEMMs",
    KernelClass.CONVOLUTION: "convolutions",
    KernelClass.ATTENTION: "attention",
}
TF32_MIN_FRAC = 0.01
"""Likewise, of FP32 GEMMs that TF32 would make faster: for less it is not named."""


def evaluate(case: Case) -> Verdict:
    """Fires where GEMMs, convolutions and attention in FP32 (or TF32) take `MIN_FRAC` of the window."""
    share = case.share_at_work(fp32_ns) or 0.0
    tf32 = case.share_at_work(tf32_ns) or 0.0
    double = case.share_at_work(fp64_ns) or 0.0
    formats = (
        "FP64" if 2 * double > share else "FP32" if not tf32 else "TF32" if tf32 >= share else "FP32 or TF32"
    )
    what = _what(case)
    evidence = time_evidence(case, f"{' and '.join(what)} in {formats}{case.of_work}", share, fp32_ns)
    if share < MIN_FRAC:
        return passes(evidence)
    if formats == "FP32 or TF32":
        evidence += [_part(case, "of it in TF32, on tensor cores", tf32_ns)]
        evidence += [
            _part(case, "of it in FP32, on CUDA cores", lambda r: fp32_ns(r) - tf32_ns(r) - fp64_ns(r))
        ]
    if double:
        evidence += [_part(case, "of it in FP64", fp64_ns)]
    host = case.share(lambda r: r.ledger.idle.host) or 0.0
    if host >= MIN_FRAC:
        evidence.append(("idle, launch-bound", per_cent(host)))
    return fires(
        reason=f"{' and '.join(what)} run in {formats}, at half the rate of 16 bits on tensor cores"
        if formats == "TF32"
        else f"{' and '.join(what)} run in {formats}, not in 16 bits on tensor cores",
        action=f"Run {' and '.join(what)} in 16 bits",
        evidence=evidence,
        remedy=_remedy(case, late=host >= share),
        gain=_gain(case),
        verify="Run again: GEMMs have bf16 or f16 in their names; compare the loss curves.",
        false_alarm="Numerics that need FP32, such as a solver's.",
    )


def _what(case: Case) -> list[str]:
    """The kinds of kernels that run so, by falling time; those of a tenth of it."""
    times: dict[KernelClass, int] = {}
    for kernel in (kernel for rank in case.ranks for kernel in in_fp32(rank)):
        times[kernel.kernel_class] = times.get(kernel.kernel_class, 0) + kernel.total_ns
    found = sorted(times, key=lambda of: -times[of])
    return [_NAMES[of] for of in found if times[of] >= MIN_PART_FRAC * sum(times.values())]


def _part(case: Case, label: str, of: Callable[[RankMeasurement], int]) -> Evidence:
    ms = case.per_unit_ms(of)
    per = "per step" if case.unit == "step" else "in the window"
    return (f"{label}, {per}", brief((ms or 0.0) * 1e6))


def _remedy(case: Case, *, late: bool) -> str:
    """TF32 is named where it makes GEMMs faster that do not have it yet."""
    does = "Run" if case.program.only_infers else "Train"
    words = [f"{does} in {_of_16_bits(case)}, or the framework's own setting."]
    if (case.share_at_work(fp64_ns) or 0.0) >= TF32_MIN_FRAC:
        words.insert(0, _FLOAT)
    if "convolutions" in _what(case) and not case.program.marks & _OTHERS.keys():
        words.append("Convolutions gain most with inputs and weights in channels_last.")
    others = case.program.vendor not in ("nvidia", "") or bool(case.program.marks & _OTHERS.keys())
    if not others and (case.share_at_work(could_be_tf32_ns) or 0.0) >= TF32_MIN_FRAC:
        ms = case.per_unit_ms(could_be_tf32_ns) or 0.0
        where = "" if all(tf32_speedup(r.device.gpu_name) for r in case.ranks) else " (Ampere and later)"
        words.append(
            f"If numbers must stay FP32, allow TF32{where} for the GEMMs that run without it "
            f"({brief(ms * 1e6)}): "
            "torch.set_float32_matmul_precision('high')."
        )
    if late:
        words.append("The host is late too, see PD201: faster GEMMs alone gain little.")
    return " ".join(words)


_FLOAT = (
    "Make weights and batches float32 (model.float(), no .double()): NumPy's arrays are float64, and stay so "
    "in from_numpy(); autocast leaves FP64 as it is."
)
_OTHERS = {
    "paddle": "paddle.amp.auto_cast(dtype='{}')",
    "tensorflow": "tf.keras.mixed_precision.set_global_policy('mixed_{}')",
    "jax": "activations and weights cast to jnp.{}",
}
"""By frameworks beside PyTorch."""
_SCALES = {"tensorflow": "LossScaleOptimizer, unless model.fit trains", "jax": "jmp.DynamicLossScale"}


def _of_16_bits(case: Case) -> str:
    """How, by what all of the GPUs multiply; both where one of them is not known."""
    auto = "torch.autocast(device_type='cuda', dtype=torch.{})"
    auto = next((words for mark, words in _OTHERS.items() if mark in case.program.marks), auto)
    bf16 = f"bf16: {auto.format('bfloat16')}"
    scale = next((words for mark, words in _SCALES.items() if mark in case.program.marks), "GradScaler")
    fp16 = f"fp16 with loss scaling: {auto.format('float16')} and {scale}"
    if (lacking := lack_bf16(case)) is None:
        return f"{bf16}; on GPUs without it, as NVIDIA's before Ampere, {fp16}"
    return f"{fp16} (these GPUs have no bf16)" if lacking else bf16


def _gain(case: Case) -> Gain | None:
    """By replay, unless the capture slows the host: then GEMMs wait for launches that come sooner without
    it, and there is a bound, what the faster units save at their peak. None where the GPU is not known: all
    the time of these GEMMs is no bound that anybody reaches."""
    replayed = predicted(case, _KEY)
    if replayed is not None and replayed.is_predicted and not slowed_by(case):
        return replayed
    if any(saved_by_16_bits_ns(rank) is None for rank in case.ranks):
        return None
    what = "these kernels on 16-bit tensor cores, at the same share of the peak"
    return bound_of(case, _KEY, ceiling(case, lambda rank: saved_by_16_bits_ns(rank) or 0, what))
