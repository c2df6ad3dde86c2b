"""Norms for runs without Transformer Engine.

Call site: megatron-core's `WrappedTorchNorm` asserts that sequence parallelism is off. With it on, the
weight's
gradient is summed over the tensor-parallel group (distributed/finalize_model_grads.py) for parameters that
carry `sequence_parallel`, and that mark is all that is missing.
"""

from __future__ import annotations

from typing import Any

import torch


class Norm:
    """Builds torch's RMSNorm or LayerNorm over the hidden size, its parameters marked."""

    def __new__(cls, config: Any, hidden_size: int, eps: float = 1e-5, **kwargs: Any) -> Any:
        """The signature that megatron-core's specs call; `kwargs` holds what only fused norms use."""
        del kwargs
        kinds = {"RMSNorm": torch.nn.RMSNorm, "LayerNorm": torch.nn.LayerNorm}
        norm = kinds[config.normalization](hidden_size, eps=eps, dtype=config.params_dtype)
        norm = norm.to(torch.cuda.current_device())
        for parameter in norm.parameters():
            parameter.sequence_parallel = config.sequence_parallel
        return norm
