"""CPU stand-ins for the current CUDA device, for tensors on it, its random streams, its streams and events.

Call sites in megatron-core 0.16.1: `torch.empty(…, device=torch.cuda.current_device())` in
tensor_parallel/{layers,mappings,utils}, param_and_grad_buffer, p2p_communication, distrib_optimizer, router;
`torch.zeros(…, device="cuda")` in schedules, clip_grads, grad_scaler, dist_checkpointing/exchange_utils;
`torch.tensor(…, pin_memory=True)` in rope_utils.

`Tensor.type()`: clip_grads, optimizer and distrib_optimizer compare it with `torch.cuda.FloatTensor` and
friends. `Tensor.cuda()`, `.to("cuda")`: rope_utils, distrib_optimizer, exchange_utils, router,
language_module. `Tensor.pin_memory()`, `.record_stream()`: param_and_grad_buffer, moe_utils, rope_utils.

tensor_parallel/random.py reads and sets the CUDA generator's state, through torch.cuda, through
`torch.cuda.default_generators` and through `_lazy_call`, which without CUDA would only queue the call.

Streams: param_and_grad_buffer (`torch.cuda.stream(…)`, `default_stream()`), token_dispatcher (its copy
stream), p2p_communication and dist_checkpointing (`synchronize()`), schedules. There is one queue of work,
the thread itself: what was called is done, so waiting is free.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

CPU = torch.device("cpu")
FACTORIES = (
    *("arange", "as_tensor", "empty", "empty_like", "eye", "full", "full_like", "linspace", "ones"),
    *("ones_like", "rand", "randint", "randn", "randperm", "tensor", "zeros", "zeros_like"),
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


class _Generators:
    """`torch.cuda.default_generators[…]`: the CPU's generator, whatever the index."""

    def __getitem__(self, index: Any) -> torch.Generator:
        del index
        return torch.default_generator


class _CpuStateIsTheState(logging.Filter):
    """megatron-core warns when the CPU's generator moves inside a CUDA random context. Here it must."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "CPU RNG state changed" not in record.getMessage()


class Stream:
    """Work on it is done when the call returns, so waiting is free."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def synchronize(self, other: Any = None) -> None:
        """Nothing is outstanding."""

    wait_stream = wait_event = synchronize

    def query(self) -> bool:
        """All work is done."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """The event, recorded now."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """A point in the thread's time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self._at_ns = 0

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        del stream
        self._at_ns = time.perf_counter_ns()

    def wait(self, stream: Any = None) -> None:
        """It is past."""

    synchronize = wait

    def query(self) -> bool:
        """It is past."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two records, as CUDA's events answer."""
        return (end._at_ns - self._at_ns) / 1e6


def install() -> None:
    """Replace what needs a CUDA device in torch and torch.cuda."""
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    tensor, cuda = torch.Tensor, torch.cuda
    tensor.type, tensor.to = _reported_type, _moved
    tensor.cuda = tensor.pin_memory = lambda self, *args, **kwargs: self
    tensor.record_stream = lambda self, stream: None
    cuda.current_device = lambda: CPU
    cuda.set_device = lambda device: None
    cuda.Stream, cuda.Event = Stream, Event
    the_stream = Stream()
    cuda.current_stream = cuda.default_stream = lambda device=None: the_stream
    cuda.stream = lambda stream: contextlib.nullcontext()
    cuda.synchronize = lambda device=None: None
    cuda.default_generators = _Generators()
    for module in (cuda, cuda.random):
        module.get_rng_state = lambda device=None: torch.get_rng_state()
        module.set_rng_state = lambda state, device=None: torch.set_rng_state(state)
        module.manual_seed = lambda seed: torch.default_generator.manual_seed(seed)
    cuda._lazy_call = lambda function, **kwargs: function()
    logging.getLogger("megatron.core.tensor_parallel.random").addFilter(_CpuStateIsTheState())
