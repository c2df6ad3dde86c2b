"""Whether a model is split over more GPUs than its memory requires, and what to use instead."""

from collections.abc import Callable

from perfdoc.analyzers.memory.formula import Degrees, parameters_of, sharded_bytes
from perfdoc.records import dataclass
from perfdoc.results.figures import brief, gib
from perfdoc.rules.engine.advise import Advice, advise, all_or_none, needing
from perfdoc.rules.engine.gain import RankMeasurement
from perfdoc.rules.engine.needs import WINDOW, Missing, Need, first_missing, given, known, not_applicable
from perfdoc.rules.engine.rule import Case, Evidence
from perfdoc.rules.facts.bubble import bubble_grows, without_chunks
from perfdoc.rules.facts.degrees import (
    CP,
    DEGREES,
    PP,
    TP,
    degrees_of,
    divisors,
    layers_of,
    uses_fsdp,
    without_tensor_ranks,
)
from perfdoc.rules.facts.exposed import exposed_ns, usual_link
from perfdoc.rules.facts.memory_need import FIT_FRAC, batch_of, device_bytes, fits
from perfdoc.rules.facts.work_queues import megatron_fsdp, several_queues, torch_fsdp2


def halved(case: Case) -> list[Advice]:
    """Half of TP or CP, the larger one, if the model is estimated to fit and the bubble does not grow."""
    now = degrees_of(case)
    if now is None:
        return []
    knob, degree = (TP, now.tp) if now.tp >= now.cp else (CP, now.cp)
    if degree % 2:
        return []
    tp, cp = (degree // 2, now.cp) if knob == TP else (now.tp, degree // 2)
    then = now.with_model_parallel(tp=tp, pp=now.pp, cp=cp)
    if then is None or then.expert_dp is None or (estimates := fits(case, now, then)) is None:
        return []
    if bubble_grows(case, now, then) > 0:
        return []
    why = f"twice the work in each kernel; estimated {gib(estimates[1], 3)} on the fullest GPU"
    half = advise(knob=knob, to=degree // 2, why=why, costs="twice the weights or activations per GPU")
    return all_or_none(case, needing(half, without_tensor_ranks(case) if then.tp == 1 else []))


def fsdp_instead(case: Case) -> list[Advice]:
    """FSDP in place of tensor parallelism, if it is estimated to fit and the measured compute to hide its
    traffic."""
    now, count, memory = degrees_of(case), parameters_in(case), device_bytes(case)
    if now is None or count is None or memory is None or now.tp == 1 or uses_fsdp(case):
        return []
    need, traffic = need_bytes(case, now), traffic_of(case, now, count)
    if need is None or need > FIT_FRAC * memory or traffic is None or not traffic.is_hidden:
        return []
    return whole_layers(case, now)


def parameters_in(case: Case) -> int | None:
    """Those that the job says, else by the layers; None without the model's shape."""
    shape = case.job.facts.model
    if shape is None:
        return None
    dense, experts, embedding = parameters_of(shape)
    return shape.parameters or dense + experts + 2 * embedding


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What FSDP would send in a step, and the compute beside it."""

    sent_ns: int
    compute_ns: int
    gbps: float

    @property
    def is_hidden(self) -> bool:
        """Whether compute can hide it."""
        return self.sent_ns <= self.compute_ns

    @property
    def evidence(self) -> list[Evidence]:
        """Both."""
        return [
            (f"FSDP's own traffic in a step, at {self.gbps:.0f} GB/s", brief(self.sent_ns)),
            ("compute in a step, mean over ranks", brief(self.compute_ns)),
        ]


def traffic_of(case: Case, now: Degrees, parameters: int) -> Traffic | None:
    """Weights gathered twice and gradients reduced for each micro-batch, in 2 bytes. None where the batch or
    the steps are not known, nor the links."""
    then, link = now.with_model_parallel(tp=1, pp=1), usual_link(case, now.world, 1)
    batch = None if then is None else batch_of(case, then)
    compute_ms = case.per_step_ms(lambda rank: rank.ledger.compute)
    if batch is None or compute_ms is None or link is None:
        return None
    sent_ns = round(3 * 2 * parameters * batch.micro_batches / link.gbps)
    return Traffic(sent_ns=sent_ns, compute_ns=round(compute_ms * 1e6), gbps=link.gbps)


def need_bytes(case: Case, now: Degrees) -> int | None:
    """Memory of a GPU under FSDP, by formula; None if an input is unknown."""
    then = now.with_model_parallel(tp=1, pp=1)
    batch = None if then is None else batch_of(case, then)
    shape = case.job.facts.model
    if then is None or batch is None or shape is None or min(shape.layers, shape.hidden_size) < 1:
        return None
    return sharded_bytes(shape, then, batch)


def whole_layers(case: Case, now: Degrees) -> list[Advice]:
    """megatron-core's FSDP; PyTorch's where the configuration forbids that one."""
    whole = _unsplit(case, now.tp, now.pp, now.vpp)
    why = "gathers each layer's weights during the previous layer's compute"
    ways = (megatron_fsdp, torch_fsdp2)
    return next((found for way in ways if (found := all_or_none(case, [*whole, *way(case, why)]))), [])


def _unsplit(case: Case, tp: int, pp: int, vpp: int) -> list[Advice]:
    """Neither tensor nor pipeline ranks, prerequisites first."""
    found = []
    if vpp > 1:
        found += without_chunks(case)
    if pp > 1:
        found.append(advise(knob=PP, to=1, why="whole layers on each GPU, sharded by FSDP"))
    found += without_tensor_ranks(case)
    if tp > 1:
        found.append(advise(knob=TP, to=1, why="whole layers on each GPU, sharded by FSDP"))
    return found + several_queues(case)


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
    options = [(tp * pp, pp, tp) for tp in divisors(now.tp) for pp in divisors(now.pp)]
    for _, pp, tp in sorted(o for o in options if o[0] < now.tp * now.pp):
        then = now.with_model_parallel(tp=tp, pp=pp)
        if then is None or then.expert_dp is None or case.micro_batches_over(then.dp) is None:
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
