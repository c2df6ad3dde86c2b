"""Ranges around Python's garbage collections, automatic ones and those that the trainer calls itself.

The interpreter calls `gc.callbacks` for both, on the thread that collects, so one hook sees them all.
"""

import gc

from perfdoc.profiling import ranges
from perfdoc.profiling.vocabulary import GC

_NAMES = tuple(f"{GC} generation={generation}" for generation in (0, 1, 2))


class _Collector:
    """One of `gc.callbacks`: the range of the collection that runs."""

    def __init__(self) -> None:
        self._close: ranges.Opened | None = None

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._close = ranges.begin(_NAMES[info["generation"]])
            return
        close, self._close = self._close, None
        if close is not None:
            close()


_collector: _Collector | None = None


def install() -> None:
    """Emit a range for every collection while `ranges` are on. Idempotent."""
    global _collector
    if _collector is None:
        _collector = _Collector()
        gc.callbacks.append(_collector)


def uninstall() -> None:
    """Stop."""
    global _collector
    if _collector is not None:
        gc.callbacks.remove(_collector)
        _collector = None
