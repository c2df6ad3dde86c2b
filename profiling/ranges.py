"""Ranges and marks on the host: NVTX for Nsight Systems, record_function for the PyTorch profiler.

Off (the state after import) a range costs its object and one test. On, NVTX comes from the PyPI package
`nvtx`, else from torch.cuda.nvtx where there is a CUDA device, and record_function is entered only while a
PyTorch profiler collects. Cost of one `with range(name)` on a 2-core x86 machine with Python 3.11, torch
2.13 and nvtx 0.2.11 (docs/formats.md has the table):

    off 0.2 us · NVTX without a tool 0.6 us · NVTX under nsys 2024.2 1.4 us · PyTorch profiler 5 us
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import Any, ParamSpec, TypeAlias, TypeVar

from perfdoc.records import dataclass

_COLOUR = 0xFF76B900


@dataclass(frozen=True, kw_only=True)
class NvtxCalls:
    """NVTX as this process can call it."""

    through: str
    """`nvtx 0.2.11` or `torch.cuda.nvtx`."""
    prepared: Callable[[str], Callable[[], object]]
    """What opens a range of this text on the thread that calls it, as often as it is called."""
    push: Callable[[str], object]
    """Open a range on this thread; nothing of its text is kept."""
    pop: Callable[[], object]
    mark: Callable[[str], object]
    start: Callable[[str], object]
    """Open a range that may end on another thread; nothing of its text is kept."""
    end: Callable[[Any], object]


@functools.cache
def nvtx_calls() -> NvtxCalls | None:
    """What there is; None where neither the package nor a CUDA device is."""
    try:
        package = importlib.import_module("nvtx")
    except ImportError:
        return _of_torch()
    from importlib.metadata import version

    through = f"nvtx {version('nvtx')}"
    if package.enabled():  # Where NVTX_DISABLE is set, the package's own functions do nothing.
        try:
            return _direct(package, through)
        except (ImportError, AttributeError, TypeError):
            pass  # Another version of the package, built otherwise.
    return NvtxCalls(
        through=through,
        prepared=lambda text: functools.partial(package.push_range, text),
        push=package.push_range,
        pop=package.pop_range,
        mark=package.mark,
        start=package.start_range,
        end=package.end_range,
    )


def _of_torch() -> NvtxCalls | None:
    try:
        cuda = importlib.import_module("torch.cuda")
    except ImportError:
        return None
    if not cuda.is_available():
        return None
    return NvtxCalls(
        through="torch.cuda.nvtx",
        prepared=lambda text: functools.partial(cuda.nvtx.range_push, text),
        push=cuda.nvtx.range_push,
        pop=cuda.nvtx.range_pop,
        mark=cuda.nvtx.mark,
        start=cuda.nvtx.range_start,
        end=cuda.nvtx.range_end,
    )


class _Text:
    """What the package's attributes take as a message."""

    __slots__ = ("handle",)
    handle: object


def _direct(package: Any, through: str) -> NvtxCalls:
    """The package's C functions. Raises what a package without them raises."""
    lib: Any = importlib.import_module("nvtx._lib.lib")
    domain = package.get_domain(None).handle
    push_range, start_range = lib.push_range, lib.start_range

    event_attributes, string_handle = lib.EventAttributes, lib.StringHandle

    def attributes(text: str) -> object:
        message = _Text()
        message.handle = string_handle(domain, text)
        return event_attributes(message, _COLOUR)

    attributes("perfdoc")
    return NvtxCalls(
        through=through,
        prepared=lambda text: functools.partial(push_range, attributes(text), domain),
        push=lambda text: push_range(attributes(text), domain),
        pop=functools.partial(lib.pop_range, domain),
        mark=lambda text: lib.mark(attributes(text), domain),
        start=lambda text: start_range(attributes(text), domain),
        end=lib.end_range,
    )


P = ParamSpec("P")
R = TypeVar("R")

MAX_KEPT = 10_000
"""Names that are kept for `begin`. A model has fewer parts; more means numbers in names."""

Opened: TypeAlias = Callable[[], object]
"""Closes an open range; to be called once, on the thread that opened it."""
Started: TypeAlias = tuple[Callable[[Any], object], object]
"""What ends a range that may end on another thread."""


def _nothing() -> None:
    return None


_on = False
_nvtx: NvtxCalls | None = None
_torch_profiler: Any = None
"""torch.autograd.profiler while record_function ranges are wanted."""
_kept: dict[str, Callable[[], object]] = {}
"""What opens the NVTX range of a name that came before."""
_fast: dict[str, Callable[[], object]] = {}
"""_kept while nothing but NVTX is wanted, else empty."""
_pop: Opened = _nothing
_timed: Mapping[str, Callable[[], Opened]] = MappingProxyType({})
"""What times the phases of a step while nothing is emitted, by the range's name."""


