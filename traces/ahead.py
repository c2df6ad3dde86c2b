"""Reading a capture while its reader does something else, such as importing what will measure it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import Protocol, TypeVar

from perfdoc.traces.load import content_sha256, read_trace
from perfdoc.traces.model import Trace

_T = TypeVar("_T")


class Hashing(Protocol):
    """A hash that is being worked out."""

    def of(self, path: Path) -> Future[str] | None:
        """The hash, if it is that of this file."""


class Ahead:
    """A capture that threads read and hash from the moment this is made.

    Both release the interpreter lock for most of it. An exception is kept and raised where the result is
    asked for.
    """

    def __init__(self, path: Path, hashing: Hashing | None = None) -> None:
        """hashing: of a file, where it was begun with earlier."""
        self.path = path
        self.trace: Future[Trace] = _begun(read_trace, path)
        earlier = hashing.of(path) if hashing is not None else None
        self.sha256: Future[str] = earlier or _begun(content_sha256, path)


def _begun(function: Callable[[Path], _T], path: Path) -> Future[_T]:
    """Daemons, unlike a pool's threads, so that an interrupt need not wait for them."""
    future: Future[_T] = Future()

    def work() -> None:
        try:
            future.set_result(function(path))
        except BaseException as error:  # noqa: BLE001 - raised again by whoever asks
            future.set_exception(error)

    Thread(target=work, daemon=True, name=f"perfdoc-{function.__name__}").start()
    return future
