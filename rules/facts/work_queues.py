"""How many hardware work queues (CUDA_DEVICE_MAX_CONNECTIONS) the overlaps of a job need."""

from __future__ import annotations

from dataclasses import dataclass

from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.needs import Missing, not_applicable, skipped
from perfdoc.rules.facts.degrees import CP, TP

MANY = 32
"""What Megatron-Bridge sets where several queues are wanted."""
FORMER = ("ampere", "ada", "hopper")
"""Architectures on which TP and CP want one queue."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A number of queues and whose overlap wants it."""

    one: bool
    """One queue, else several."""
    why: str
    dimensions: tuple[str, ...]
    """Whose overlap suffers."""
    certain: bool = False
    """Whether frameworks refuse the other."""


def wanted(case: Case) -> Wanted | Missing:
    """What the job's overlaps want, or why nothing does or that is not known."""
    gpu = case.gpu
    if gpu is None:
        return skipped("which GPUs these are is not known")
    if case.is_set_to("use_megatron_fsdp", True) or case.is_set_to("use_torch_fsdp2", True):
        why = "FSDP's gathers run beside compute only with several queues"
        return Wanted(one=False, why=why, dimensions=("dp",), certain=True)
    if _experts_overlap(case):
        why = "overlapped expert parallelism (and DeepEP, HybridEP) need several queues"
        return Wanted(one=False, why=why, dimensions=("ep",))
    tp, cp = case.degree(TP), case.degree(CP)
    if tp == 1 and cp == 1:
        reason = "neither tensor nor context parallelism, FSDP nor overlapped experts"
        return not_applicable(reason)
    if tp is None or cp is None:
        return skipped("the degrees of tensor and context parallelism are not known")
    if gpu.architecture not in FORMER:
        why = "on Blackwell nothing needs the order of a single queue, which serialises launches"
        return Wanted(one=False, why=why, dimensions=("tp", "cp"))
    why = "up to Hopper, TP and CP collectives slip behind the product that they should run beside"
    return Wanted(one=True, why=why, dimensions=("tp", "cp"))


def _experts_overlap(case: Case) -> bool:
    return (
        case.is_set_to("overlap_moe_expert_parallel_comm", True)
        or case.is_set_to("moe_enable_deepep", True)
        or case.is_set_to("moe_token_dispatcher_type", "flex")
    )


def wants_several(case: Case) -> bool:
    """Whether something is known to be on that needs several queues."""
    found = wanted(case)
    return isinstance(found, Wanted) and not found.one
