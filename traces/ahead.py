"""A capture that is read and hashed from now on, or found in the cache, beside what else there is to do."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from perfdoc.profiling.background import begun
from perfdoc.profiling.file_state import file_state
from perfdoc.traces.cache import Place, nsys_version, place_of, read_through
from perfdoc.traces.load import KINETO, NSYS, content_sha256, read_trace, tool_of
from perfdoc.traces.model import Trace
from perfdoc.traces.nsys.at_rest import COMPANIONS
from perfdoc.traces.summary_file import is_summary

LEAST_BYTES = {NSYS: 24 << 20, KINETO: 1 << 19}
"""Of a file that the cache pays for, by tool, as measured (docs/performance.md); what is not named is not
kept. A compressed PyTorch trace is a twentieth of what is read of it."""


class Hashing(Protocol):
    """A hash that is being worked out."""

    @property
    def state(self) -> tuple[int, ...]:
        """Of the file before that, as profiling/file_state.py gives it."""

    def of(self, path: Path) -> Future[str] | None:
        """The hash, if it is that of this file."""


class Ahead:
    """A capture that threads read, or find in the cache, and hash from the moment this is made.

    Both release the interpreter lock for most of it. An exception is kept and raised where the result is
    asked for.
    """

    def __init__(self, path: Path, hashing: Hashing | None = None) -> None:
        """hashing: of a file, where it was begun with earlier."""
        self.path = path
        earlier = hashing.of(path) if hashing is not None else None
        self._state = hashing.state if hashing is not None and earlier else _state(path)
        self.sha256: Future[str] = earlier or begun(partial(content_sha256, path), "hash")
        self._keeping: Future[None] | None = None
        self.trace: Future[Trace] = begun(self._read, "read")

    def end(self) -> None:
        """Wait until what was read is in the cache, if it goes there."""
        if self._keeping is not None:
            self._keeping.exception()

    def _read(self) -> Trace:
        place = _cached_at(self.path)
        trace, self._keeping = read_through(self.path, place, self.sha256, self._is_unchanged, read_trace)
        return trace

    def _is_unchanged(self) -> bool:
        return self._state is not None and self._state == _state(self.path) and not _has_log(self.path)


def _state(path: Path) -> tuple[int, ...] | None:
    with contextlib.suppress(OSError, ValueError):
        return file_state(path)
    return None


def _cached_at(path: Path) -> Place | None:
    """Where a capture's columns are kept, or will be; None where that does not pay, or would not be right."""
    try:
        if path.is_dir() or _has_log(path):
            return None
        size = path.stat().st_size
        if path.suffix == ".nsys-rep":
            version = nsys_version()
            return place_of(f"{path.suffix} {version}", size) if version else None
        least = LEAST_BYTES.get(tool_of(path))
        return place_of("", size) if least is not None and size >= least else None
    except (OSError, ValueError):  # reading says why
        return None


def _has_log(path: Path) -> bool:
    """Whether SQLite may have to apply what lies beside a file: its content is not all that is read."""
    return any(Path(f"{path}{end}").exists() for end in COMPANIONS)


def read_ahead(path: Path, hashing: Hashing | None = None) -> Ahead | None:
    """A capture that is read from now on; None for a summary, which is read at once."""
    return None if is_summary(path) else Ahead(path, hashing)
