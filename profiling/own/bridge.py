"""`pretrain(config, forward_step, callbacks=[BridgeCallback()])`: marks in Megatron-Bridge's training loop.

Bridge takes any object with methods of its events' names, so nothing of it is imported. Passes and optimizer
are marked as in Megatron-LM.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from perfdoc.profiling.own.loop import Loop
from perfdoc.profiling.own.megatron import name_optimizer, name_passes
from perfdoc.profiling.vocabulary import EVALUATION


class BridgeCallback:
    """Marks steps, forward, backward, optimizer, evaluation; profiles `steps` (first, end) into `folder`."""

    def __init__(self, steps: tuple[int, int] | None = None, folder: str | Path | None = None) -> None:
        """Without both: marks for whatever profiler is there. Raises ValueError for one without the other."""
        self._loop = Loop(steps, folder)

    def on_train_start(self, context: Any) -> None:
        """Training begins."""
        self._loop.begins()
        name_passes()
        name_optimizer(context.optimizer)

    def on_train_step_start(self, context: Any) -> None:
        """A step begins, numbered as Bridge's `train_state.step`."""
        self._loop.step_begins(int(context.state.train_state.step))

    def on_train_step_end(self, context: Any) -> None:
        """The step is over."""
        self._loop.step_ends()

    def on_train_end(self, context: Any) -> None:
        """Training has ended."""
        self._loop.ends()

    def on_eval_start(self, context: Any) -> None:
        """An evaluation begins."""
        self._loop.enters(EVALUATION)

    def on_eval_end(self, context: Any) -> None:
        """The evaluation is over."""
        self._loop.leaves()
