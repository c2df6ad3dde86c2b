"""How far something long is, on standard error."""

import contextlib
import sys
import time
from multiprocessing import parent_process

QUIET_S = 1.0
"""A line this often at most."""


class Telling:
    """Lines about something that has begun, the first when it has lasted."""

    def __init__(self) -> None:
        self._begun = self._said = time.monotonic()

    def say(self, what: str) -> None:
        """Say it, unless the last line is of just now, or a worker is at it: whoever waits for workers tells
        how many files are done."""
        if (now := time.monotonic()) - self._said > QUIET_S and parent_process() is None:
            self._said = now
            # A library's user may have closed it; the command line guards its own.
            with contextlib.suppress(AttributeError, ValueError):
                sys.stderr.write(f"perfdoc: {what}\n")
                sys.stderr.flush()

    def rate(self, done: int) -> float:
        """So many of what was done so far took a second."""
        return done / max(time.monotonic() - self._begun, 1e-9)
