"""A process that nothing is written down of: part of a job of many ranks of which few are captured."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.captures.process import ProcessBuilder


class Unrecorded(ProcessBuilder):
    """Takes every call of a lane and forgets it."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid=pid, name="unrecorded", rank=None)

    def thread(self, *_: Any, **__: Any) -> Any:
        """Somewhere for ranges and marks to go."""
        return _FORGETS

    def device(self, ordinal: int, *_: Any, **__: Any) -> Any:
        """Somewhere for kernels to go."""
        return _Forgets(ordinal)


class _Forgets:
    def __init__(self, ordinal: int = 0) -> None:
        self.info = SimpleNamespace(ordinal=ordinal)

    def _forget(self, *_: Any, **__: Any) -> Any:
        return None

    range = mark = synchronize = copy = kernel = record_event = wait_event = _forget


_FORGETS = _Forgets()
