"""How far something long is, on standard error: a bar where one is shown, else a line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress

from perfdoc.records import dataclass

QUIET_S = 1.0
"""A line this often at most."""
Bar = Callable[[str, float], None]
"""Shows what is being done, and how much of the whole is behind it (0 to 1)."""
Still = Callable[[], AbstractContextManager[None]]
"""For so long the thread that draws a bar is not there."""


@dataclass(kw_only=True)
class _Shown:
    bar: Bar | None = None
    low: float = 0.0
    high: float = 1.0
    """The part of the whole that stages are of now."""
    still: Still = nullcontext


_shown = _Shown()


@contextmanager
def shown_by(bar: Bar, still: Still = nullcontext) -> Iterator[None]:
    """Stages and tellings go to a bar."""
    _shown.bar, _shown.still, _shown.low, _shown.high = bar, still, 0.0, 1.0
    try:
        yield
    finally:
        _shown.bar, _shown.still = None, nullcontext


def still() -> AbstractContextManager[None]:
    """No thread draws while the block runs: a process with another thread is not to be copied."""
    return _shown.still()


def part(low: float, high: float) -> None:
    """Of the whole, what the next stages are of."""
    _shown.low, _shown.high = low, high


def stage(what: str, frac: float = 0.0) -> None:
    """What begins, and how much of the part is behind it. Without a bar nothing is said."""
    if _shown.bar is not None and not in_worker():
        _shown.bar(what, _shown.low + frac * (_shown.high - _shown.low))


def in_worker() -> bool:
    """Whether this is a process that another one started for a part of its work. Where nothing has imported
    multiprocessing, which takes sockets and shared memory along, it is none."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and module.parent_process() is not None


class Telling:
    """Lines about something that has begun, the first when it has lasted."""

    def __init__(self) -> None:
        self._begun = self._said = time.monotonic()

    def say(self, what: str, frac: float = 0.0) -> None:
        """Say it, unless the last line is of just now, or a worker is at it: whoever waits for workers tells
        how many files are done. frac: as of `stage`."""
        if _shown.bar is not None:
            stage(what, frac)
        elif (now := time.monotonic()) - self._said > QUIET_S and not in_worker():
            self._said = now
            # A library's user may have closed it; the command line guards its own.
            with suppress(AttributeError, ValueError):
                sys.stderr.write(f"perfdoc: {what}\n")
                sys.stderr.flush()

    def rate(self, done: int) -> float:
        """So many of what was done so far took a second."""
        return done / max(time.monotonic() - self._begun, 1e-9)
