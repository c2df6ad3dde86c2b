"""Ranges of every layer and its parts, forward and backward; off, nothing of them is left in the model."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from perfdoc.profiling import ranges
from perfdoc.profiling.vocabulary import BACKWARD, FORWARD, format_compute
from perfdoc.trainer.backward_ranges import Part

LAYER_PARTS = ("input_layernorm", "self_attention", "pre_mlp_layernorm", "mlp")
MODEL_PARTS = ("embedding", "output_layer")
_MADE = "_perfdoc_made"
"""Attribute of a part's output: its node begins that part's backward, and so ends that of who takes it."""


class LayerRanges:
    """The ranges of one rank's model chunks; `switch` puts them in and takes them out.

    The forward method of a module is wrapped, not hooked: a block cannot stay open, and megatron-core
    refuses to capture modules with hooks in CUDA graphs.
    """

    def __init__(self, models: list[Any]) -> None:
        self._on = False
        self._wrapped = [
            (module, _ranged(module.forward, name, part))
            for model in models
            for module, name, part in _parts(model)
        ]

    def switch(self, on: bool) -> None:
        """Emit from now on, or not. Costs nothing where nothing changes."""
        if on == self._on:
            return
        self._on = on
        for module, forward in self._wrapped:
            if on:
                module.forward = forward
            else:
                del module.forward


def _ranged(inner: Callable[..., Any], name: str, part: Part) -> Callable[..., Any]:
    # Some thousand calls a second, each with cold caches: nothing is here that need not be.
    entering, leaving = part.entering, part.leaving

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        close = ranges.begin(name)
        if close is None:
            return inner(*args, **kwargs)
        given = args[0] if args else kwargs.get("hidden_states")
        source = None
        if isinstance(given, torch.Tensor) and not hasattr(given, _MADE):
            source = given.grad_fn
        try:
            output = inner(*args, **kwargs)
        finally:
            close()
        made = output[0] if isinstance(output, tuple) else output
        if made is not given and isinstance(made, torch.Tensor) and (node := made.grad_fn) is not None:
            node._register_hook_dict(entering)
            if source is not None:
                source._register_hook_dict(leaving)
            made._perfdoc_made = True
        return output

    return forward


def _parts(model: Any) -> Iterator[tuple[Any, str, Part]]:
    """(module, name of its forward range, its part of the backward pass); layers count from 0."""
    for layer in model.decoder.layers:
        index = layer.layer_number - 1
        whole = Part(format_compute(BACKWARD, layer=index))
        yield layer, format_compute(FORWARD, layer=index), whole
        for name in LAYER_PARTS:
            if (module := getattr(layer, name, None)) is not None:
                part = Part(format_compute(BACKWARD, layer=index, module=name), whole)
                yield module, format_compute(FORWARD, layer=index, module=name), part
    below = {"final_layernorm": getattr(model.decoder, "final_layernorm", None)}
    below |= {name: getattr(model, name, None) for name in MODEL_PARTS}
    for name, module in below.items():
        if module is not None:
            part = Part(format_compute(BACKWARD, module=name))
            yield module, format_compute(FORWARD, module=name), part
