"""Ranges and marks on the host: NVTX for Nsight Systems, record_function for the PyTorch profiler.

Off (the state after import) a range costs its object and one test. On, NVTX comes from the PyPI package
`nvtx`, else from torch.cuda.nvtx where there is a CUDA device, and record_function is entered only while a
PyTorch profiler collects. Cost of one `with range(name)` on a 2-core x86 machine with Python 3.11, torch
2.13 and nvtx 0.2.11 (`python -m perfdoc.profiling.range_cost`; docs/run_directory.md has the table):

    off 0.2 us · NVTX without a tool 0.6 us · NVTX under nsys 2024.2 1.4 us · PyTorch profiler 5 us
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_push: Callable[[str], object] | None = None
_pop: Callable[[], object] | None = None
_mark: Callable[[str], object] | None = None
_start: Callable[[str], object] | None = None
_end: Callable[[Any], object] | None = None
_torch_profiler: Any = None
"""torch.autograd.profiler while record_function ranges are wanted."""
_on = False


class range:  # noqa: N801 - used as `with ranges.range(...)`, as NVTX and torch spell it
    """A range on the calling thread: `with range(name): ...` or `@range(name)`.

    What a range opened it closes, even when ranges are switched on or off in between.
    """

    __slots__ = ("_nvtx", "_record", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._nvtx: Callable[[], object] | None = None
        self._record: Any = None

    def __enter__(self) -> range:
        if _on:
            self._open()
        return self

    def _open(self) -> None:
        # The profiler's range is opened outermost and closed last, so that NVTX's cost lies inside it.
        if _torch_profiler is not None and _torch_profiler._is_profiler_enabled:
            self._record = _torch_profiler.record_function(self.name)
            self._record.__enter__()
        if _push is not None:
            _push(self.name)
            self._nvtx = _pop

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pop, record = self._nvtx, self._record
        if pop is not None:
            self._nvtx = None
            pop()
        if record is not None:
            self._record = None
            record.__exit__(kind, error, trace)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Run every call of `function` in a range of this name."""
        name = self.name

        @functools.wraps(function)
        def in_range(*args: P.args, **kwargs: P.kwargs) -> R:
            with range(name):
                return function(*args, **kwargs)

        return in_range


_pushed = threading.local()


def push(name: str) -> None:
    """Open a range on this thread, for callers that have no block; `pop` closes it, whatever is on then."""
    stack: list[range] = _pushed.__dict__.setdefault("stack", [])
    stack.append(range(name).__enter__())


def pop() -> None:
    """Close the range that `push` opened last on this thread; nothing where there is none."""
    stack: list[range] = _pushed.__dict__.setdefault("stack", [])
    if stack:
        stack.pop().__exit__(None, None, None)


def mark(name: str) -> None:
    """An instant: an NVTX mark, and an empty range for the PyTorch profiler, which has no marks."""
    if not _on:
        return
    if _mark is not None:
        _mark(name)
    if _torch_profiler is not None and _torch_profiler._is_profiler_enabled:
        with _torch_profiler.record_function(name):
            pass


def start(name: str) -> object | None:
    """Open an NVTX range that may end on another thread; give the result to `end`. None while off.

    The PyTorch profiler has no such ranges.
    """
    return _start(name) if _on and _start is not None else None


def end(handle: object | None) -> None:
    """Close a range of `start`, on any thread, whether ranges are still on or not."""
    if handle is not None and _end is not None:
        _end(handle)


def on() -> bool:
    """Whether ranges are emitted now; callers skip the making of long names while they are not."""
    return _on


def enable(*, nvtx: bool = True, record_function: bool = True) -> str:
    """Emit ranges from now on, and say through what: "nvtx 0.2.11, record_function", or "" for nothing.

    NVTX is left out where neither the package nor a CUDA build of torch is there; record_function where
    torch cannot be imported. Neither is an error: the session that needs ranges checks the answer.
    """
    global _push, _pop, _mark, _start, _end, _torch_profiler, _on
    means: list[str] = []
    _push = _pop = _mark = _start = None
    if nvtx and (found := _nvtx_functions()) is not None:
        name, _push, _pop, _mark, _start, _end = found
        means.append(name)
    _torch_profiler = None
    if record_function:
        try:
            _torch_profiler = importlib.import_module("torch.autograd.profiler")
            means.append("record_function")
        except ImportError:
            pass
    _on = bool(means)
    return ", ".join(means)


def disable() -> None:
    """Emit nothing from now on. Ranges that are open close as they were opened."""
    global _on
    _on = False


def _nvtx_functions() -> tuple[str, Any, Any, Any, Any, Any] | None:
    try:
        package = importlib.import_module("nvtx")
    except ImportError:
        pass
    else:
        return (
            f"nvtx {importlib.metadata.version('nvtx')}",
            package.push_range,
            package.pop_range,
            package.mark,
            package.start_range,
            package.end_range,
        )
    try:
        cuda = importlib.import_module("torch.cuda")
    except ImportError:
        return None
    if not cuda.is_available():
        return None
    return (
        "torch.cuda.nvtx",
        cuda.nvtx.range_push,
        cuda.nvtx.range_pop,
        cuda.nvtx.mark,
        cuda.nvtx.range_start,
        cuda.nvtx.range_end,
    )
