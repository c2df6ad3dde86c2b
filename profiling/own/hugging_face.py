"""`Trainer(callbacks=[HuggingFaceCallback()])`: marks, and traces where asked for, of Hugging Face's Trainer.

The trainer says where a step and the optimizer begin and end; the backward is seen in torch, and what lies
before it is the forward. Steps are numbered as `state.global_step`, from 0.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

from transformers import TrainerCallback

from perfdoc.profiling.own.hooks import Backwards
from perfdoc.profiling.own.loop import Loop, told
from perfdoc.profiling.own.sinks import Said, Sink, begun
from perfdoc.profiling.own.telemetry import EVERY
from perfdoc.profiling.vocabulary import CHECKPOINT, EVALUATION, FORWARD, OPTIMIZER

_PRIVATE = ("dir", "token", "name", "endpoint", "id", "path")
"""Ends of names of arguments that change no time, or hold what is nobody's business."""


class HuggingFaceCallback(Loop, TrainerCallback):  # type: ignore[misc]  # its library may be missing
    """Marks steps, forward, backward, optimizer, evaluation; profiles `steps` (first, end) into `folder`."""

    data_between = True
    on_substep_end = told(lambda loop: loop.phase(FORWARD))
    """One micro-batch of several is done."""
    on_pre_optimizer_step = told(lambda loop: loop.phase(OPTIMIZER))
    """The gradients are there, and clipped."""
    on_optimizer_step = told(lambda loop: loop.phase(None))
    """The parameters are updated."""
    on_save = told(lambda loop: loop.leaves())
    on_train_end = told(lambda loop: loop.ends())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins."""
        facts = args.to_dict() if hasattr(args, "to_dict") else {}
        chosen = {name: value for name, value in facts.items() if not name.endswith(_PRIVATE)}
        trainer = _trainer()

        def loggers() -> list[Sink]:
            if not state.is_world_process_zero:
                return []
            if trainer is None or not args.report_to:
                return begun()
            return [*map(_parts_alone, begun()), _through_log(trainer)]

        every = int(args.logging_steps) if args.logging_steps >= 1 else EVERY
        backwards, model = Backwards(self), _said_of(kwargs.get("model"))
        self.begins(at_end=backwards.uninstall, facts=chosen, loggers=loggers, every=every, model=model)
        backwards.install()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins; its batches were loaded before."""
        self.leaves()
        self.step_begins(int(state.global_step))
        self.phase(FORWARD)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step is done. An evaluation or a checkpoint follows at once where the trainer says so."""
        self.step_ends()
        self._what_follows(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The data is at its end. An evaluation or a checkpoint of each epoch follows at once."""
        self._what_follows(control)

    def _what_follows(self, control: Any) -> None:
        if control.should_evaluate:
            self.enters(EVALUATION)
        elif control.should_save:
            self.enters(f"{CHECKPOINT} save")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The evaluation is over."""
        self.leaves()
        if control.should_save:
            self.enters(f"{CHECKPOINT} save")


def _said_of(trained: Any) -> dict[str, Any]:
    """What the configuration of a model says, by the model's own class: a configuration names that of the
    checkpoint, which may have another head. Empty where it is none of Hugging Face's."""
    trained = getattr(trained, "_orig_mod", trained)  # of a compiled one
    try:
        said = dict(trained.config.to_dict())
        frozen = not all(parameter.requires_grad for parameter in trained.parameters())
    except Exception:  # noqa: BLE001 - a model of the user's own, whose attributes may be anything
        return {}
    return {**said, "architectures": [type(trained).__name__], "frozen": frozen}


def _trainer() -> Any:
    """The trainer that calls its callbacks now; None where it is not among the callers."""
    frame = sys._getframe(1).f_back
    while frame is not None:
        caller = frame.f_locals.get("self")
        if hasattr(caller, "callback_handler") and hasattr(caller, "log"):
            return caller
        frame = frame.f_back
    return None


def _parts_alone(sink: Sink) -> Sink:
    """Of the figures only those with parts, of profiled windows: the others are in the trainer's own log."""
    return lambda said: sink(replace(said, figures={n: v for n, v in said.figures.items() if "/" in n}))


def _through_log(trainer: Any) -> Sink:
    """Figures join what the trainer logs with its loss: one line, one point, in whatever it reports to."""
    original, before = trainer.log, {n: own for n, own in vars(trainer).items() if n == "log"}
    latest: dict[str, float] = {}

    def log(logs: dict[str, float], *arguments: Any, **named: Any) -> Any:
        return original({**logs, **latest} if latest and "loss" in logs else logs, *arguments, **named)

    def send(said: Said) -> None:
        plain = {n: v for n, v in said.figures.items() if "/" not in n}
        latest.update(replace(said, figures=plain).named())
        if said.last:
            latest.clear()  # where another's wrapper is around it, it stays and adds nothing
            if vars(trainer).get("log") is log:
                del trainer.log
                vars(trainer).update(before)

    trainer.log = log
    return send
