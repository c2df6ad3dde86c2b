"""GEMMs of a large model reach 60 to 80 % of the peak; one that is far below has an unlucky shape or layout,
an old library's kernel, or a throttled clock. Of any other operator whose calls are long, a quarter of its
roofline is little: attention and convolutions reach 30 to 70 %, kernels that memory bounds 60 to 90 %."""

from perfdoc.analyzers.efficiency.gemms import best_frac, bound_by_flops, odd_sizes
from perfdoc.results.efficiency import OperatorEfficiency
from perfdoc.results.figures import per_cent
from perfdoc.rules.engine.gain import RankMeasurement, bound_of, ceiling, time_share
from perfdoc.rules.engine.needs import GPUS, WINDOW
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.roofline import WORK, beyond_ns, most_by_replay, of_roofline, worst

META = Meta(
    title="GEMMs and other operators below the roofline",
    action="Bring slow GEMMs to the rate of the best",
    sources=("stas00, Machine Learning Engineering (MAMF)",),
    topic="fusion",
    needs=(GPUS, KERNELS, WINDOW, WORK),
)

MIN_FRAC = 0.05
"""Of the window, mean over ranks."""
FAR_FRAC = 0.25
"""Of its roofline: an operator below it is far below."""
FAR_MIN_FRAC = 0.1
"""Of the window, mean over ranks: what such operators take beyond their roofline."""
_STARTS_NS = 10_000
"""Of a call, mean: what it may take beyond its roofline to begin and to end."""
_KEY = "gemms_at_best"
_AT_BEST = "these GEMMs at the share of the roofline that the best one reaches"


def evaluate(case: Case) -> Verdict:
    """Fires where GEMMs take `MIN_FRAC` of the window more than at the share of the roofline that the best of
    them reaches, or where operators far below the roofline lose as much as `FAR_MIN_FRAC`."""
    share, evidence = time_share(case, "beyond the rate of the best GEMM", _beyond_best_ns)
    far_share, far_evidence = time_share(case, "beyond the roofline, of operators far below it", _far_ns)
    if far_share >= max(FAR_MIN_FRAC, share):
        return fires(
            reason="operators reach less than a quarter of their roofline",
            evidence=[*map(of_roofline, worst(case, _far)), *far_evidence],
            action="Bring slow operators nearer to their roofline",
            remedy="Try other kernels: for GEMMs PYTORCH_TUNABLEOP_ENABLED=1 times all on an AMD GPU; "
            "contiguous operands (convolutions: channels_last); a newer library. Small ones fill few SMs: "
            "batch them. Where they are faster alone: clocks and power (PD406), or their company.",
            gain=ceiling(case, _far_ns, "these operators at their roofline"),
            verify="Run again: the operators' table shows their TFLOP/s and TB/s.",
            false_alarm="Scattered reads and writes, which no memory does at its full bandwidth.",
        )
    if share < MIN_FRAC:
        return passes(evidence)
    return fires(
        reason="some GEMMs reach much less of their roofline than others of the same job",
        evidence=[
            *evidence,
            ("best GEMM, of its roofline", per_cent(max(best_frac(_bound(r)) for r in case.ranks))),
            *map(of_roofline, worst(case, _bound)),
        ],
        remedy="Time these shapes alone (perfdoc peak shows what the device reaches). Where they are as "
        "slow alone: pad or transpose operands, make them larger, try a newer cuBLAS. Where "
        "they are faster alone: clocks and power (PD406), or communication beside them (PD113).",
        gain=bound_of(case, _KEY, most_by_replay(case, _KEY, _beyond_best_ns, _AT_BEST)),
        verify="Run again: the operators' table shows their TFLOP/s.",
        false_alarm="Small GEMMs whose launch takes as long as they do.",
    )


def _far(rank: RankMeasurement) -> list[OperatorEfficiency]:
    """Not those whose sizes say why (PD410), nor lists of small tensors: many kernels a call update them."""
    known = rank.efficiency.operators
    low = [i for i, o in enumerate(known) if (o.roofline_frac or 1.0) < FAR_FRAC]
    low = [i for i in low if beyond_ns(known[i]) > _STARTS_NS * known[i].calls]
    odd = odd_sizes(known) if low else []
    lists = [o.kernel_class == "optimizer" and o.time_ns - beyond_ns(o) < _STARTS_NS * o.calls for o in known]
    return [known[i] for i in low if not odd[i] and not lists[i]]


def _far_ns(rank: RankMeasurement) -> int:
    return min(round(sum(map(beyond_ns, _far(rank)))), rank.ledger.compute)


def _bound(rank: RankMeasurement) -> list[OperatorEfficiency]:
    return bound_by_flops(rank.efficiency.operators)


def _beyond_best_ns(rank: RankMeasurement) -> int:
    best = best_frac(_bound(rank))
    if not best:
        return 0
    slow = sum(o.time_ns * max(0.0, 1 - (o.roofline_frac or 0.0) / best) for o in _bound(rank))
    return min(round(slow), rank.ledger.compute)
