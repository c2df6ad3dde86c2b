"""Memory of the profiled window: figures by step everywhere, allocation snapshots on CUDA.

Snapshots are PyTorch's own (`torch.cuda.memory._snapshot`, pickled with protocol 4 so that its viewer reads
them): of the step after the window, `start` before it and the one without a word at its end, whose history of
allocations covers that step; and `oom` when an allocation failed. A history is not recorded within the
window: it walks Python's stack at each allocation, which looks like slow launches.
"""

import contextlib
import ctypes
import importlib
import pickle
import resource
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from perfdoc.profiling.logs import LineWriter
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.whole_file import whole_file

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
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
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


MAX_HISTORY = 1_000_000
"""Allocations and frees that a snapshot's history holds; older ones are lost first."""


class MemoryRecorder:
    """Records the memory of one rank during the profiled window."""

    def __init__(
        self,
        run: RunDirectory,
        rank: int,
        device: DeviceKind,
        *,
        history: bool = True,
        copy: str | None = None,
    ) -> None:
        """On CUDA with `history`: snapshots; of the last one a `copy` too, named with the rank."""
        self._run, self._rank, self._cuda = run, rank, device == "cuda"
        self._history = history and self._cuda
        self._copy = None if copy is None else Path(copy)
        self._lines: LineWriter | None = None
        self._step = 0
        self._watching = False

    def start(self, step: int) -> None:
        """The window opens before `step`. Raises OSError, as all of these do, where it cannot write."""
        self._lines = LineWriter(self._run.memory_path(self._rank, "jsonl"))
        self._step = step
        if self._cuda:
            _cuda_memory().reset_peak_memory_stats()
        if self._history:
            self._watch_out_of_memory()
        self._sample("start")

    def step_ended(self, step: int) -> None:
        """A step of the window is over."""
        self._step = step
        if self._lines is not None:
            self._sample("step")

    def stop(self) -> None:
        """The window closes; safe to repeat."""
        if self._lines is None:
            return
        try:
            self._sample("end")
        finally:
            self._lines.close()
            self._lines = None

    def start_history(self) -> None:
        """The step after the window begins. Does nothing without CUDA or `history`."""
        if self._history:
            self._snapshot("start.pickle")
            # Stacks of C++ take seconds to resolve; those of Python say enough.
            _cuda_memory()._record_memory_history(enabled="all", stacks="python", max_entries=MAX_HISTORY)

    def stop_history(self) -> None:
        """That step is over."""
        if not self._history:
            return
        self._snapshot("pickle")
        _cuda_memory()._record_memory_history(enabled=None)
        if self._copy is not None:
            self._copy.parent.mkdir(parents=True, exist_ok=True)
            target = self._copy.with_suffix(f".rank{self._rank}{self._copy.suffix}")
            shutil.copyfile(self._run.memory_path(self._rank, "pickle"), target)

    def _sample(self, event: MemoryEvent) -> None:
        assert self._lines is not None
        self._lines.write(sample_memory(event, self._step, cuda=self._cuda))

    def _snapshot(self, suffix: str) -> None:
        path = self._run.memory_path(self._rank, suffix)
        with whole_file(path, replace=suffix == "oom.pickle") as part, part.open("wb") as file:
            pickle.dump(_cuda_memory()._snapshot(), file, protocol=4)

    def _watch_out_of_memory(self) -> None:
        # torch cannot take an observer off again, so there is one, which looks whether a window is open.
        if self._watching:
            return
        self._watching = True

        def out_of_memory(device: int, wanted: int, allocated: int, free: int) -> None:
            if self._lines is None:
                return
            with contextlib.suppress(OSError):  # the training's own error is the one to be told
                self._sample("oom")
                self._snapshot("oom.pickle")

        importlib.import_module("torch._C")._cuda_attach_out_of_memory_observer(out_of_memory)


def _cuda_memory() -> Any:
    return importlib.import_module("torch.cuda.memory")
