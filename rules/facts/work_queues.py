"""The number of hardware work queues (CUDA_DEVICE_MAX_CONNECTIONS) that a job's overlaps need, FSDP's above
all, and the settings that switch FSDP on."""

from collections.abc import Mapping, Sequence

from perfdoc.knobs.knob import Value
from perfdoc.records import dataclass
from perfdoc.rules.engine.advise import Advice, advise, needing
from perfdoc.rules.engine.needs import Missing, not_applicable, skipped
from perfdoc.rules.engine.rule import Case
from perfdoc.rules.facts.degrees import CP, TP

MEGATRON, TORCH = "use_megatron_fsdp", "use_torch_fsdp2"
QUEUES = "cuda_device_max_connections"
NEMO = "fsdp_strategy_nemo"
"""NeMo's selector, in place of both switches."""
_OPTIMIZER = "use_distributed_optimizer"
_MEGATRON_WANTS: Mapping[str, tuple[Value, str]] = {
    _OPTIMIZER: (True, "megatron-core's FSDP writes updated shards back through it"),
    "overlap_grad_reduce": (True, "reduces each layer's gradients during the backward pass"),
    "overlap_param_gather": (True, "gathers each layer's weights during the previous layer's compute"),
}
_MEGATRON_EXCLUDES = ("gradient_accumulation_fusion", "average_in_collective")
_TORCH_EXCLUDES = {
    _OPTIMIZER: "FSDP2 shards the optimizer itself",
    "gradient_accumulation_fusion": "it writes into Megatron's gradient buffer, which FSDP2 has not",
    "overlap_param_gather": "FSDP2 prefetches by itself",
    "overlap_grad_reduce": "FSDP2 reduces by itself",
    "grad_reduce_in_fp32": "FSDP2 sums the gradients of bf16 weights in bf16",
}


def megatron_fsdp(case: Case, why: str, first: Sequence[Advice] = ()) -> list[Advice]:
    """megatron-core's FSDP of weights, gradients and optimizer states. why: for the switch.
    first: what must be so before it."""
    sharding = "shards weights, gradients and optimizer states"
    sharded = advise(knob="data_parallel_sharding_strategy", to="optim_grads_params", why=sharding)
    if case.configuration.dialect == "nemo":
        switch = advise(knob=NEMO, to="megatron", why=why, costs="another checkpoint layout")
        return needing(switch, first, [sharded])
    found = [*first]
    found += [
        advise(knob=knob, to=False, why="megatron-core's FSDP has gradient buffers of its own")
        for knob in _MEGATRON_EXCLUDES
        if case.is_set_to(knob, True)
    ]
    found += [
        advise(knob=knob, to=to, why=because)
        for knob, (to, because) in _MEGATRON_WANTS.items()
        if not case.is_set_to(knob, to)
    ]
    switch = advise(knob=MEGATRON, to=True, why=why, costs="another checkpoint layout")
    return needing(switch, found, [sharded])


def torch_fsdp2(case: Case, why: str) -> list[Advice]:
    """PyTorch's FSDP2, which shards the same. why: for the switch."""
    if case.configuration.dialect == "nemo":
        return [advise(knob=NEMO, to="pytorch", why=why, costs="another checkpoint layout, and more copies")]
    found = [
        advise(knob=knob, to=False, why=because)
        for knob, because in _TORCH_EXCLUDES.items()
        if case.is_set_to(knob, True)
    ]
    switch = advise(knob=TORCH, to=True, why=why, costs="another checkpoint layout, and more copies")
    return needing(switch, found)


def several_queues(case: Case) -> list[Advice]:
    """More than the one hardware queue that is known to be set."""
    if not case.is_set_to(QUEUES, 1):
        return []
    return [advise(knob=QUEUES, to=MANY, why="with one queue FSDP's all-gathers wait behind compute")]


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
    if (
        case.is_set_to("overlap_moe_expert_parallel_comm", True)
        or case.is_set_to("moe_enable_deepep", True)
        or case.is_set_to("moe_token_dispatcher_type", "flex")
    ):
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


def wants_several(case: Case) -> bool:
    """Whether an overlap that needs several queues is known to be on."""
    found = wanted(case)
    return isinstance(found, Wanted) and not found.one
