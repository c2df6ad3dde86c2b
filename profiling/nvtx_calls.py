"""The functions that emit NVTX: of the PyPI package `nvtx`, else of torch.cuda.nvtx.

The package's own functions look every text up in caches that they never empty. For a text that does not come
back (a collective's, with its number) that takes 7 us, and memory that is never given back. So its C
functions are called here, and who has a text that comes back keeps what `prepared` made of it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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
    through = f"nvtx {importlib.metadata.version('nvtx')}"
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
