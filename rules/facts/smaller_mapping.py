"""Whether a model is split over more GPUs than its memory requires."""

from __future__ import annotations

from collections.abc import Callable

from perfdoc.analyzers.measure_device import RankMeasurement
from perfdoc.analyzers.memory.formula import Degrees
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import WINDOW, Missing, Need, first_missing, given, known, not_applicable
from perfdoc.rules.facts.bubble import bubble_grows
from perfdoc.rules.facts.degrees import DEGREES, batch_divides, degrees_of, layers_of, uses_fsdp
from perfdoc.rules.facts.exposed import exposed_ns
from perfdoc.rules.facts.memory_need import batch_of, device_bytes, fits

MIN_FRAC = 0.02
"""Of the window: exposed tensor- and pipeline-parallel communication, without waiting for late peers, which
belongs to PD305. Less is no finding."""
_MAX_DEGREE = 1024


def _not_split(case: Case) -> Missing | None:
    now = degrees_of(case)
    if now is None or now.tp * now.pp == 1:
        return not_applicable("the model is not split")
    return not_applicable("FSDP shards the weights") if uses_fsdp(case) else None


def _batch(case: Case) -> object:
    now = degrees_of(case)
    return None if now is None else batch_of(case, now)


NEEDS = (
    DEGREES,
    Need(words="a model split by TP or PP, not by FSDP", missing=_not_split),
    known(
        "the model's shape and the GPU's memory",
        lambda case: case.job.facts.model,
        device_bytes,
        reason="the model's shape or the GPU's memory is not known",
    ),
    known(
        "the batch and the sequence length", _batch, reason="the batch or the sequence length is not known"
    ),
    WINDOW,
)


def splits_too_far(case: Case) -> bool:
    """Whether a smaller mapping is known to fit and to gain: other rules on large degrees then pass."""
    if first_missing(case, NEEDS) is not None:
        return False
    share = given(case.share(splitting_ns(case)))
    return share >= MIN_FRAC and smallest_that_fits(case, given(degrees_of(case)), share) is not None


def splitting_ns(case: Case) -> Callable[[RankMeasurement], int]:
    """A rank's exposed TP and PP communication, less waiting for late peers if all stages were compared."""
    found = case.job.pipeline
    rows = found.stages if found.scope == "job" else ()
    late: dict[int | None, int] = {row.rank: row.late_peer_ns for row in rows if row.rank is not None}
    of_rank = {id(rank): device.rank for rank, device in zip(case.ranks, case.job.devices, strict=False)}

    def cost(rank: RankMeasurement) -> int:
        waits = late.get(of_rank.get(id(rank)), 0)
        return exposed_ns("tp")(rank) + max(0, exposed_ns("pp")(rank) - waits)

    return cost


def smallest_that_fits(case: Case, now: Degrees, share: float) -> tuple[Degrees, int, int] | None:
    """(the least split mapping estimated to fit, estimate now, estimate then); fewer stages are preferred to
    fewer tensor ranks. None if none is known to fit, its bubble would be larger, or exposed DP communication
    would grow by more than `share`."""
    layers = layers_of(case)
    if layers is None or max(now.tp, now.pp) > _MAX_DEGREE:
        return None
    options = [(tp * pp, pp, tp) for tp in _divisors(now.tp) for pp in _divisors(now.pp)]
    for _, pp, tp in sorted(o for o in options if o[0] < now.tp * now.pp):
        then = now.with_model_parallel(tp=tp, pp=pp)
        if then is None or then.expert_dp is None or not batch_divides(case, then.dp):
            continue
        if layers % (pp * then.vpp) or bubble_grows(case, now, then) > 0:
            continue
        if _more_exposed_dp(case, now, then) >= share:
            continue
        if (estimates := fits(case, now, then)) is not None:
            return then, *estimates
    return None


def _more_exposed_dp(case: Case, now: Degrees, then: Degrees) -> float:
    """Added exposed DP communication, of the time, if it grows with a GPU's parameters: 4 % on TP 2 are 4 %
    more on TP 1."""
    times = (now.tp * now.pp) / (then.tp * then.pp)
    return (times - 1) * (case.share(exposed_ns("dp")) or 0.0)


def _divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]
