"""PD407: GEMMs and attention in FP32."""

from __future__ import annotations

from dataclasses import replace

from perfdoc.results.figures import per_cent
from perfdoc.results.replay import Gain
from perfdoc.results.rules import Evidence
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling, predicted, time_evidence
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, not_applicable, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.capture_cost import slowed_by
from perfdoc.rules.facts.gemm_format import captured_format, fp32_ns, in_fp32, saved_by_16_bits_ns


def _not_fp32(case: Case) -> Missing | None:
    shown = captured_format(case.ranks)
    if any(in_fp32(rank) for rank in case.ranks):
        return None
    if shown is None:
        return skipped("the names of GEMMs, if there are any, do not tell their number format")
    return not_applicable(f"GEMMs run in {shown[0]}")


META = Meta(
    code="PD407",
    title="GEMMs or attention in FP32",
    action="Run GEMMs and attention in 16 bits",
    why="Tensor cores multiply 16-bit numbers many times as fast as other cores multiply FP32, and half the "
    "bytes go through memory.",
    sources=("kernel names of cuBLAS and CUTLASS",),
    topic="low_precision",
    needs=(GPUS, KERNELS, WINDOW, Need(words="GEMMs or attention whose names tell FP32", missing=_not_fp32)),
)

_KEY = "bf16_gemm"
MIN_FRAC = 0.05
"""Of the window, mean over ranks; of start-up, of the time in which something ran."""


def evaluate(case: Case) -> Verdict:
    """Fires where GEMMs and attention in FP32 (or TF32) take `MIN_FRAC` of the window."""
    share = case.share_at_work(fp32_ns) or 0.0
    evidence = time_evidence(case, f"GEMMs and attention in FP32{case.of_work}", share, fp32_ns)
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    host = case.share(lambda r: r.ledger.idle.host) or 0.0
    if host >= MIN_FRAC:
        evidence.append(Evidence(label="idle, launch-bound", value=per_cent(host)))
    late = " The host is late too, see PD201: faster GEMMs alone gain little." if host >= share else ""
    return Verdict(
        state="fires",
        reason="GEMMs or attention run in FP32, outside 16-bit tensor cores",
        evidence=evidence,
        remedy="Train in bf16: torch.autocast(device_type='cuda', dtype=torch.bfloat16), or the framework's "
        "own setting. Before Ampere take fp16 with loss scaling. If numbers must stay FP32, allow "
        f"TF32: torch.set_float32_matmul_precision('high').{late}",
        gain=_gain(case),
        verify="Run again: GEMMs have bf16 (or tf32) in their names; compare the loss curves.",
        false_alarm="Numerics that need FP32, such as a solver's.",
    )


def _gain(case: Case) -> Gain | None:
    """By replay, unless the capture slows the host: then GEMMs wait for launches that come sooner without
    it, and there is a bound, what the faster units save at their peak. None where the GPU is not known: all
    the time of these GEMMs is no bound that anybody reaches."""
    replayed = predicted(case, _KEY)
    if replayed is not None and not slowed_by(case):
        return replayed
    if any(saved_by_16_bits_ns(rank) is None for rank in case.ranks):
        return None
    what = "these GEMMs on 16-bit tensor cores, at the same share of the peak"
    most = ceiling(case, lambda rank: saved_by_16_bits_ns(rank) or 0, what)
    return most if most is None or replayed is None else replace(most, key=_KEY)
