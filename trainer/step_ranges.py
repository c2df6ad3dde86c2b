"""Ranges inside a step that megatron-core does not emit: of layers and their parts, of the pipeline's phases.

Warm-up lasts from the schedule's beginning to the forward that the first backward follows, so the wait for
that forward's input is in it (on the last stage of 1F1B it is nothing else). Steady lasts to the end of the
backward that follows the last forward, cool-down from there to the last backward. Without pipeline
parallelism, and in forward-only passes, there are no phases.

megatron-core marks its interleaved schedule itself, and the phases follow its marks, so that both kinds of
range nest. The plain 1F1B schedule has no marks; there the passes are counted.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from perfdoc.profiling import ranges
from perfdoc.profiling.vocabulary import (
    BACKWARD,
    FORWARD,
    PIPELINE_COOLDOWN,
    PIPELINE_STEADY,
    PIPELINE_WARMUP,
    format_compute,
)
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


MARKS = {"warmup": PIPELINE_WARMUP, "steady": PIPELINE_STEADY, "cooldown": PIPELINE_COOLDOWN}
"""The suffixes of megatron-core's own ranges in the interleaved schedule."""


class PipelinePhases:
    """Follows one schedule at a time on this rank."""

    def __init__(self) -> None:
        self._phase: str | None = None
        self._opened: ranges.Opened | None = None
        self._counting = self._marked = False
        self._passes = self._warmup = self._forwards = self._backwards = 0

    @contextlib.contextmanager
    def counted(self, *, passes: int, stages: int, stage: int) -> Iterator[None]:
        """1F1B of `passes` micro-batches on one of `stages` stages.

        Stage 0 of 2 with 8 micro-batches: 1 forward, 7 pairs, 1 backward.
        """
        self._passes, self._warmup = passes, min(stages - stage - 1, passes)
        self._forwards = self._backwards = 0
        self._counting = True
        self._switch(PIPELINE_WARMUP)
        try:
            yield
        finally:
            self._counting = False
            self._switch(None)

    @contextlib.contextmanager
    def marked(self) -> Iterator[None]:
        """The interleaved schedule, whose marks come to `mark`."""
        self._marked = True
        try:
            yield
        finally:
            self._marked = False
            self._switch(None)

    def mark(self, suffix: str, begins: bool) -> None:
        """megatron-core pushes or pops a range with this suffix."""
        if self._marked and suffix in MARKS:
            self._switch(MARKS[suffix] if begins else None)

    def forward_begins(self) -> None:
        """Before the forward of a micro-batch."""
        if self._counting and self._forwards == self._warmup:
            self._switch(PIPELINE_STEADY)

    def forward_ends(self) -> None:
        """After the forward of a micro-batch."""
        self._forwards += 1
        # Fewer micro-batches than stages: the last forward is one of the warm-up.
        if self._counting and self._forwards == self._passes == self._warmup:
            self._switch(PIPELINE_COOLDOWN)

    def backward_ends(self) -> None:
        """After the backward of a micro-batch."""
        self._backwards += 1
        if not self._counting:
            return
        if self._backwards == self._passes:
            self._switch(None)
        elif self._backwards == self._passes - self._warmup:
            self._switch(PIPELINE_COOLDOWN)

    def _switch(self, phase: str | None) -> None:
        if phase == self._phase:
            return
        opened, self._opened = self._opened, None
        if opened is not None:
            opened()
        self._phase = phase
        if phase is not None:
            self._opened = ranges.begin(phase)


def follow_schedules(phases: PipelinePhases) -> None:
    """Let `phases` follow megatron-core's schedules; once per process."""
    from megatron.core import parallel_state
    from megatron.core.pipeline_parallel import schedules

    plain = schedules.forward_backward_pipelining_without_interleaving
    interleaved = schedules.forward_backward_pipelining_with_interleaving

    @functools.wraps(plain)
    def counted(**kwargs: Any) -> Any:
        if kwargs.get("forward_only") or not ranges.on():
            return plain(**kwargs)
        stages = parallel_state.get_pipeline_model_parallel_world_size()
        stage = parallel_state.get_pipeline_model_parallel_rank()
        with phases.counted(passes=kwargs["num_microbatches"], stages=stages, stage=stage):
            return plain(**kwargs)

    @functools.wraps(interleaved)
    def marked(**kwargs: Any) -> Any:
        if kwargs.get("forward_only") or not ranges.on():
            return interleaved(**kwargs)
        with phases.marked():
            return interleaved(**kwargs)

    schedules.forward_backward_pipelining_without_interleaving = counted
    schedules.forward_backward_pipelining_with_interleaving = marked
