"""Attention of separate kernels writes and reads a sequence x sequence matrix several times, and keeps it for
the backward; fused attention never makes it."""

from collections.abc import Iterator

from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import is_masked_softmax
from perfdoc.results.figures import brief, per_cent
from perfdoc.rules.engine.advise import Advice, advise
from perfdoc.rules.engine.assumptions import FLASH, Assumes
from perfdoc.rules.engine.gain import Gain, RankMeasurement, time_evidence
from perfdoc.rules.engine.needs import GPUS, WINDOW, Missing, Need, skipped
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, informs, passes
from perfdoc.rules.facts.capture import KERNELS, fused_attention_runs, is_fused_attention
from perfdoc.rules.facts.fusions import fused_attention, known_off
from perfdoc.rules.facts.graphs import without_kernels
from perfdoc.rules.facts.precision import fp32_ns


def _no_rows(case: Case) -> Missing | None:
    return None if any(r.kernel_times for r in case.ranks) else skipped("no kernel rows in the window")


_FLASH = ", or flash-attn"
_TORCHS = "torch.nn.functional.scaled_dot_product_attention"
_JAXS = "jax.nn.dot_product_attention(..., implementation='cudnn')"
META = Meta(
    title="Attention that is not fused",
    action="Use fused attention",
    sources=("Megatron-Bridge guide", "NeMo guide", "Megatron-LM guide"),
    topic="fusion",
    needs=(GPUS, KERNELS, WINDOW, Need(words="kernels in the window", missing=_no_rows)),
    advice=("fus_attention_backend", "mlm_31", "fus_all_on", "fus_verl_defaults"),
    assumes=(Assumes(of=FLASH, words=_FLASH),),
    for_servers=True,
)

MIN_FRAC = 0.02
"""Of the window (of start-up, of the time in which something ran), mean over ranks: masks and softmax outside
of any fused attention."""
MIN_COMPUTE_FRAC = 0.05
"""Of compute, where idle time makes the share of the window small: then it is information."""
MIN_ATTENTION_FRAC = 0.2
"""Of kernel time: from here on it is worth trying another fused attention."""
_KNOB, _SOFTMAX, _PATTERN = "attention_backend", "masked_softmax_fusion", "masked_softmax"
_FASTER = {"ampere": "flash", "ada": "flash", "hopper": "fused", "blackwell": "fused"}
"""What Transformer Engine takes where it may choose: FlashAttention up to Ada, cuDNN from Hopper on."""


