"""A training loop that tells its callbacks where it is: the steps and phases that they mark."""

from __future__ import annotations

import functools
import importlib
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.own import following
from perfdoc.profiling.own.asked_window import window_of_steps


class Loop:
    """Steps and phases by their beginnings and ends; what is left open is closed by what follows."""

    def __init__(self, steps: tuple[int, int] | None, folder: str | Path | None) -> None:
        """steps: (first, end) for the PyTorch profiler, into `folder`, a run directory; None: marks only.

        Raises ValueError for steps that are none, or one of both without the other.
        """
        if (steps is None) != (folder is None):
            raise ValueError("steps and folder go together: which steps to profile, and where the traces go")
        self._window = None if steps is None else window_of_steps(steps)
        self._folder = None if folder is None else Path(folder)
        self._step: AbstractContextManager[None] | None = None
        self._phase: ranges.Opened | None = None
        self._beside: ranges.Opened | None = None
        self._owns = False

    def begins(self) -> None:
        """Training begins: from here on the session follows, where one was asked for."""
        if self._window is None or self._folder is None:
            return
        try:
            self._owns = following.use(following.windowed(self._window, folder=self._folder))
        except CaptureError as error:
            following.warn(str(error))  # training goes on

    def ends(self) -> None:
        """Training is over, however it ended."""
        self.leaves()
        self.step_ends()
        if self._owns:
            self._owns = False
            following.release()

    def step_begins(self, number: int) -> None:
        """A step begins, after the one before has ended."""
        self.step_ends()
        self._step = following.follower().step(number)
        self._step.__enter__()

    def step_ends(self) -> None:
        """The step is over, and the phase in it."""
        self.phase(None)
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def phase(self, name: str | None) -> None:
        """What the loop does from now on; None: nothing with a name. Within a step only."""
        opened, self._phase = self._phase, None
        if opened is not None:
            opened()
        if name is not None and self._step is not None:
            self._phase = ranges.begin(name)

    def enters(self, name: str) -> None:
        """Something beside the steps, such as an evaluation."""
        self.leaves()
        if ranges.on() or following.follower().look():
            self._beside = ranges.begin(name)

    def leaves(self) -> None:
        """It is over."""
        opened, self._beside = self._beside, None
        if opened is not None:
            opened()


class Backwards:
    """Tells a loop of every backward pass that anybody starts, for trainers that do not say."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._original: Any = None

    def install(self) -> None:
        """Wrap torch.autograd.backward, in which every `loss.backward()` ends. Twice is once."""
        if self._original is not None:
            return
        from perfdoc.profiling.vocabulary import BACKWARD

        autograd: Any = importlib.import_module("torch.autograd")
        original = self._original = autograd.backward
        loop = self._loop

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            loop.phase(BACKWARD)
            try:
                return original(*args, **kwargs)
            finally:
                loop.phase(None)

        autograd.backward = backward

    def uninstall(self) -> None:
        """Put torch's own back."""
        original, self._original = self._original, None
        if original is not None:
            importlib.import_module("torch.autograd").backward = original  # type: ignore[attr-defined]
