"""`Trainer(callbacks=[LightningCallback()])`: marks, and traces where asked for, of Lightning and NeMo.

Works with `lightning` and with `pytorch_lightning`, whichever the program has imported. The forward lasts
from the batch's start to the backward, the optimizer from the call before its step to the batch's end.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

from perfdoc.profiling.own.loop import Loop, told
from perfdoc.profiling.own.sinks import Said, Sink, guarded, of_service
from perfdoc.profiling.own.telemetry import EVERY
from perfdoc.profiling.vocabulary import BACKWARD, EVALUATION, FORWARD, OPTIMIZER


class LightningCallback(Loop, Callback):  # type: ignore[misc]  # its library may be missing
    """Marks steps, forward, backward, optimizer and validation; profiles `steps` (first, end) into `folder`.

    A step is a batch: with `accumulate_grad_batches` some of them have no optimizer.
    """

    data_between = True
    _batches = 0
    on_before_backward = told(lambda loop: loop.phase(BACKWARD))
    on_after_backward = told(lambda loop: loop.phase(None))
    on_before_optimizer_step = told(lambda loop: loop.phase(OPTIMIZER))
    """The gradients are about to be clipped and applied."""
    on_validation_start = told(lambda loop: loop.enters(EVALUATION))
    on_validation_end = told(lambda loop: loop.leaves())
    on_train_end = on_exception = told(lambda loop: loop.ends())

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins."""
        self._batches = 0
        every = int(getattr(trainer, "log_every_n_steps", 0)) or EVERY
        self.begins(loggers=lambda: _loggers(trainer), every=every)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch begins; it was loaded before."""
        self.step_begins(self._batches)
        self.phase(FORWARD)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The parameters are updated."""
        self.step_ends()
        self._batches += 1


def _loggers(trainer: Any) -> list[Sink]:
    """The trainer's own; figures go to any of them, texts and files to those that are known."""
    loggers = trainer.loggers if trainer.is_global_zero else ()
    return [sink for one in loggers for sink in guarded(type(one).__name__, _of_logger, one, trainer)]


def _of_logger(logger: Any, trainer: Any) -> Sink:
    known = of_service(getattr(logger, "experiment", None), getattr(logger, "run_id", None))

    def send(said: Said) -> None:
        if said.figures:
            logger.log_metrics(said.named(), step=trainer.global_step)
        if known is not None:
            known(replace(said, figures={}))

    return send