def begin(name: str) -> Opened | None:
    """Open a range on this thread; call the result to close it. None while off.

    For callers that count tenths of a microsecond; `with range(name)` does the same.
    """
    # One lookup decides: the caches are cold where a range is wanted, and every further step shows.
    push = _fast.get(name)
    if push is not None:
        push()
        return _pop
    if _on:
        return _begin(name)
    timed = _timed.get(name)
    return None if timed is None else timed()


def _begin(name: str) -> Opened:
    if _torch_profiler is not None and _torch_profiler._is_profiler_enabled:
        return _recorded(name)
    if _nvtx is None:
        return _nothing
    push = _kept.get(name)
    if push is None:
        push = _nvtx.prepared(name)
        if len(_kept) < MAX_KEPT:
            _kept[name] = push
    push()
    return _nvtx.pop


def begin_once(name: str) -> Opened | None:
    """As `begin`, for a name that does not come back: nothing of it is kept."""
    if not _on:
        return None
    if _torch_profiler is not None and _torch_profiler._is_profiler_enabled:
        return _recorded(name)
    if _nvtx is None:
        return _nothing
    _nvtx.push(name)
    return _nvtx.pop


def _recorded(name: str) -> Opened:
    # The profiler's range is opened outermost and closed last, so that NVTX's cost lies inside it.
    record = _torch_profiler.record_function(name)
    record.__enter__()
    pop = None
    if _nvtx is not None:
        _nvtx.push(name)
        pop = _nvtx.pop

    def close() -> None:
        if pop is not None:
            pop()
        record.__exit__(None, None, None)

    return close


class range:  # noqa: N801 - used as `with ranges.range(...)`, as NVTX and torch spell it
    """A range on the calling thread: `with range(name): ...` or `@range(name)`.

    What a range opened it closes, even when ranges are switched on or off in between.
    """

    __slots__ = ("_opened", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self._opened: Opened | None = None

    def __enter__(self) -> range:
        if _on or _timed:
            self._opened = begin(self.name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        opened, self._opened = self._opened, None
        if opened is not None:
            opened()

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Run every call of `function` in a range of this name."""
        kind, name = type(self), self.name

        @functools.wraps(function)
        def in_range(*args: P.args, **kwargs: P.kwargs) -> R:
            with kind(name):
                return function(*args, **kwargs)

        return in_range


def mark(name: str) -> None:
    """An instant: an NVTX mark, and an empty range for the PyTorch profiler, which has no marks."""
    if not _on:
        return
    if _nvtx is not None:
        _nvtx.mark(name)
    if _torch_profiler is not None and _torch_profiler._is_profiler_enabled:
        with _torch_profiler.record_function(name):
            pass


def start(name: str) -> Started | None:
    """Open an NVTX range that may end on another thread; give the result to `end`. None while off.

    The PyTorch profiler has no such ranges. The name is not kept, as in `begin_once`.
    """
    return (_nvtx.end, _nvtx.start(name)) if _on and _nvtx is not None else None


def end(started: Started | None) -> None:
    """Close a range of `start`, on any thread, whether ranges are still on or not."""
    if started is not None:
        close, handle = started
        close(handle)


def on() -> bool:
    """Whether ranges are emitted now; callers skip the making of long names while they are not."""
    return _on


def time_phases(phases: Mapping[str, Callable[[], Opened]]) -> None:
    """Call these where a range of exactly their name opens while none is emitted; with none, nothing is."""
    global _timed
    _timed = phases


def timed() -> bool:
    """Whether phases are timed while nothing is emitted."""
    return bool(_timed)


def enable(*, nvtx: bool = True, record_function: bool = True) -> str:
    """Emit ranges from now on, and say through what: "nvtx 0.2.11, record_function", or "" for nothing.

    NVTX is left out where neither the package nor a CUDA build of torch is there; record_function where
    torch cannot be imported. Neither is an error: the session that needs ranges checks the answer.
    """
    global _nvtx, _torch_profiler, _on, _kept, _fast, _pop
    means: list[str] = []
    _nvtx = nvtx_calls() if nvtx else None
    _pop = _nothing if _nvtx is None else _nvtx.pop
    _kept = {}
    if _nvtx is not None:
        means.append(_nvtx.through)
    _torch_profiler = None
    if record_function:
        try:
            _torch_profiler = importlib.import_module("torch.autograd.profiler")
            means.append("record_function")
        except ImportError:
            pass
    _on = bool(means)
    _fast = _kept if _nvtx is not None and _torch_profiler is None else {}
    return ", ".join(means)


def disable() -> None:
    """Emit nothing from now on. Ranges that are open close as they were opened."""
    global _on, _fast
    _on, _fast = False, {}
