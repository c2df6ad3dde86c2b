"""A GEMM takes as long as the SM with the most thread blocks: 140 blocks on 132 SMs take as long as 264."""

from perfdoc.analyzers.base.ceilings import ceilings_of
from perfdoc.rules.engine.gain import RankMeasurement, bound_of, time_share
from perfdoc.rules.engine.needs import GPUS, WINDOW, known
from perfdoc.rules.engine.rule import Case, Meta, Verdict, fires, passes
from perfdoc.rules.facts.capture import KERNELS
from perfdoc.rules.facts.roofline import WORK, lost_ns, most_by_replay


def _sms(case: Case) -> bool | None:
    facts = case.job.facts
    each = (r.device.sm_count or ceilings_of(facts, r.device.gpu_name).sm_count for r in case.ranks)
    return True if all(each) else None


META = Meta(
    title="GEMMs that leave SMs idle",
    action="Give each GEMM more rows",
    sources=("NVIDIA, Matrix Multiplication Background User's Guide",),
    topic="fusion",
    needs=(GPUS, KERNELS, WINDOW, WORK, known("the number of SMs", _sms)),
)

MIN_FRAC = 0.03
"""Of the window, mean over ranks."""

_KEY = "full_waves"
_FULL = "the time of SMs without blocks at the GEMMs' peak"


def evaluate(case: Case) -> Verdict:
    """Fires where small grids and last waves of GEMMs lose `MIN_FRAC` of the window."""
    share, evidence = time_share(case, "SMs without blocks in GEMMs", _shape_ns)
    if share < MIN_FRAC:
        return passes(evidence)
    return fires(
        reason="GEMMs have too few thread blocks for the SMs, or a last wave that is nearly empty",
        evidence=evidence,
        remedy="Make the GEMMs larger: a larger micro-batch where memory allows, less tensor parallelism, "
        "GEMMs of one input put together (queries, keys and values; gate and up), grouped GEMMs for experts; "
        "or take a stream-K or split-K kernel.",
        gain=bound_of(case, _KEY, most_by_replay(case, _KEY, _shape_ns, _FULL)),
        verify="Run again: GEMMs reach more TFLOP/s; compare tokens a second.",
        false_alarm="GEMMs that run beside others which fill the SMs.",
    )


def _shape_ns(rank: RankMeasurement) -> int:
    return lost_ns(rank, "shape", ("gemm",))
