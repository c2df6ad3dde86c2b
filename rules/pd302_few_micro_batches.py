"""PD302: a step with too few micro-batches for the depth of its pipeline."""

from __future__ import annotations

from perfdoc.rules.bubble import PER_STAGE, bubble_ceiling, ideal_frac, no_pipeline
from perfdoc.rules.case import Case
from perfdoc.rules.degrees import PP, VPP
from perfdoc.rules.rule import Advice, Evidence, Meta, Verdict

META = Meta(
    code="PD302",
    title="Few micro-batches for the pipeline's depth",
    why="The fewer micro-batches a step has for each stage, the larger the part of it in which the pipeline "
    "fills and drains.",
    sources=("seed 003", "seed 004"),
    topic="pipeline",
    needs=("settings",),
    advice=("pp_m_rule", "pp_bubble_formula"),
)

MOST = 8
"""Micro-batches for each stage beyond which the guides ask for no more."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, below `bubble.PER_STAGE` micro-batches for each stage; a micro-batch counts once
    for every chunk of a stage, as the bubble's formula has it."""
    if nothing := no_pipeline(case):
        return nothing
    pp, micro_batches = case.degree(PP), case.micro_batches
    vpp = case.degree(VPP) or case.job.facts.vpp
    if pp is None or micro_batches is None or vpp is None or min(micro_batches, vpp) < 1:
        return Verdict(state="skipped", reason="the stages, their chunks or the micro-batches are not known")
    ideal = ideal_frac(pp=pp, vpp=vpp, micro_batches=micro_batches)
    evidence = [
        Evidence(label="micro-batches of a step", value=str(micro_batches)),
        Evidence(label="stages x chunks", value=f"{pp} x {vpp}"),
        Evidence(label="bubble of the step that follows, at least", value=f"{ideal:.1%}"),
    ]
    if vpp * micro_batches >= PER_STAGE * pp:
        return Verdict(state="passes", evidence=evidence)
    chunks = f" of {vpp} chunks" if vpp > 1 else ""
    wanted = -(-PER_STAGE * pp // vpp)
    advice = [*_smaller_micro_batch(case, wanted, micro_batches), *_larger_batch(case, wanted, pp)]
    return Verdict(
        state="fires",
        level="information",
        reason=f"{micro_batches} micro-batches for {pp} stages{chunks}: the guides want {wanted} to "
        f"{wanted * MOST // PER_STAGE}",
        evidence=evidence,
        advice=advice,
        remedy="" if advice else _OTHERWISE,
        otherwise=_OTHERWISE,
        gain=bubble_ceiling(case),
        verify="Run again: the bubble in the pipeline section falls, and tokens per second rise.",
        false_alarm="A global batch that the training recipe fixes, or kernels that a smaller micro-batch "
        "makes slower than the bubble that it saves.",
    )


_OTHERWISE = (
    "A larger global batch, more virtual stages, or fewer stages where the model still fits, make up for few "
    "micro-batches."
)


def _smaller_micro_batch(case: Case, wanted: int, micro_batches: int) -> list[Advice]:
    """The largest smaller size that makes enough of them; else the smallest."""
    size = case.number("micro_batch_size")
    if not size or size < 2:
        return []
    smaller = [s for s in _divisors(size) if s < size]
    enough = [s for s in smaller if micro_batches * (size // s) >= wanted]
    to = max(enough, default=min(smaller))
    why = f"makes {micro_batches * (size // to)} micro-batches of the same global batch"
    return [Advice(knob="micro_batch_size", to=to, why=why, costs="smaller kernels, more launches")]


def _larger_batch(case: Case, wanted: int, pp: int) -> list[Advice]:
    """Where micro-batches hold one sequence already: as many as are wanted, whole groups of pp."""
    size, dp = case.number("micro_batch_size"), case.dp
    if size != 1 or not dp or case.number("global_batch_size") is None:
        return []
    why = f"makes {-(-wanted // pp) * pp} micro-batches"
    costs = "another optimisation: learning rate and schedule have to go with it"
    return [Advice(knob="global_batch_size", to=-(-wanted // pp) * pp * size * dp, why=why, costs=costs)]


def _divisors(number: int) -> list[int]:
    """Of a size up to 4,096; of larger ones only powers of two."""
    if number <= 4096:
        return [d for d in range(1, number + 1) if number % d == 0]
    return [1 << i for i in range(number.bit_length()) if number % (1 << i) == 0]
