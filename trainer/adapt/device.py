"""CPU stand-ins for the current CUDA device, for tensors on it and for its random streams.

Call sites in megatron-core 0.16.1: `torch.empty(…, device=torch.cuda.current_device())` in
tensor_parallel/{layers,mappings,utils}, param_and_grad_buffer, p2p_communication, distrib_optimizer, router;
`torch.zeros(…, device="cuda")` in schedules, clip_grads, grad_scaler, dist_checkpointing/exchange_utils;
`torch.tensor(…, pin_memory=True)` in rope_utils.

`Tensor.type()`: clip_grads, optimizer and distrib_optimizer compare it with `torch.cuda.FloatTensor` and
friends. `Tensor.cuda()`, `.to("cuda")`: rope_utils, distrib_optimizer, exchange_utils, router,
language_module.
`Tensor.pin_memory()`, `.record_stream()`: param_and_grad_buffer, moe_utils, rope_utils.

Call site: tensor_parallel/random.py reads and sets the CUDA generator's state, through torch.cuda, through
`torch.cuda.default_generators` and through `_lazy_call`, which without CUDA would only queue the call.
"""

from __future__ import annotations

import functools
import logging
import sys
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


class _Generators:
    """`torch.cuda.default_generators[…]`: the CPU's generator, whatever the index."""

    def __getitem__(self, index: Any) -> torch.Generator:
        del index
        return torch.default_generator


class _CpuStateIsTheState(logging.Filter):
    """megatron-core warns when the CPU's generator moves inside a CUDA random context. Here it must."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "CPU RNG state changed" not in record.getMessage()


def _get_state(device: Any = None) -> torch.Tensor:
    del device
    return torch.get_rng_state()


def _set_state(state: torch.Tensor, device: Any = None) -> None:
    del device
    torch.set_rng_state(state)


def _seed(seed: int) -> None:
    torch.default_generator.manual_seed(seed)


def _call_now(function: Callable[[], Any], **kwargs: Any) -> None:
    del kwargs
    function()


def install_random_streams() -> None:
    """Point torch.cuda's random functions at the CPU's generator."""
    torch.cuda.default_generators = _Generators()
    for module in (torch.cuda, torch.cuda.random):
        module.get_rng_state = _get_state
        module.set_rng_state = _set_state
        module.manual_seed = _seed
    torch.cuda._lazy_call = _call_now
    logging.getLogger("megatron.core.tensor_parallel.random").addFilter(_CpuStateIsTheState())
