"""`Trainer(callbacks=[HuggingFaceCallback()])`: marks, and traces where asked for, of Hugging Face's Trainer.

The trainer says where a step and the optimizer begin and end; the backward is seen in torch, and what lies
before it is the forward. Steps are numbered as `state.global_step`, from 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from perfdoc.profiling.own.hooks import Backwards
from perfdoc.profiling.own.loop import Loop
from perfdoc.profiling.vocabulary import CHECKPOINT, EVALUATION, FORWARD, OPTIMIZER

_PRIVATE = ("dir", "token", "name", "endpoint", "id", "path")
"""Ends of names of arguments that change no time, or hold what is nobody's business."""


class HuggingFaceCallback(TrainerCallback):  # type: ignore[misc]  # its library may be missing
    """Marks steps, forward, backward, optimizer, evaluation; profiles `steps` (first, end) into `folder`."""

    def __init__(
        self,
        steps: tuple[int, int] | None = None,
        folder: str | Path | None = None,
        record: str | Path | None = None,
    ) -> None:
        """Without steps and folder: marks for whatever profiler is there. record: a run directory for a row
        of each step, for `perfdoc watch`. Raises ValueError for steps without a folder, or a folder alone."""
        self._loop = Loop(steps, folder, record, data_between=True)
        self._backwards = Backwards(self._loop)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training begins."""
        facts = args.to_dict() if hasattr(args, "to_dict") else {}
        chosen = {name: value for name, value in facts.items() if not name.endswith(_PRIVATE)}
        self._loop.begins(at_end=self._backwards.uninstall, facts=chosen)
        self._backwards.install()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Training has ended."""
        self._loop.ends()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins; its batches were loaded before."""
        self._loop.leaves()
        self._loop.step_begins(int(state.global_step))
        self._loop.phase(FORWARD)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """One micro-batch of several is done."""
        self._loop.phase(FORWARD)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The gradients are there, and clipped."""
        self._loop.phase(OPTIMIZER)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The parameters are updated."""
        self._loop.phase(None)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The step is done. An evaluation or a checkpoint follows at once where the trainer says so."""
        self._loop.step_ends()
        self._beside(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The data is at its end. An evaluation or a checkpoint of each epoch follows at once."""
        self._beside(control)

    def _beside(self, control: Any) -> None:
        if control.should_evaluate:
            self._loop.enters(EVALUATION)
        elif control.should_save:
            self._loop.enters(f"{CHECKPOINT} save")

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The evaluation is over."""
        self._loop.leaves()
        if control.should_save:
            self._loop.enters(f"{CHECKPOINT} save")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The checkpoint is written."""
        self._loop.leaves()
