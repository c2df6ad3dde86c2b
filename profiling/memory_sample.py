"""What a process holds in memory at one moment, on the host and on its GPU."""

from __future__ import annotations

import ctypes
import importlib
import resource
import sys
import time
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

MemoryEvent: TypeAlias = Literal["start", "step", "end", "oom"]


class MemorySample(msgspec.Struct, frozen=True, kw_only=True):
    """One line of memory/rank<N>.jsonl. Bytes; null where the system or the device has no such figure."""

    event: MemoryEvent
    """start and end of the profiled window, the end of a step in it, or running out of GPU memory."""
    step: int
    time_ns: int
    """Nanoseconds of UTC since 1970."""
    resident_bytes: int | None
    """Pages of the process in memory."""
    peak_resident_bytes: int | None
    """Most that was ever resident since the process began."""
    heap_used_bytes: int | None
    """Handed out by the C library's allocator, where a CPU tensor's memory comes from."""
    heap_free_bytes: int | None
    """Held by that allocator and not handed out."""
    python_blocks: int
    """Blocks handed out by Python's own allocator."""
    allocated_bytes: int | None = None
    """In live tensors on the GPU."""
    peak_allocated_bytes: int | None = None
    """Most in live tensors since the start of the window."""
    reserved_bytes: int | None = None
    """Held by PyTorch's caching allocator on the GPU."""
    peak_reserved_bytes: int | None = None


class _Heap(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def sample_memory(event: MemoryEvent, step: int, *, cuda: bool) -> MemorySample:
    """The figures of this process now; those of its current GPU too with `cuda`."""
    used, free = _heap_bytes()
    gpu: dict[str, int] = {}
    if cuda:
        memory: Any = importlib.import_module("torch.cuda.memory")
        gpu = {
            "allocated_bytes": int(memory.memory_allocated()),
            "peak_allocated_bytes": int(memory.max_memory_allocated()),
            "reserved_bytes": int(memory.memory_reserved()),
            "peak_reserved_bytes": int(memory.max_memory_reserved()),
        }
    return MemorySample(
        event=event,
        step=step,
        time_ns=time.time_ns(),
        resident_bytes=_resident_bytes(),
        # Linux counts in KiB.
        peak_resident_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if sys.platform == "linux"
        else None,
        heap_used_bytes=used,
        heap_free_bytes=free,
        python_blocks=sys.getallocatedblocks(),
        **gpu,
    )


def _resident_bytes() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):
        return None
    return pages * resource.getpagesize()


def _heap_bytes() -> tuple[int | None, int | None]:
    """(handed out, free) of the C library's allocator; None each where it is not glibc 2.33 or later."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None, None
    mallinfo2.restype = _Heap
    heap = mallinfo2()
    # Large blocks are mapped one by one and counted apart.
    return int(heap.uordblks + heap.hblkhd), int(heap.fordblks)
