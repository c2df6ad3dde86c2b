"""Attention of separate kernels keeps its scores, sequence x sequence for each head and layer, for the
backward: they grow with the square of the sequence length. Fused attention never makes them."""

from perfdoc.results.figures import gib, per_cent, size
from perfdoc.results.memory import AttentionScores, DeviceMemory
from perfdoc.rules.engine.assumptions import FLASH, Assumes
from perfdoc.rules.engine.needs import GPUS, Missing, Need, skipped
from perfdoc.rules.engine.rule import Case, Evidence, Meta, Verdict, fires, passes
from perfdoc.rules.facts.fusions import fused_attention
from perfdoc.rules.facts.memory_room import rooms, why_unknown


def _peaks(case: Case) -> list[DeviceMemory]:
    return [
        r.device for r in rooms(case) if r.device.composition is not None and r.device.peak_allocated_bytes
    ]


def _no_peak(case: Case) -> Missing | None:
    if _peaks(case):
        return None
    return skipped("no snapshot has a history with a peak" if rooms(case) else why_unknown(case))


_FLASH = ", or flash-attn"
META = Meta(
    assumes=(Assumes(of=FLASH, words=_FLASH),),
    title="Attention scores kept in memory",
    action="Use fused attention",
    sources=("Dao et al., FlashAttention, 2022", "PyTorch: scaled_dot_product_attention"),
    topic="memory",
    needs=(GPUS, Need(words="a memory snapshot with a history", missing=_no_peak)),
)

MIN_FRAC = 0.05
"""Of what is allocated at the peak."""
LARGE_FRAC = 0.25
"""Of the same: from here on a problem, whether memory presses or not."""
_BY = {
    "name": "a softmax inside a function or file named for attention",
    "products": "a softmax beside batched products of the same size",
}


def evaluate(case: Case) -> Verdict:
    """Fires where scores of unfused attention hold `MIN_FRAC` of a device's peak; a problem from `LARGE_FRAC`
    on."""
    held = ((sum(a.bytes for a in d.attention) / (d.peak_allocated_bytes or 1), d) for d in _peaks(case))
    share, device = max(held, key=lambda found: found[0])
    if not device.attention:
        return passes(reason="no stack shows a softmax of attention")
    total = sum(row.bytes for row in device.attention)
    evidence = [
        ("attention scores allocated at the peak", f"{gib(total)}, {per_cent(share)}"),
        *(_evidence(row) for row in device.attention),
    ]
    if share < MIN_FRAC:
        return passes(evidence)
    most = device.attention[0]
    megatron = case.framework == "megatron"
    own = "your own " if most.function == _PYTORCHS and not most.file.startswith("torch/") else ""
    return fires(
        level="problem" if share >= LARGE_FRAC else "information",
        reason=f"at most {gib(total)}, {per_cent(share)} of the peak, would go: softmax and its copies in "
        f"{own}{most.function} ({most.file})",
        evidence=evidence,
        frees_bytes=total,
        advice=[fused_attention()] if megatron else [],
        remedy="" if megatron else _REMEDY,
        otherwise="Check the log for why no fused attention was taken: head size, mask, dropout, data type.",
        verify="Record a snapshot again: no softmax is among its largest allocations. The peak falls by less "
        "than this where another moment is nearly as high.",
        false_alarm="A program that needs the scores themselves. Recomputation of attention frees them too.",
    )


_PYTORCHS = "scaled_dot_product_attention"
_REMEDY = (
    f"Call fused attention: torch.nn.functional.{_PYTORCHS}(q, k, v) with your mask or is_causal=True"
    f"{_FLASH}. It never stores the score matrix."
)


def _evidence(row: AttentionScores) -> Evidence:
    each = f"{row.count:,} of up to {size(row.largest_bytes)}, {gib(row.bytes)}; known by {_BY[row.evidence]}"
    return (f"{row.function} ({row.file})", each)
