"""Waits for a torch DataLoader, in a range of their own."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.vocabulary import DATA

_wrapped: tuple[Any, Any] | None = None
"""The iterators' class, and its own `__next__`."""
_holders: set[str] = set()
_on_batch: Callable[[object], object] | None = None


def mark_data_loading(holder: str, on_batch: Callable[[object], object] | None = None) -> None:
    """Put a range around every wait for a torch DataLoader. Idempotent; nothing where torch
    has not imported them.

    holder: who wants it, until it is unmarked for that one. on_batch: is given each batch.
    """
    global _wrapped, _on_batch
    module = sys.modules.get("torch.utils.data.dataloader")
    iterators = getattr(module, "_BaseDataLoaderIter", None)
    if iterators is None:
        return
    _holders.add(holder)
    _on_batch = on_batch or _on_batch
    if _wrapped is not None:
        return
    original = iterators.__next__

    @functools.wraps(original)
    def waited_for(self: Any) -> Any:
        close = ranges.begin(DATA)
        try:
            batch = original(self)
        finally:
            if close is not None:
                close()
        if _on_batch is not None:
            _on_batch(batch)
        return batch

    _wrapped = iterators, original
    iterators.__next__ = waited_for


def unmark_data_loading(holder: str) -> None:
    """Put torch's own method back, where nobody else wants it wrapped."""
    global _wrapped, _on_batch
    _holders.discard(holder)
    if _wrapped is not None and not _holders:
        iterators, original = _wrapped
        iterators.__next__ = original
        _wrapped = _on_batch = None
