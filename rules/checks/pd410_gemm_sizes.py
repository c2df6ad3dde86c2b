"""PD410: GEMMs of sizes that tensor cores do not divide by."""

from __future__ import annotations

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import ceiling, time_evidence
from perfdoc.rules.engine.needs import GPUS, WINDOW, given
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.framework import framework_of_job
from perfdoc.rules.facts.roofline import WORK, gemms, of_roofline, sizes_of

META = Meta(
    code="PD410",
    title="GEMM sizes off the tensor cores' multiples",
    action="Pad GEMM sizes to multiples of 64",
    why="Tensor cores load rows of 16 bytes; a size that these do not divide takes slower kernels, without "
    "tensor cores or with copies, and the tiles at the edge compute on nothing.",
    sources=("NVIDIA, Matrix Multiplication Background User's Guide",),
    topic="fusion",
    needs=(GPUS, KERNELS, WINDOW, WORK),
)

MIN_FRAC = 0.02
"""Of the window, mean over ranks: what these GEMMs take beyond their roofline."""
_MULTIPLES = {"fp8": 16, "int8": 16, "bf16": 8, "fp16": 8, "tf32": 4, "fp32": 4}
"""Elements of 16 bytes."""
_NAMED = 3


def evaluate(case: Case) -> Verdict:
    """Fires where GEMMs with such a size lose `MIN_FRAC` of the window beyond their roofline."""
    share = given(case.share(_lost_ns))
    evidence = time_evidence(case, "beyond the roofline, in GEMMs of such sizes", share, _lost_ns)
    if share < MIN_FRAC:
        return Verdict(state="passes", evidence=evidence)
    found: dict[tuple[str, str], tuple[OperatorEfficiency, int]] = {}
    for rank in case.ranks:
        for operator in gemms(rank):
            if _odd(operator):
                key = operator.name, operator.shapes
                found[key] = operator, found.get(key, (operator, 0))[1] + _beyond_ns(operator)
    worst = sorted(found.values(), key=lambda row: -row[1])[:_NAMED]
    megatron = framework_of_job(case.captures, case.configuration) == "megatron"
    by = "make_vocab_size_divisible_by, " if megatron else ""
    return Verdict(
        state="fires",
        reason=f"GEMMs have sizes that are no multiples, such as {_odd(worst[0][0])[0]:,}",
        evidence=[
            *evidence,
            *(of_roofline(o) for o, _ in worst),
        ],
        remedy=f"Pad the vocabulary ({by}50,257 to 50,304), hidden sizes, heads and the tokens of a rank to "
        "multiples of 64. The least is 8 in 16 bits, and 16 in FP8.",
        gain=ceiling(case, _lost_ns, "what these GEMMs take beyond their roofline"),
        verify="Run again: these GEMMs reach the TFLOP/s of their neighbours.",
        false_alarm="A size that is a layer's nature and small, such as a head of few classes.",
    )


def _odd(operator: OperatorEfficiency) -> list[int]:
    """Sizes that 16 bytes do not divide, the largest first."""
    by = _MULTIPLES.get(operator.dtype)
    return sorted({s for s in sizes_of(operator) if by and s % by}, reverse=True)


def _beyond_ns(operator: OperatorEfficiency) -> int:
    return round(operator.time_ns * (1 - (operator.roofline_frac or 0.0)))


def _lost_ns(rank: RankMeasurement) -> int:
    return min(sum(_beyond_ns(o) for o in gemms(rank) if _odd(o)), rank.ledger.compute)
