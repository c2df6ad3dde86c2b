"""Ranges inside a step that megatron-core does not emit: micro-batches, forward and backward, layers."""

from __future__ import annotations

import functools
import sys
from typing import Any

from perfdoc.trainer import ranges

LAYER_PARTS = ("input_layernorm", "self_attention", "pre_mlp_layernorm", "mlp")
MODEL_PARTS = ("embedding", "output_layer")


def name_megatron_ranges() -> None:
    """Let megatron-core name its own ranges cheaply: the same names, without `inspect`. Once is enough.

    `inspect.getmodule` and `getframeinfo` search files: 114 us for a push and a pop against 1.6 us.
    """
    from megatron.core import utils

    utils._nvtx_range_get_func_path = _caller_of_push


def _caller_of_push() -> str:
    """`module.function` of whoever called megatron-core's nvtx_range_push or nvtx_range_pop."""
    frame = sys._getframe(2)
    return f"{frame.f_globals['__name__']}.{frame.f_code.co_name}"


def emit_megatron_ranges(on: bool) -> None:
    """Switch megatron-core's own ranges; they cost even where nobody listens."""
    from megatron.core.utils import configure_nvtx_profiling

    configure_nvtx_profiling(on)


def name_passes() -> None:
    """Wrap megatron-core's forward and backward of one micro-batch, once per process."""
    from megatron.core.pipeline_parallel import schedules

    if getattr(schedules.forward_step, "perfdoc", False):
        return
    schedules.forward_step = _named(schedules.forward_step, ranges.FORWARD)
    schedules.backward_step = _named(schedules.backward_step, ranges.BACKWARD)


def _named(function: Any, prefix: str) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with ranges.micro_batch(kwargs.get("current_microbatch"), prefix):
            return function(*args, **kwargs)

    call.perfdoc = True  # type: ignore[attr-defined]
    return call


def name_layers(model: Any) -> None:
    """Put the forward pass of every layer and its parts into ranges; layers count from 0."""
    for layer in model.decoder.layers:
        index = layer.layer_number - 1
        _wrap(layer, ranges.compute(ranges.FORWARD, layer=index))
        for part in LAYER_PARTS:
            _wrap(getattr(layer, part, None), ranges.compute(ranges.FORWARD, layer=index, module=part))
    _wrap(
        getattr(model.decoder, "final_layernorm", None),
        ranges.compute(ranges.FORWARD, module="final_layernorm"),
    )
    for part in MODEL_PARTS:
        _wrap(getattr(model, part, None), ranges.compute(ranges.FORWARD, module=part))


def _wrap(module: Any, name: str) -> None:
    if module is None:
        return

    def begin(*_: Any, **__: Any) -> None:
        ranges.push(name)

    def end(*_: Any, **__: Any) -> None:
        ranges.pop()

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end, always_call=True)
