"""Switching on FSDP, with all that megatron-core wants beside the switch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfdoc.knobs.knob import Value
from perfdoc.results.rules import Advice
from perfdoc.rules.engine.advise import advise, needing
from perfdoc.rules.engine.case import Case
from perfdoc.rules.facts.work_queues import MANY

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