def evaluate(case: Case) -> Verdict:
    """Fires where softmax outside fused attention, with what runs between it and its products, takes
    `MIN_FRAC`; as information where that is `MIN_COMPUTE_FRAC` of compute alone, where the setting asks for
    separate kernels, or for the slower library and attention takes `MIN_ATTENTION_FRAC` of kernel time.

    An upper bound: all of that and the products, which fused attention still multiplies, in fewer bytes.
    """
    share = case.share_at_work(_unfused_ns) or 0.0
    label = f"softmax outside fused attention{case.of_work}"
    evidence = [*time_evidence(case, label, share, _unfused_ns), *_seen(case)]
    backend = case.setting(_KNOB)[1]
    verify = "Run again: attention is one kernel forward and few backward; softmax kernels are gone."
    of_compute = sum(map(_unfused_ns, case.ranks)) / (sum(r.ledger.compute for r in case.ranks) or 1)
    seen = any(r.kernel_parts.unfused_attention.forwards for r in case.ranks)
    if share >= MIN_FRAC or (seen and of_compute >= MIN_COMPUTE_FRAC):
        little = share < MIN_FRAC
        if little:
            label = "softmax outside fused attention, of compute"
            evidence.append((label, per_cent(of_compute)))
        return fires(
            level="information" if little else "problem",
            reason="mask and softmax run as separate kernels"
            + (" between the products of attention" if seen else ""),
            evidence=evidence,
            remedy=""
            if case.framework == "megatron"
            else f"Call fused attention: {_JAXS if case.framework == 'jax' else _TORCHS} "
            f"with bf16 or fp16 inputs{_now(case)}{'' if case.framework == 'jax' else _FLASH}.",
            advice=_fused(case) if case.framework == "megatron" else [],
            otherwise="Check the log for why no fused attention was taken: head size, mask, dropout, data "
            "type.",
            gain=_bound(case),
            verify=verify,
            false_alarm="A program that needs the scores themselves."
            if seen
            else "A softmax outside attention, such as a router or a sampled loss.",
        )
    if backend in ("unfused", "local") and fused_attention_runs(case):
        reason = f"attention_backend is {backend}, yet fused attention runs: other settings were in force"
        return passes(evidence, reason)
    if backend in ("unfused", "local"):
        return informs(
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
        evidence.append(("attention, of kernel time", per_cent(attention)))
        if attention >= MIN_ATTENTION_FRAC and backend != faster:
            why = f"Transformer Engine then takes what is usually fastest on {gpu.architecture} ({faster})"
            return informs(
                reason=f"attention_backend {backend} is fixed, and attention is a large part of the step",
                evidence=evidence,
                advice=[advise(knob=_KNOB, to="auto", why=why, costs="numerics of another kernel")],
                verify="Run again: attention's share of kernel time falls.",
                false_alarm="The other library may lack a mask or a head size of this model.",
            )
    return passes(evidence, "attention of separate kernels runs, and takes little time" if seen else "")


def _seen(case: Case) -> Iterator[Evidence]:
    found = [r.kernel_parts.unfused_attention for r in case.ranks]
    worst = max(found, key=lambda a: a.products_ns)
    if not worst.forwards:
        return
    back = "backward not told apart" if worst.backwards is None else f"{worst.backwards:,} backward"
    yield ("softmax between two products, worst rank", f"{worst.forwards:,} forward passes, {back}")
    yield ("these products, in the window", brief(worst.products_ns))


def _bound(case: Case) -> Gain | None:
    """None where some softmax was found without its products, or a backward pass is not told apart: what
    fused attention replaces is then not known."""
    seen = [(r.kernel_parts.unfused_attention, _unfused_ns(r)) for r in case.ranks]
    if any(a.backwards is None or ns > a.between_ns for a, ns in seen):
        return None
    what = "softmax, what runs between, and the products, whose arithmetic stays"
    return without_kernels(case, _replaced_ns, lambda r: r.kernel_parts.unfused_attention.apart_ns, what)


def _now(case: Case) -> str:
    """What the inputs are today, where kernels' names tell."""
    return " (FP32 or TF32 today)" if (case.share_at_work(fp32_ns) or 0.0) >= MIN_FRAC else ""


def _replaced_ns(rank: RankMeasurement) -> int:
    found = rank.kernel_parts.unfused_attention
    return min(found.between_ns + found.products_ns, rank.ledger.compute)


def _unfused_ns(rank: RankMeasurement) -> int:
    """Masks and softmax that belong to no fused attention: what lies between products; recognised sequences;
    and all softmax where no fused attention runs at all."""
    sequences = sum(u.total_ns for u in rank.kernel_parts.unfused if u.pattern == _PATTERN)
    softmax = sum(
        row.total_ns
        for row in rank.kernel_times
        if row.kernel_class is KernelClass.SOFTMAX or is_masked_softmax(row.name)
    )
    if any(is_fused_attention(row) for row in rank.kernel_times):
        softmax = 0
    between = rank.kernel_parts.unfused_attention.between_ns
    return min(max(between, sequences, softmax), rank.ledger.compute)


def _attention_frac(case: Case) -> float | None:
    """Of kernel time, over all ranks."""
    parts = [r.kernel_parts for r in case.ranks if r.kernel_parts.state == "measured"]
    total = sum(p.kernel_ns for p in parts)
    return sum(p.attention_ns or 0 for p in parts) / total if total else None


def _fused(case: Case) -> list[Advice]:
    why = "one kernel for scale, mask and softmax; of use only where attention itself cannot be fused"
    softmax = [advise(knob=_SOFTMAX, to=True, why=why)] if known_off(case, _SOFTMAX) else []
    return [fused_attention(), *softmax]
