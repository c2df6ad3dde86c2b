"""Streams, events and NVTX where there is one queue of work, the thread itself, and no CUDA.

Call sites: param_and_grad_buffer (`torch.cuda.stream(…)`, `default_stream()`), token_dispatcher (its copy
stream), p2p_communication and dist_checkpointing (`synchronize()`), schedules.

Call site: megatron.core.utils.nvtx_range_push calls `torch.cuda.nvtx.range_push`, which raises in a CPU
build.
The ranges go where the trainer's own go.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from perfdoc.profiling import ranges


class Stream:
    """Work on it is done when the call returns, so waiting is free."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs

    def wait_stream(self, stream: Any) -> None:
        """Nothing is outstanding."""

    def wait_event(self, event: Any) -> None:
        """Nothing is outstanding."""

    def synchronize(self) -> None:
        """Nothing is outstanding."""

    def query(self) -> bool:
        """All work is done."""
        return True

    def record_event(self, event: Event | None = None) -> Event:
        """The event, recorded now."""
        event = event or Event()
        event.record(self)
        return event


class Event:
    """A point in the thread's time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        self._at_ns = 0

    def record(self, stream: Any = None) -> None:
        """Take the time."""
        del stream
        self._at_ns = time.perf_counter_ns()

    def wait(self, stream: Any = None) -> None:
        """It is past."""

    def synchronize(self) -> None:
        """It is past."""

    def query(self) -> bool:
        """It is past."""
        return True

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds between two records, as CUDA's events answer."""
        return (end._at_ns - self._at_ns) / 1e6


_only = Stream()


def _the_stream(device: Any = None) -> Stream:
    del device
    return _only


def _synchronize(device: Any = None) -> None:
    del device


def _on_stream(stream: Any) -> contextlib.AbstractContextManager[None]:
    del stream
    return contextlib.nullcontext()


def install_streams() -> None:
    """Replace the stream functions of torch.cuda."""
    torch.cuda.Stream = Stream
    torch.cuda.Event = Event
    torch.cuda.stream = _on_stream
    torch.cuda.current_stream = _the_stream
    torch.cuda.default_stream = _the_stream
    torch.cuda.synchronize = _synchronize


def _push(message: str) -> int:
    ranges.push(message)
    return 0


def _pop() -> int:
    ranges.pop()
    return 0


def _mark(message: str) -> None:
    ranges.mark(message)


def install_nvtx() -> None:
    """Replace the three functions of torch.cuda.nvtx that are used."""
    nvtx: Any = torch.cuda.nvtx
    nvtx.range_push = _push
    nvtx.range_pop = _pop
    nvtx.mark = _mark
