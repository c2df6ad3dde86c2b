"""Every backward pass of this process, seen in torch."""

import functools
import importlib
import threading
from typing import Any, Protocol

from perfdoc.profiling.vocabulary import BACKWARD


class Told(Protocol):
    """Who is told."""

    def phase(self, name: str | None) -> None:
        """A backward begins; None: it is over."""


class Backwards:
    """Tells of every backward pass that anybody starts, for trainers that do not say.

    A pass may start others: reentrant activation checkpointing runs one for each checkpoint, on CUDA on a
    thread of autograd's own, which may not close a range of this one. The outermost alone is told.
    """

    def __init__(self, loop: Told) -> None:
        self._loop = loop
        self._original: Any = None
        self._inside = 0
        self._counting = threading.Lock()

    def install(self) -> None:
        """Wrap torch.autograd.backward, in which every `loss.backward()` ends. Twice is once."""
        if self._original is not None:
            return
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
