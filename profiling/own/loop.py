"""A training loop that tells its callbacks where it is: the steps and phases that they mark."""

import functools
import importlib
import threading
from collections.abc import Callable
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
        self._at_end: Callable[[], object] = lambda: None

    def begins(self, at_end: Callable[[], object] = lambda: None) -> None:
        """Training begins: from here on the session follows, where one was asked for.

        at_end: what else is to be undone. A training that failed did not say so: what it left ends here.
        """
        global _running
        if _running is not None:
            _running.ends()
        _running, self._at_end = self, at_end
        if self._window is None or self._folder is None:
            return
        try:
            self._owns = following.use(following.windowed(self._window, folder=self._folder))
            if not self._owns:
                following.warn("steps of the callback are not profiled: another window is followed already")
        except CaptureError as error:
            following.warn(str(error))  # training goes on

    def ends(self) -> None:
        """Training is over, however it ended."""
        global _running
        if _running is self:
            _running = None
        self._at_end()
        self._at_end = lambda: None
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
        if ranges.on() or following.look():
            self._beside = ranges.begin(name)

    def leaves(self) -> None:
        """It is over."""
        opened, self._beside = self._beside, None
        if opened is not None:
            opened()


_running: Loop | None = None
"""The loop of this process that has begun and not ended."""


class Backwards:
    """Tells a loop of every backward pass that anybody starts, for trainers that do not say.

    A pass may start others: reentrant activation checkpointing runs one for each checkpoint, on CUDA on a
    thread of autograd's own, which may not close a range of this one. The outermost alone is told.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._original: Any = None
        self._inside = 0
        self._counting = threading.Lock()

    def install(self) -> None:
        """Wrap torch.autograd.backward, in which every `loss.backward()` ends. Twice is once."""
        if self._original is not None:
            return
        from perfdoc.profiling.vocabulary import BACKWARD

        autograd: Any = importlib.import_module("torch.autograd")
        original = self._original = autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            is_outermost = self._counted(1) == 1
            try:
                if is_outermost:
                    self._loop.phase(BACKWARD)
                return original(*args, **kwargs)
            finally:
                if is_outermost:
                    self._loop.phase(None)
                self._counted(-1)

        autograd.backward = backward

    def _counted(self, more: int) -> int:
        with self._counting:
            self._inside += more
            return self._inside

    def uninstall(self) -> None:
        """Put torch's own back."""
        original, self._original = self._original, None
        if original is not None:
            importlib.import_module("torch.autograd").backward = original  # type: ignore[attr-defined]
