"""CPU answers of tensor methods that megatron-core calls for CUDA tensors.

`Tensor.type()`: clip_grads, optimizer and distrib_optimizer compare it with `torch.cuda.FloatTensor` and
friends. `Tensor.cuda()`, `.to("cuda")`: rope_utils, distrib_optimizer, exchange_utils, router,
language_module.
`Tensor.pin_memory()`, `.record_stream()`: param_and_grad_buffer, moe_utils, rope_utils.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from perfdoc.trainer.adapt.device import CPU, is_cuda

_type = torch.Tensor.type
_to = torch.Tensor.to


def _reported_type(self: torch.Tensor, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
    """CUDA's type name, but for megatron's own code only: torch relies on the true one."""
    if dtype is not None:
        return _type(self, dtype, *args, **kwargs)
    name = _type(self)
    caller = sys._getframe(1).f_globals.get("__name__", "")
    if caller.startswith("megatron.") and name.startswith("torch.") and not name.startswith("torch.cuda."):
        return "torch.cuda." + name.removeprefix("torch.")
    return name


def _moved(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    if args and is_cuda(args[0]):
        args = (CPU, *args[1:])
    if is_cuda(kwargs.get("device")):
        kwargs["device"] = CPU
    return _to(self, *args, **kwargs)


def _itself(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    del args, kwargs
    return self


def _nothing(self: torch.Tensor, stream: Any) -> None:
    del self, stream


def install_tensors() -> None:
    """Replace the methods on torch.Tensor."""
    torch.Tensor.type = _reported_type
    torch.Tensor.to = _moved
    torch.Tensor.cuda = _itself
    torch.Tensor.pin_memory = _itself
    torch.Tensor.record_stream = _nothing
