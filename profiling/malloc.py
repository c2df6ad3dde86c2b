"""What glibc does with memory that is free: kept for the next large array, or given back."""

import ctypes
import os
from functools import cache
from typing import Any

_TRIM, _MAP, _ARENAS = -1, -3, -8
"""Numbers of mallopt's options in glibc's malloc.h."""
_KEPT_BYTES = 256 << 20
_MAPPED_BYTES = (64 << 20, 32 << 20)
"""The first that this glibc takes: up to about 2.35 it refuses more than half a heap."""


def without_threads() -> None:
    """Before numpy and pyarrow are imported: their libraries for matrices, which no analysis needs, and for
    memory have threads; those of the first spin. Without, the process may be copied (diagnose/workers.py).

    Nor huge pages: the host of a virtual machine takes free ones away and makes each anew when it is touched,
    a sixth of the CPU time of one device with 2 M kernels. Small ones cost 2 % of it more without a host.
    """
    os.environ.setdefault("NUMPY_MADVISE_HUGEPAGE", "0")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("JE_ARROW_MALLOC_CONF", "background_thread:false")


def reuse_memory() -> None:
    """Make arrays of up to 64 MB of memory that is free already, whichever thread freed it; before other
    threads start.

    glibc maps every large array anew, and the kernel clears it page by page: a sixth of the CPU time of one
    device with 2 M kernels. Up to 256 MB stay until `trim`.
    """
    if (option := _c_function("mallopt")) is not None:
        option.argtypes = [ctypes.c_int, ctypes.c_int]
        option(_ARENAS, 1)
        # Either option ends glibc's own choice of both, so that the second alone would map every array.
        if any(option(_MAP, value) for value in _MAPPED_BYTES):
            option(_TRIM, _KEPT_BYTES)


def trim() -> None:
    """Give what is free back to the system."""
    if (malloc_trim := _c_function("malloc_trim")) is not None:
        malloc_trim.argtypes = [ctypes.c_size_t]
        malloc_trim(0)


@cache
def _c_function(name: str) -> Any:
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # another C library, or Windows
        return None
