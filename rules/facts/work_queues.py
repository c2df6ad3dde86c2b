"""The number of hardware work queues (CUDA_DEVICE_MAX_CONNECTIONS) that a job's overlaps need."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Missing, not_applicable, skipped
from perfdoc.rules.facts.degrees import CP, TP

MANY = 32
"""What Megatron-Bridge sets for several queues."""
FORMER = ("ampere", "ada", "hopper")
"""Architectures on which TP and CP overlap needs one queue."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The needed number of queues, and the overlap that needs it."""

    one: bool
    """One queue, else several."""
    why: str
    dimensions: tuple[str, ...]
    """Dimensions whose overlap suffers."""
    certain: bool = False
    """Whether frameworks refuse any other number."""


def wanted(case: Case) -> Wanted | Missing:
    """What the job's overlaps need, or why none depends on it or it is unknown."""
    gpu = case.gpu
    if gpu is None:
        return skipped("the GPU model is not known")
    if case.is_set_to("use_megatron_fsdp", True) or case.is_set_to("use_torch_fsdp2", True):
        why = "FSDP's weights all-gathers overlap with compute only with several queues"
        return Wanted(one=False, why=why, dimensions=("dp",), certain=True)
    if _experts_overlap(case):
        why = "overlapped expert parallelism (and DeepEP, HybridEP) need several queues"
        return Wanted(one=False, why=why, dimensions=("ep",))
    tp, cp = case.degree(TP), case.degree(CP)
    if tp == 1 and cp == 1:
        reason = "no tensor or context parallelism, no FSDP, no overlapped expert parallelism"
        return not_applicable(reason)
    if tp is None or cp is None:
        return skipped("the degrees of tensor and context parallelism are not known")
    if gpu.architecture not in FORMER:
        why = "a single queue serialises launches, and on Blackwell no overlap needs its order"
        return Wanted(one=False, why=why, dimensions=("tp", "cp"))
    why = "up to Hopper, TP and CP collectives start behind the GEMM that they should overlap with"
    return Wanted(one=True, why=why, dimensions=("tp", "cp"))


def _experts_overlap(case: Case) -> bool:
    return (
        case.is_set_to("overlap_moe_expert_parallel_comm", True)
        or case.is_set_to("moe_enable_deepep", True)
        or case.is_set_to("moe_token_dispatcher_type", "flex")
    )


def wants_several(case: Case) -> bool:
    """Whether an overlap that needs several queues is known to be on."""
    found = wanted(case)
    return isinstance(found, Wanted) and not found.one
