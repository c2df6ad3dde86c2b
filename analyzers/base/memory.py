"""Memory that is free but still held for whichever thread used it last."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

LARGE = 500_000
"""Rows. Arrays of fewer are too small to matter."""


def give_back(rows: int) -> None:
    """Give free memory back to the system before another thread needs as much; on Linux with glibc only.

    glibc keeps what a thread freed for that thread: of one device with 2 M kernels some 300 MB each.
    """
    if rows >= LARGE and (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Any:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return None
    trim.argtypes = [ctypes.c_size_t]
    return trim
