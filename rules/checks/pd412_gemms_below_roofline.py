"""GEMMs of a large model reach 60 to 80 % of the peak; one that is far below has an unlucky shape or layout,
an old library's kernel, or a throttled clock."""

from perfdoc.analyzers.efficiency.gemms import best_frac, bound_by_flops
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.gain import RankMeasurement, bound_of, time_share
from perfdoc.rules.engine.needs import GPUS, WINDOW
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.roofline import WORK, most_by_replay, of_roofline

META = Meta(
    title="GEMMs below the roofline",
    action="Bring slow GEMMs to the rate of the best",
    sources=("stas00, Machine Learning Engineering (MAMF)",),
    topic="fusion",
    needs=(GPUS, KERNELS, WINDOW, WORK),
)

MIN_FRAC = 0.05
"""Of the window, mean over ranks."""
_NAMED = 3
_KEY = "gemms_at_best"
_AT_BEST = "these GEMMs at the share of the roofline that the best one reaches"


def evaluate(case: Case) -> Verdict:
    """Fires where GEMMs take `MIN_FRAC` of the window more than at the share of the roofline that the best of
    them reaches."""
    share, evidence = time_share(case, "beyond the rate of the best GEMM", _beyond_best_ns)
    if share < MIN_FRAC:
        return passes(evidence)
    slow = sorted(
        (o for r in case.ranks for o in _bound(r)), key=lambda o: o.time_ns * ((o.roofline_frac or 0.0) - 1)
    )
    named = list({(o.name, o.shapes, o.dtype): o for o in reversed(slow)}.values())[::-1][:_NAMED]
    return fires(
        reason="some GEMMs reach much less of their roofline than others of the same job",
        evidence=[
            *evidence,
            ("best GEMM, of its roofline", per_cent(max(_best(r) for r in case.ranks))),
            *(of_roofline(o) for o in named),
        ],
        remedy="Time these shapes alone (perfdoc peak shows what the device reaches). Where they are as "
        "slow alone: pad or transpose operands, make them larger, try a newer cuBLAS. Where "
        "they are faster alone: clocks and power (PD406), or communication beside them (PD113).",
        gain=bound_of(case, _KEY, most_by_replay(case, _KEY, _beyond_best_ns, _AT_BEST)),
        verify="Run again: the operators' table shows their TFLOP/s.",
        false_alarm="Small GEMMs whose launch takes as long as they do.",
    )


def _bound(rank: RankMeasurement) -> list[OperatorEfficiency]:
    return bound_by_flops(rank.efficiency.operators)


def _best(rank: RankMeasurement) -> float:
    return best_frac(rank.efficiency.operators)


def _beyond_best_ns(rank: RankMeasurement) -> int:
    best = _best(rank)
    if not best:
        return 0
    slow = sum(o.time_ns * max(0.0, 1 - (o.roofline_frac or 0.0) / best) for o in _bound(rank))
    return min(round(slow), rank.ledger.compute)
