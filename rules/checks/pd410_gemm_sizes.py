"""Tensor cores load rows of 16 bytes; a size that these do not divide takes slower kernels, without tensor
cores or with copies, and the tiles at the edge compute on nothing."""

from perfdoc.analyzers.efficiency.gemms import MULTIPLES, odd_sizes, padded
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.rules.engine.gain import Gain, RankMeasurement, bound_of, time_evidence, worth_frac
from perfdoc.rules.engine.needs import GPUS, WINDOW, given
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.roofline import WORK, beyond_ns, holds, most_by_replay, of_roofline, worst

META = Meta(
    title="GEMM sizes off the tensor cores' multiples",
    action="Pad GEMM sizes to multiples of 16 bytes",
    sources=("NVIDIA, Matrix Multiplication Background User's Guide",),
    topic="fusion",
    needs=(GPUS, KERNELS, WINDOW, WORK),
)

MIN_FRAC = 0.02
"""Of the step: predicted gain of padding; of the window where nothing is predicted: what these GEMMs take
beyond their roofline, mean over ranks."""
_KEY = "padded_gemms"


def evaluate(case: Case) -> Verdict:
    """Fires where padding GEMMs with such a size gains `MIN_FRAC` of the step, at the rate that others of the
    capture reach, by replay. Without others, where they lose as much of the window beyond their roofline."""
    share, gain = given(case.share(_lost_ns)), _gain(case)
    evidence = time_evidence(case, "beyond the roofline, in GEMMs of such sizes", share, _lost_ns)
    by_peers = gain is not None and gain.is_predicted
    if (min(worth_frac(case, _KEY), share) if by_peers else share) < MIN_FRAC:
        return passes(evidence)
    named = worst(case, _odd)
    size, least = odd_sizes(named)[0][0], MULTIPLES[named[0].dtype]
    by = " (make_vocab_size_divisible_by)" if case.framework == "megatron" else ""
    return fires(
        reason=f"GEMMs have sizes that are no multiples, such as {size:,}",
        evidence=[*evidence, *map(of_roofline, named)],
        remedy=f"Pad {size:,} to {-(-size // least) * least:,}, a multiple of {least}: 16 bytes in "
        f"{named[0].dtype}. A vocabulary{by} or a hidden size better to one of 64.",
        gain=gain,
        verify="Run again: these GEMMs reach the TFLOP/s of their neighbours.",
        false_alarm="A size that is a layer's nature and small, such as a head of few classes.",
    )


def _gain(case: Case) -> Gain | None:
    """Predicted where GEMMs of even sizes in the capture show what padded ones reach."""
    found = case.prediction(_KEY)
    if found is not None and not found.left_out and holds(case, found.gain, _saved_ns):
        return found.gain
    most = most_by_replay(case, _KEY, _lost_ns, "what these GEMMs take beyond their roofline")
    return bound_of(case, _KEY, most)


def _saved_ns(rank: RankMeasurement) -> int:
    operators = rank.efficiency.operators
    stays = padded(operators).stays_frac
    return round(sum(o.time_ns * (1 - frac) for o, frac in zip(operators, stays, strict=True)))


def _lost_ns(rank: RankMeasurement) -> int:
    return min(round(sum(map(beyond_ns, _odd(rank)))), rank.ledger.compute)


def _odd(rank: RankMeasurement) -> list[OperatorEfficiency]:
    """GEMMs of such sizes."""
    operators = rank.efficiency.operators
    each = zip(operators, odd_sizes(operators), strict=True)
    return [o for o, sizes in each if sizes and o.roofline_frac is not None]
