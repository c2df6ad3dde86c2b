"""PD102: gradients summed in 16 bits over very many ranks."""

from __future__ import annotations

from perfdoc.results.rules import Advice, Evidence
from perfdoc.rules.engine.advise import advise
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import given
from perfdoc.rules.engine.rule import Meta, Verdict
from perfdoc.rules.facts.gradient_sums import (
    MANY_RANKS,
    SEVERAL_REPLICAS,
    can_accumulate_in_fp32,
    keeps_precision,
    summing_ranks,
    sums_in_16_bits,
)

META = Meta(
    code="PD102",
    title="Gradients summed in 16 bits over many ranks",
    why="Each addition along a ring rounds to 8 bits of mantissa: over a hundred ranks and more small "
    "gradients are lost, which shows as a loss curve that drifts and not as time.",
    sources=("seed 000", "seed 001", "seed 003"),
    topic="comm_dtype",
    needs=(SEVERAL_REPLICAS,),
    advice=("cd_bf16_reduce_large_dp", "cd_fp32_accum"),
)


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where gradients are summed in 16 bits over 128 ranks (DP x CP) or more and
    nothing is known to add with more precision."""
    ranks = given(summing_ranks(case))
    evidence = [Evidence(label="ranks that sum gradients, DP x CP", value=f"{ranks:,}")]
    if ranks < MANY_RANKS:
        return Verdict(state="passes", evidence=evidence)
    narrow = sums_in_16_bits(case)
    if narrow is None:
        return Verdict(state="skipped", reason="the format of gradient sums is not known", evidence=evidence)
    evidence.append(Evidence(label="gradients are summed in", value="16 bits" if narrow else "fp32"))
    if not narrow or keeps_precision(case):
        return Verdict(state="passes", evidence=evidence)
    return Verdict(
        state="fires",
        level="information",
        reason=f"sums in 16 bits run over {ranks:,} ranks",
        evidence=evidence,
        advice=[_advice(case)],
        remedy="On InfiniBand with SHARP, use_sharp adds in the switches with more precision, at no more "
        "bytes.",
        verify="Compare the loss and the gradient norm over some thousand steps with fp32 sums.",
        false_alarm="NCCL's tree or SHARP instead of a ring, which no kernel name tells; or a loss that was "
        "compared already.",
    )


def _advice(case: Case) -> Advice:
    if can_accumulate_in_fp32(case):
        return advise(
            knob="reduce_scatter_with_fp32_accumulation",
            to=True,
            why="sends 16 bits and adds in fp32 on each rank",
            costs="an exchange and local sums take the place of NCCL's reduce-scatter",
        )
    return advise(
        knob="grad_reduce_in_fp32",
        to=True,
        why="sums gradients in fp32",
        costs="twice the bytes of gradients, and 2 bytes of memory more for each parameter",
    )
