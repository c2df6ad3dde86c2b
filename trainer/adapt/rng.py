"""megatron-core's per-dimension random streams, drawn from the CPU's generator.

Call site: tensor_parallel/random.py reads and sets the CUDA generator's state, through torch.cuda, through
`torch.cuda.default_generators` and through `_lazy_call`, which without CUDA would only queue the call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch


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
