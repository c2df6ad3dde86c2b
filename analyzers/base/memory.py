"""Memory that is free but still held by whatever used it last."""

from __future__ import annotations

from perfdoc.profiling.malloc import trim

LARGE = 5_000_000
"""Rows. Of fewer the next arrays take what is free: memory peaks no higher, and the kernel clears less."""


def give_back(rows: int) -> None:
    """Give free memory back to the system before another thread needs as much.

    glibc keeps what was freed, and Arrow what columns of Parquet were read into: of 20 M kernels 150 MB.
    """
    if rows >= LARGE:
        import pyarrow as pa

        pa.default_memory_pool().release_unused()
        trim()
