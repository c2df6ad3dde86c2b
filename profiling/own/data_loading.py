"""A range around every wait for torch's DataLoader, whoever iterates it."""

from __future__ import annotations

import functools
import sys
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.vocabulary import DATA

_wrapped: tuple[Any, Any] | None = None
"""The iterators' class, and its own `__next__`."""


def install() -> None:
    """Wrap the iterators of DataLoaders; nothing where torch has not imported them. Twice is once."""
    global _wrapped
    module = sys.modules.get("torch.utils.data.dataloader")
    iterators = getattr(module, "_BaseDataLoaderIter", None)
    if _wrapped is not None or iterators is None:
        return
    original = iterators.__next__

    @functools.wraps(original)
    def waited_for(self: Any) -> Any:
        close = ranges.begin(DATA)
        if close is None:
            return original(self)
        try:
            return original(self)
        finally:
            close()

    _wrapped = iterators, original
    iterators.__next__ = waited_for


def uninstall() -> None:
    """Put torch's own method back."""
    global _wrapped
    if _wrapped is not None:
        iterators, original = _wrapped
        iterators.__next__ = original
        _wrapped = None
