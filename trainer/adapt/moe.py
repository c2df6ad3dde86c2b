"""Mixture-of-experts without Transformer Engine, and token counts without a device.

Call sites: transformer/moe/moe_utils.py uses `te_general_gemm` although the name is only bound when
Transformer Engine imports (RouterGatingLinearFunction); token_dispatcher.py gives the all-to-all its split
sizes through `maybe_move_tensor_to_cpu(…, as_numpy=True)`, which converts CUDA tensors only, and the
all-to-all needs plain numbers.
"""

from __future__ import annotations

from typing import Any

import torch


def _counts_as_numpy(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    del record_stream
    if as_numpy and torch.is_tensor(tensor):
        return tensor.numpy()
    return tensor


def install_moe(*, on_cpu: bool) -> None:
    """Bind the missing name; on a CPU also convert counts."""
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None
    if on_cpu:
        moe_utils.maybe_move_tensor_to_cpu = _counts_as_numpy
        token_dispatcher.maybe_move_tensor_to_cpu = _counts_as_numpy
