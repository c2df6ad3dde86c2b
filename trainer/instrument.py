"""Everything that is emitted inside a profiled step, megatron-core's own ranges included.

megatron-core finds the name of a range with `inspect`, which searches files (114 us for a push and a pop),
and gives it to torch.cuda.nvtx, so that the PyTorch profiler does not see it. Here each place in the code
finds its name once, and the names are the same: `megatron.core.transformer.mlp.forward.linear_fc1`.
"""

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch

from perfdoc.profiling import ranges
from perfdoc.profiling.distributed import collectives
from perfdoc.profiling.vocabulary import BACKWARD, FORWARD, MICRO_BATCH, numbered
from perfdoc.trainer import backward_ranges
from perfdoc.trainer.model import unwrapped
from perfdoc.trainer.step_ranges import LayerRanges, PipelinePhases, follow_schedules

_NUMBER = "_perfdoc_micro_batch"
"""Attribute of a stage's output: the number of its micro-batch, for the backward that starts from it."""


class Instrument:
    """The ranges of this rank's model and schedule; made once, switched on for profiled steps."""

    def __init__(self, model: list[Any]) -> None:
        _prepare_megatron()
        self._layers = LayerRanges([unwrapped(chunk) for chunk in model])

    def switch(self, on: bool) -> None:
        """Emit from now on, or not. Off, nothing of the layers' ranges is left in the model."""
        _switch_ranges(on)
        self._layers.switch(on)


@functools.cache
def _prepare_megatron() -> None:
    """Wrap what all models of this process share."""
    _replace_ranges()
    follow_schedules(_phases)
    _name_passes(_phases)
    _name_pipeline_messages()


def _name_passes(phases: PipelinePhases) -> None:
    """Put the forward and the backward of each micro-batch into ranges with its number."""
    from megatron.core.pipeline_parallel import schedules

    forward_step, backward_step = schedules.forward_step, schedules.backward_step

    @functools.wraps(forward_step)
    def forward(*args: Any, **kwargs: Any) -> Any:
        number = kwargs.get("current_microbatch")
        phases.forward_begins()
        with _micro_batch(number, FORWARD):
            result = forward_step(*args, **kwargs)
        phases.forward_ends()
        output = _tensor(result[0])
        if isinstance(output, torch.Tensor):
            # The schedule keeps this very object until the backward of its micro-batch, in any order.
            setattr(output, _NUMBER, number)
        return result

    @functools.wraps(backward_step)
    def backward(input_tensor: Any, output_tensor: Any, *args: Any, **kwargs: Any) -> Any:
        number = getattr(_tensor(output_tensor), _NUMBER, None)
        with _micro_batch(number, BACKWARD):
            try:
                result = backward_step(input_tensor, output_tensor, *args, **kwargs)
            finally:
                backward_ranges.close_all()
        phases.backward_ends()
        return result

    schedules.forward_step, schedules.backward_step = forward, backward


@contextlib.contextmanager
def _micro_batch(number: int | None, prefix: str) -> Iterator[None]:
    """One pass of one micro-batch; without its number (backwards) only the pass is named."""
    outer = contextlib.nullcontext() if number is None else ranges.range(numbered(MICRO_BATCH, number))
    with outer, ranges.range(prefix):
        yield


def _tensor(output: Any) -> Any:
    return output[0] if isinstance(output, list) else output


def _name_pipeline_messages() -> None:
    """Say that the pipeline's messages are the pipeline's.

    In a pipeline of two stages megatron-core sends one direction over the default group, which tells nothing
    (p2p_communication._p2p_ops, where messages are not batched).
    """
    from megatron.core.pipeline_parallel.p2p_communication import P2PCommunicator

    for method in ("_communicate", "_communicate_shapes"):
        setattr(P2PCommunicator, method, _serving_pipeline(getattr(P2PCommunicator, method)))


def _serving_pipeline(function: Any) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with collectives.serving("pp"):
            return function(*args, **kwargs)

    return call


_names: dict[tuple[int, str | None], tuple[str, CodeType]] = {}
"""Name by the identity of the calling code, which is kept so that no other gets it, and the suffix. Code
itself would be hashed by its constants, every time."""
_open: list[ranges.Opened | None] = []
"""Closes what is open. One for all threads: autograd's runs megatron-core's code while the other waits."""
_on = False
_phases = PipelinePhases()


def _replace_ranges() -> None:
    """Replace megatron-core's two functions, also where modules hold them by name. Idempotent."""
    from megatron.core import utils

    replaced = {"nvtx_range_push": push, "nvtx_range_pop": pop}
    originals = {name: getattr(utils, name) for name in replaced}
    for module in [found for name, found in sys.modules.items() if name.startswith("megatron.core")]:
        for name, function in replaced.items():
            if vars(module).get(name) is originals[name]:
                setattr(module, name, function)


def _switch_ranges(on: bool) -> None:
    """Emit them from now on, or not: they cost even where nobody listens."""
    from megatron.core.utils import configure_nvtx_profiling

    global _on
    configure_nvtx_profiling(on)
    _on = on


def push(msg: str | None = None, suffix: str | None = None) -> None:
    """As megatron-core's nvtx_range_push: `msg`, or else the calling function, and a suffix."""
    if not _on:
        return
    if msg is not None:
        name = msg if suffix is None else f"{msg}.{suffix}"
    else:
        frame: Any = sys._getframe(1)
        code = frame.f_code
        found = _names.get((id(code), suffix))
        if found is None:
            function = f"{frame.f_globals['__name__']}.{code.co_name}"
            found = (function if suffix is None else f"{function}.{suffix}"), code
            _names[id(code), suffix] = found
        name = found[0]
    if suffix is not None:
        _phases.mark(suffix, True)
    _open.append(ranges.begin(name))


def pop(msg: str | None = None, suffix: str | None = None) -> None:
    """As megatron-core's nvtx_range_pop, without its check that the names agree."""
    if _open and (close := _open.pop()) is not None:
        close()
    if suffix is not None:
        _phases.mark(suffix, False)
