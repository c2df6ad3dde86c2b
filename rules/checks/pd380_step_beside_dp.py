"""Gradients are reduced in the last micro-batch of a step and weights gathered in the first. Spread over more
replicas a batch leaves few of them, in the end one: then what that communication costs, what it takes from
the kernels beside it, and every late rank set the time of the step."""

from collections.abc import Callable

from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.gain import RankMeasurement
from perfdoc.rules.engine.needs import GPUS, given, known, several
from perfdoc.rules.engine.rule import Case, Meta, Verdict, informs, passes, skips
from perfdoc.rules.facts.exposed import exposed_ns, seen, transfer_ns, waited_ns

META = Meta(
    title="Step dominated by data-parallel communication",
    action="Spread data-parallel communication over a larger step",
    sources=("Megatron-Bridge guide", "NeMo guide", "megatron-core notes"),
    topic="scale",
    needs=(
        GPUS,
        several(
            "more than one replica, or an unknown number",
            lambda case: case.dp,
            one="there are no replicas of the model",
        ),
        known("the number of micro-batches", lambda case: case.micro_batches),
    ),
    advice=("scale_few_microbatches",),
)

MAX_MICRO_BATCHES = 2
"""Micro-batches of a step on each pipeline: global batch / (micro-batch x DP)."""
MIN_FRAC = 0.5
"""Of the window, mean over ranks: DP transfer, hidden or not."""


def evaluate(case: Case) -> Verdict:
    """Fires, as information, where a step has `MAX_MICRO_BATCHES` micro-batches or fewer and DP
    communication, waiting for late ranks left out, runs for `MIN_FRAC` of the window."""
    count = given(case.micro_batches)
    evidence = [("micro-batches of a step", str(count))]
    if count > MAX_MICRO_BATCHES:
        return passes(evidence)
    share, exposed = case.share(_dp_ns(case)), case.share(exposed_ns("dp"))
    if not seen(case, "dp") or share is None or exposed is None:
        return skips("no DP communication is known in the capture", evidence)
    evidence.append(("DP transfer, at least, mean over ranks", per_cent(share)))
    evidence.append(("exposed DP communication", per_cent(exposed)))
    if case.dp is not None:
        evidence.append(("replicas (DP)", f"{case.dp:,}"))
    if share < MIN_FRAC:
        return passes(evidence)
    return informs(
        reason=f"{count} micro-batch{'es' if count > 1 else ''} a step on each pipeline",
        evidence=evidence,
        remedy="In this order: fewer bytes (PD101), faster collectives (PD103), SMs for the kernels beside "
        "them (PD110, PD113), ranks that come together (PD202, PD206, PD303). More replicas will shorten the "
        "step little.",
        verify="Run again: DP communication takes a smaller share of the window.",
        false_alarm="A capture of a smaller batch than the job's own.",
    )


def _dp_ns(case: Case) -> Callable[[RankMeasurement], int]:
    """At least: rows may run at once, so the longest of them, or what is exposed of them all; without waiting
    for late ranks, as far as that was measured."""
    transfer, wait = transfer_ns(case, "dp"), waited_ns(case, "dp")

    def of(rank: RankMeasurement) -> int:
        rows = (row.total_ns for row in rank.communication if row.dimension == "dp")
        return max(max(rows, default=0) - wait(rank), transfer(rank))

    return of
