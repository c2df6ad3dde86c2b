"""CPU stand-ins for "the current CUDA device" and for factories that ask for it.

Call sites in megatron-core 0.16.1: `torch.empty(…, device=torch.cuda.current_device())` in
tensor_parallel/{layers,mappings,utils}, param_and_grad_buffer, p2p_communication, distrib_optimizer, router;
`torch.zeros(…, device="cuda")` in schedules, clip_grads, grad_scaler, dist_checkpointing/exchange_utils;
`torch.tensor(…, pin_memory=True)` in rope_utils.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")

FACTORIES = (
    "arange",
    "as_tensor",
    "empty",
    "empty_like",
    "eye",
    "full",
    "full_like",
    "linspace",
    "ones",
    "ones_like",
    "rand",
    "randint",
    "randn",
    "randperm",
    "tensor",
    "zeros",
    "zeros_like",
)


def is_cuda(device: Any) -> bool:
    """Whether a device argument names a CUDA device; a bare number does, as in torch."""
    if isinstance(device, torch.device):
        return str(device.type) == "cuda"
    return type(device) is int or (isinstance(device, str) and device.startswith("cuda"))


def _on_cpu(factory: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(factory)
    def create(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            if is_cuda(kwargs.get("device")):
                kwargs["device"] = CPU
            kwargs.pop("pin_memory", None)  # pinning needs CUDA's allocator
        return factory(*args, **kwargs)

    return create


def _current_device() -> torch.device:
    return CPU


def _set_device(device: Any) -> None:
    del device


def install_devices() -> None:
    """Replace torch's factories and the device queries."""
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    torch.cuda.current_device = _current_device
    torch.cuda.set_device = _set_device
