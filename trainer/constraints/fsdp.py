"""Sharding by Megatron FSDP, as megatron-core 0.16.1 builds it (mcore_fsdp_adapter, MegatronFSDP)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfdoc.trainer.constraints.definition import Rule

_SWITCH, _STRATEGY = "fsdp.use_megatron_fsdp", "fsdp.data_parallel_sharding_strategy"


def _sharded(broken: Callable[[Any], bool]) -> Callable[[Any, Any, str], bool]:
    return lambda c, s, d: c.fsdp.use_megatron_fsdp and broken(c)


FSDP: tuple[Rule, ...] = (
    (
        _SWITCH,
        lambda c, s, d: c.fsdp.use_megatron_fsdp and d == "cpu",
        "needs CUDA: it makes CUDA devices by name; use_torch_fsdp2 runs on a CPU",
    ),
    (
        _SWITCH,
        _sharded(lambda c: not c.optimizer.use_distributed_optimizer),
        "needs use_distributed_optimizer, which writes the updated shards back into its buffers",
    ),
    (
        _STRATEGY,
        _sharded(
            lambda c: (
                c.fsdp.data_parallel_sharding_strategy in ("optim_grads", "optim_grads_params")
                and not c.overlap.overlap_grad_reduce
            )
        ),
        "reduces gradients during the backward pass: needs overlap_grad_reduce=true",
    ),
    (
        _STRATEGY,
        _sharded(
            lambda c: (
                c.fsdp.data_parallel_sharding_strategy == "optim_grads_params"
                and not c.overlap.overlap_param_gather
            )
        ),
        "gathers parameters layer by layer: needs overlap_param_gather=true",
    ),
    (
        "parallel.num_distributed_optimizer_instances",
        _sharded(
            lambda c: c.parallel.num_distributed_optimizer_instances > 1 and bool(c.moe.num_moe_experts)
        ),
        "hybrid FSDP makes no group for experts: needs 1 with num_moe_experts",
    ),
    *(
        (
            f"{section}.{name}",
            _sharded(lambda c, section=section, name=name: getattr(getattr(c, section), name)),  # type: ignore[misc]
            "Megatron FSDP, which is on, keeps gradients in buffers of its own: needs false",
        )
        for section, name in (
            ("kernels", "gradient_accumulation_fusion"),
            ("overlap", "average_in_collective"),
            ("overlap", "overlap_param_gather_with_optimizer_step"),
        )
    ),
    (
        "checkpoint.save",
        _sharded(lambda c: (c.checkpoint.save or c.checkpoint.load) is not None),
        "checkpoints of Megatron FSDP runs (fsdp_dtensor) are not written yet",
    ),
)
