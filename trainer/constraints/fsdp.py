"""Rules of FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfdoc.trainer.constraints.rule import Rule

_KEY = "parallel.use_torch_fsdp2"


def _with_fsdp2(broken: Callable[[Any, Any], bool]) -> Callable[[Any, Any, str], bool]:
    return lambda c, s, d: c.parallel.use_torch_fsdp2 and broken(c, s)


FSDP2: tuple[Rule, ...] = (
    (
        _KEY,
        _with_fsdp2(lambda c, s: s.pp > 1 or s.ep > 1),
        "needs pipeline_model_parallel_size 1 and expert_model_parallel_size 1",
    ),
    (
        _KEY,
        _with_fsdp2(lambda c, s: c.optimizer.use_distributed_optimizer),
        "shards the optimizer by itself: needs use_distributed_optimizer=false",
    ),
    (
        _KEY,
        _with_fsdp2(lambda c, s: c.overlap.overlap_grad_reduce),
        "overlaps by itself: needs overlap_grad_reduce=false",
    ),
    (
        _KEY,
        _with_fsdp2(lambda c, s: not c.model.untie_embeddings_and_output_weights),
        "shards the embedding apart from the output layer: needs untie_embeddings_and_output_weights=true",
    ),
    (
        _KEY,
        _with_fsdp2(lambda c, s: c.precision.params_dtype == "fp16"),
        "needs params_dtype fp32 or bf16",
    ),
    (
        "precision.grad_reduce_in_fp32",
        _with_fsdp2(lambda c, s: c.precision.grad_reduce_in_fp32 and c.precision.params_dtype == "bf16"),
        "FSDP2 reduces the gradients of bf16 weights in bf16: needs grad_reduce_in_fp32=false",
    ),
    (
        "checkpoint.save",
        _with_fsdp2(lambda c, s: (c.checkpoint.save or c.checkpoint.load) is not None),
        "checkpoints of FSDP2 runs are not written yet",
    ),
)
