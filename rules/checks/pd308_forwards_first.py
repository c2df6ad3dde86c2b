"""A schedule with all forward passes first (GPipe) stores the activations of every micro-batch; 1F1B stores
those of as many as there are stages. Memory then limits micro-batches, which enlarges the bubble."""

import numpy as np
from numpy.typing import NDArray

from perfdoc.analyzers.pipeline.passes import Passes
from perfdoc.rules.engine.needs import Missing, Need, given, skipped
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes, skips
from perfdoc.rules.facts.bubble import PIPELINE


def _no_passes(case: Case) -> Missing | None:
    ranks = [r.pipeline.passes for r in case.ranks if r.pipeline.state == "measured"]
    everywhere = ranks and len(ranks) == len(case.ranks) and all(len(p) for p in ranks)
    if case.job.pipeline.pp is not None and everywhere:
        return None
    return skipped("the passes of micro-batches are not known on all ranks")


META = Meta(
    title="All forward passes before the first backward pass",
    action="Run a 1F1B schedule",
    sources=("Megatron-LM guide",),
    topic="pipeline",
    needs=(PIPELINE, Need(words="the passes of micro-batches, on all ranks", missing=_no_passes)),
    advice=("pp_1f1b",),
)

IN_FLIGHT_RATIO = 3
"""Times the number of stages: 1F1B has no more forward passes in flight, per chunk if interleaved."""


def evaluate(case: Case) -> Verdict:
    """Fires if on every rank all forward passes of each step run before its first backward pass, and are more
    than 1F1B would have in flight: `IN_FLIGHT_RATIO` the number of stages x chunks."""
    pp, ranks = given(case.job.pipeline.pp), [r.pipeline.passes for r in case.ranks]
    chunks = case.job.pipeline.vpp or 1
    least = min(_forwards_first(p) for p in ranks)
    evidence = [("forward passes before the first backward pass, least of all ranks", str(least))]
    forwards = min(_fewest(p, p.is_forward) for p in ranks)
    if forwards <= IN_FLIGHT_RATIO * pp * chunks and least == forwards:
        return skips("too few micro-batches to distinguish the schedules")
    if least < forwards:
        return passes(evidence)
    return informs(
        reason=f"all {forwards} forward passes of a step run before its backward passes",
        evidence=evidence,
        remedy="Alternate one forward and one backward pass (1F1B, megatron-core's schedule). Its bubble is "
        "the same; the freed memory allows more micro-batches or less recomputation.",
        verify="Run again: the first backward pass begins after as many forward passes as there are stages.",
        false_alarm="A window with forward passes only, such as an evaluation.",
    )


def _forwards_first(passes: Passes) -> int:
    """Forward passes before the first backward pass, of the step that has fewest; none in a step without a
    backward pass."""
    back = ~passes.is_forward
    first = np.full(int(passes.step.max()) + 1, np.iinfo(np.int64).min)
    first[passes.step[back]] = np.iinfo(np.int64).max
    np.minimum.at(first, passes.step[back], passes.start_ns[back])
    return _fewest(passes, passes.is_forward & (passes.start_ns < first[passes.step]))


def _fewest(passes: Passes, which: NDArray[np.bool_]) -> int:
    """Of the steps that have passes, the least number of selected ones."""
    return int(np.bincount(passes.step, which)[np.unique(passes.step)].min())
