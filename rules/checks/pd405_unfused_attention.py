"""PD405: attention in separate kernels, or by another library than the GPU's fastest."""

from __future__ import annotations

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.results.figures import per_cent
from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling, time_evidence
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.capture import KERNELS, fused_attention_runs
from perfdoc.rules.facts.fusions import known_off


def _no_rows(case: Case) -> Missing | None:
    return None if any(r.kernel_times for r in case.ranks) else skipped("no kernel rows in the window")


META = Meta(
    code="PD405",
    title="Attention that is not fused",
    action="Use fused attention",
    why="Attention of separate kernels writes and reads a sequence x sequence matrix several times, and "
    "keeps it for the backward; fused attention never makes it.",
    sources=("seed 000", "seed 001", "seed 003"),
    topic="fusion",
    needs=(GPUS, KERNELS, WINDOW, Need(words="kernels in the window", missing=_no_rows)),
    advice=("fus_attention_backend", "mlm_31", "fus_all_on", "fus_verl_defaults"),
)

MIN_FRAC = 0.02
"""Of the window, mean over ranks: masks and softmax outside of any fused attention."""
MIN_ATTENTION_FRAC = 0.2
"""Of kernel time: from here on it is worth trying another fused attention."""
_KNOB, _SOFTMAX, _PATTERN = "attention_backend", "masked_softmax_fusion", "masked_softmax"
_FASTER = {"ampere": "flash", "ada": "flash", "hopper": "fused", "blackwell": "fused"}
"""What Transformer Engine takes where it may choose: FlashAttention up to Ada, cuDNN from Hopper on."""


def evaluate(case: Case) -> Verdict:
    """Fires where softmax outside fused attention takes `MIN_FRAC`; as information where the setting asks
    for separate kernels, or for the slower library and attention takes `MIN_ATTENTION_FRAC` of kernel
    time."""
    share = given(case.share(_unfused_ns))
    evidence = time_evidence(case, "softmax outside fused attention", share, _unfused_ns)
    backend = case.setting(_KNOB)[1]
    verify = "Run again: attention is one kernel forward and few backward; softmax kernels are gone."
    if share >= MIN_FRAC:
        return Verdict(
            state="fires",
            reason="mask and softmax run as separate kernels",
            evidence=evidence,
            remedy=""
            if case.configuration.dialect
            else "Call fused attention: torch.nn.functional.scaled_dot_product_attention in 16 bits, or "
            "flash-attn.",
            advice=_fused(case) if case.configuration.dialect else [],
            otherwise="Check the log for why no fused attention was taken: head size, mask, dropout, data "
            "type.",
            gain=ceiling(case, _unfused_ns, "the time of these softmax kernels (their GEMMs not counted)"),
            verify=verify,
            false_alarm="A softmax outside attention, such as a router or a sampled loss.",
        )
    if backend in ("unfused", "local") and fused_attention_runs(case):
        reason = f"attention_backend is {backend}, yet fused attention runs: other settings were in force"
        return Verdict(state="passes", reason=reason, evidence=evidence)
    if backend in ("unfused", "local"):
        return Verdict(
            state="fires",
            level="information",
            reason=f"attention_backend {backend} selects separate kernels",
            evidence=evidence,
            advice=_fused(case),
            verify=verify,
            false_alarm="A backend that was chosen for reproducible results.",
        )
    attention = _attention_frac(case)
    gpu = case.gpu
    if attention is not None and gpu is not None and backend in ("flash", "fused"):
        faster = _FASTER[gpu.architecture]
        evidence.append(Evidence(label="attention, of kernel time", value=per_cent(attention)))
        if attention >= MIN_ATTENTION_FRAC and backend != faster:
            why = f"Transformer Engine then takes what is usually fastest on {gpu.architecture} ({faster})"
            return Verdict(
                state="fires",
                level="information",
                reason=f"attention_backend {backend} is fixed, and attention is a large part of the step",
                evidence=evidence,
                advice=[advise(knob=_KNOB, to="auto", why=why, costs="numerics of another kernel")],
                verify="Run again: attention's share of kernel time falls.",
                false_alarm="The other library may lack a mask or a head size of this model.",
            )
    return Verdict(state="passes", evidence=evidence)


def _unfused_ns(rank: RankMeasurement) -> int:
    """Masks and softmax that belong to no fused attention: recognised sequences; and all softmax where no
    fused attention runs at all."""
    sequences = sum(u.total_ns for u in rank.kernel_parts.unfused if u.pattern == _PATTERN)
    times = dict.fromkeys(KernelClass, 0)
    for row in rank.kernel_times:
        times[row.kernel_class] += row.total_ns
    softmax = 0 if times[KernelClass.ATTENTION] else times[KernelClass.SOFTMAX]
    return min(max(sequences, softmax), rank.ledger.compute)


def _attention_frac(case: Case) -> float | None:
    """Of kernel time, over all ranks."""
    parts = [r.kernel_parts for r in case.ranks if r.kernel_parts.state == "measured"]
    total = sum(p.kernel_ns for p in parts)
    return sum(p.attention_ns or 0 for p in parts) / total if total else None


def _fused(case: Case) -> list[Advice]:
    backend = advise(
        knob=_KNOB,
        to="auto",
        why="the fastest fused attention that this GPU has, without a sequence x sequence matrix",
        costs="numerics of another kernel",
    )
    softmax = advise(
        knob=_SOFTMAX,
        to=True,
        why="one kernel for scale, mask and softmax; of use only where attention itself cannot be fused",
    )
    return [backend, softmax] if known_off(case, _SOFTMAX) else [backend]
