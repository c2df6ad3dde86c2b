"""Reading a capture while its reader does something else, such as importing what will measure it."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from perfdoc.profiling.background import begun
from perfdoc.traces.load import content_sha256, read_trace
from perfdoc.traces.model import Trace


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
        self.trace: Future[Trace] = begun(partial(read_trace, path), "read")
        earlier = hashing.of(path) if hashing is not None else None
        self.sha256: Future[str] = earlier or begun(partial(content_sha256, path), "hash")
