"""`follow_megatron()`: marks in Megatron-LM's training loop, from outside.

Its `train_step` becomes a step; megatron-core's passes of a micro-batch, the optimizer's `step`, evaluations
and checkpoints get their names. Waits for data are marked in torch's DataLoader.
"""

import functools
import importlib
import inspect
import itertools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.own import following
from perfdoc.profiling.own.loop import Loop, told
from perfdoc.profiling.own.sinks import Sink, guarded, of_service
from perfdoc.profiling.vocabulary import (
    BACKWARD,
    CHECKPOINT,
    EVALUATION,
    FORWARD,
    MICRO_BATCH,
    OPTIMIZER,
    numbered,
)

_FOLLOWED = "_perfdoc_followed"
"""Attribute of what is wrapped already."""
_BESIDE = {"evaluate": EVALUATION, "save_checkpoint_and_time": f"{CHECKPOINT} save"}
"""Other functions of the training loop's module, and what they do."""


def follow_megatron(training: Any = None) -> None:
    """Call it once before `pretrain`: marks every step of the loop in `megatron.training.training`.

    training: another module with a `train_step`. A step's number is its argument `iteration`, else
    Megatron's `args.curr_iteration`, else counted from 0. Raises ImportError without Megatron-LM, ValueError
    for a module without `train_step`.
    """
    training = importlib.import_module("megatron.training.training") if training is None else training
    original = getattr(training, "train_step", None)
    if original is None:
        raise ValueError(f"{getattr(training, '__name__', training)} has no train_step to follow")
    if hasattr(original, _FOLLOWED):
        return
    signature, counted = inspect.signature(original), itertools.count()

    @functools.wraps(original)
    def train_step(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind_partial(*args, **kwargs).arguments
        name_optimizer(given.get("optimizer"))
        count = next(counted)
        number = _number(given.get("iteration"), training)
        with following.follower().step(count if number is None else number):
            return original(*args, **kwargs)

    setattr(train_step, _FOLLOWED, True)
    training.train_step = train_step
    for function, name in _BESIDE.items():
        if (beside := getattr(training, function, None)) is not None:
            setattr(training, function, ranged(beside, name))
    name_passes()


def name_passes() -> None:
    """Put megatron-core's forward and backward of each micro-batch into ranges. Twice is once."""
    schedules: Any = importlib.import_module("megatron.core.pipeline_parallel.schedules")
    if hasattr(schedules.forward_step, _FOLLOWED):
        return
    forward_step = schedules.forward_step
    signature = inspect.signature(forward_step)

    @functools.wraps(forward_step)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not ranges.on():
            return forward_step(*args, **kwargs)
        number: Any = signature.bind_partial(*args, **kwargs).arguments.get("current_microbatch")
        known = isinstance(number, int) and number >= 0
        outer = ranges.range(numbered(MICRO_BATCH, number)) if known else nullcontext()
        with outer, ranges.range(FORWARD):
            return forward_step(*args, **kwargs)

    setattr(forward, _FOLLOWED, True)
    schedules.forward_step = forward
    schedules.backward_step = ranged(schedules.backward_step, BACKWARD)


def name_optimizer(optimizer: Any) -> None:
    """Put the optimizer's `step` into its range. Twice is once; None is nothing."""
    if optimizer is not None and not hasattr(optimizer.step, _FOLLOWED):
        optimizer.step = ranged(optimizer.step, OPTIMIZER)


def ranged(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The function in a range, marked as wrapped."""

    @functools.wraps(function)
    def in_range(*args: Any, **kwargs: Any) -> Any:
        with ranges.range(name):
            return function(*args, **kwargs)

    setattr(in_range, _FOLLOWED, True)
    return in_range


class BridgeCallback(Loop):
    """Marks steps, forward, backward, optimizer, evaluation; profiles `steps` (first, end) into `folder`."""

    on_train_step_end = told(lambda loop: loop.step_ends())
    on_eval_start = told(lambda loop: loop.enters(EVALUATION))
    on_eval_end = told(lambda loop: loop.leaves())
    on_train_end = told(lambda loop: loop.ends())

    def on_train_start(self, context: Any) -> None:
        """Training begins."""
        model = getattr(getattr(context.state, "cfg", None), "model", None)
        self.begins(loggers=lambda: _loggers(context.state), model=getattr(model, "__dict__", None))
        name_passes()
        name_optimizer(context.optimizer)

    def on_train_step_start(self, context: Any) -> None:
        """A step begins, numbered as Bridge's `train_state.step`."""
        self.step_begins(int(context.state.train_state.step))


def _loggers(state: Any) -> list[Sink]:
    """Bridge's own, which its last rank has."""
    names = ("tensorboard_logger", "wandb_logger", "mlflow_logger")
    loggers = {name: getattr(state, name, None) for name in names}
    return [sink for name, logger in loggers.items() for sink in guarded(name, of_service, logger)]


def _number(given: Any, training: Any) -> int | None:
    if isinstance(given, int) and given >= 0:
        return given
    try:
        number = training.get_args().curr_iteration
    except (AttributeError, AssertionError):
        return None
    return number if isinstance(number, int) and number >= 0 else None
