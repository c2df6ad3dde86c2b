"""Overlap of tensor- and expert-parallel communication that is off and can be switched on."""

from collections.abc import Iterator, Sequence

from perfdoc.rules.engine.advise import Advice, advise, needing, settle
from perfdoc.rules.engine.needs import GPUS, WINDOW, first_missing, several
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.degrees import EP, shapes_change
from perfdoc.rules.facts.exposed import ceiling_of_transfer, communication, judged

TP_NEEDS = (GPUS, WINDOW, communication("tp"))
"""Needs of every rule about tensor-parallel communication."""
EXPERT_RANKS = several(
    "an expert-parallel degree above 1, or unknown",
    lambda case: case.degree(EP),
    one="there is no expert parallelism",
)
EP_NEEDS = (GPUS, EXPERT_RANKS, WINDOW, communication("ep"))
"""Needs of every rule about expert-parallel communication."""
TP_OVERLAP, EP_OVERLAP = "tp_comm_overlap", "overlap_moe_expert_parallel_comm"
_SEQUENCE, _DISPATCHER = "sequence_parallel", "moe_token_dispatcher_type"
_SHARED, _DELAY = "moe_shared_expert_overlap", "delay_wgrad_compute"
_QUEUES = "cuda_device_max_connections"
_CLAIM = "guides claim 15 to 25 %, not predicted here"


def tp_overlap_allowed(case: Case) -> bool:
    """Whether exposed TP communication is a finding and the overlap is advised: its cost without overlap says
    little about the mapping."""
    if first_missing(case, TP_NEEDS) is not None or judged(case, "tp")[0] is not None:
        return False
    return _allowed(case, list(tp_overlap(case)), TP_OVERLAP)


def ep_overlap_allowed(case: Case) -> bool:
    """Whether exposed EP communication is a finding, and the 1F1B overlap is advised."""
    if first_missing(case, EP_NEEDS) is not None or judged(case, "ep")[0] is not None:
        return False
    return _allowed(case, [*exchange(case), *ep_overlap(case)], EP_OVERLAP)


def _allowed(case: Case, advice: Sequence[Advice], knob: str) -> bool:
    return any(p.knob == knob and not p.forbidden for p in settle(case, advice))


def tp_overlap(case: Case) -> Iterator[Advice]:
    """The TP overlap and what it needs, if it is known to be off and can be on."""
    if (
        not case.is_set_to(TP_OVERLAP, False)
        or shapes_change(case)
        or case.is_set_to("transformer_impl", "local")
    ):
        return
    gain = ceiling_of_transfer(case, "tp")
    first = []
    if case.is_set_to(_SEQUENCE, False):
        why = "shards norms and dropouts over the group: all-reduces become all-gathers and "
        why += "reduce-scatters, which can be overlapped"
        first.append(advise(knob=_SEQUENCE, to=True, why=why))
    overlap = advise(
        knob=TP_OVERLAP,
        to=True,
        why="moves pieces through user buffers during the GEMM before or after; a guide claims that it hides "
        "80 to 95 %",
        costs="needs static shapes, Transformer Engine layers, buffer memory and some SMs",
        gain=gain,
    )
    yield from needing(overlap, first)


def exchange(case: Case) -> list[Advice]:
    """The all-to-all dispatcher, if tokens are known to be all-gathered."""
    if not case.is_set_to(_DISPATCHER, "allgather"):
        return []
    why = "sends each token only to its experts' ranks, instead of all tokens to all ranks"
    return [advise(knob=_DISPATCHER, to="alltoall", why=why)]


def ep_overlap(case: Case) -> list[Advice]:
    """The EP overlap, between what it needs and what goes with it; available since megatron-core 0.16."""
    if not (case.is_set_to(EP_OVERLAP, False) or case.is_set_to(EP_OVERLAP, None)):
        return []  # Megatron-Bridge leaves null off
    found = []
    if case.is_set_to(_SHARED, True):
        why = "excluded by the EP overlap: both fill the same gaps, and megatron-core accepts one of them"
        found.append(advise(knob=_SHARED, to=False, why=why))
    if case.is_set_to(_QUEUES, 1):
        costs = "TP and CP overlap on Hopper needs 1: measure which gains more"
        why = "lets the all-to-all overlap with compute"
        found.append(advise(knob=_QUEUES, to=32, why=why, costs=costs))
    why = f"overlaps the forward pass of one micro-batch with the backward pass of another; {_CLAIM}"
    costs = "activations of one more micro-batch; torch 2.6 and megatron-core 0.16 or newer"
    overlap = advise(knob=EP_OVERLAP, to=True, why=why, costs=costs)
    then = []
    if case.is_set_to(_DELAY, False) or case.is_set_to(_DELAY, None):
        why = "keeps the weight gradients as compute that hides the all-to-all"
        then.append(advise(knob=_DELAY, to=True, why=why, costs="Transformer Engine 2.7 or newer"))
    return needing(overlap, found, then)
