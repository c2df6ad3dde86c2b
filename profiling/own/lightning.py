"""`Trainer(callbacks=[LightningCallback()])`: marks, and traces where asked for, of Lightning and NeMo.

Works with `lightning` and with `pytorch_lightning`, whichever the program has imported. The forward lasts
from the batch's start to the backward, the optimizer from the call before its step to the batch's end.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    from pytorch_lightning import Callback
else:
    from lightning.pytorch import Callback

from perfdoc.profiling.own.loop import Loop
from perfdoc.profiling.vocabulary import BACKWARD, EVALUATION, FORWARD, OPTIMIZER


class LightningCallback(Callback):  # type: ignore[misc]  # its library may be missing
    """Marks steps, forward, backward, optimizer and validation; profiles `steps` (first, end) into `folder`.

    A step is a batch: with `accumulate_grad_batches` some of them have no optimizer.
    """

    def __init__(
        self,
        steps: tuple[int, int] | None = None,
        folder: str | Path | None = None,
        record: str | Path | None = None,
    ) -> None:
        """Without steps and folder: marks for whatever profiler is there. record: a run directory for a row
        of each step, for `perfdoc watch`. Raises ValueError for steps without a folder, or a folder alone."""
        self._loop = Loop(steps, folder, record, data_between=True)
        self._batches = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Training begins."""
        self._batches = 0
        self._loop.begins()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Training has ended."""
        self._loop.ends()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Training has failed, or was interrupted."""
        self._loop.ends()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """A batch begins; it was loaded before."""
        self._loop.step_begins(self._batches)
        self._loop.phase(FORWARD)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """The loss is there."""
        self._loop.phase(BACKWARD)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """The gradients are there."""
        self._loop.phase(None)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """The gradients are about to be clipped and applied."""
        self._loop.phase(OPTIMIZER)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The parameters are updated."""
        self._loop.step_ends()
        self._batches += 1

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Validation begins."""
        self._loop.enters(EVALUATION)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Validation is over."""
        self._loop.leaves()
