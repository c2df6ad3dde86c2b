"""Why a capture is not read, and the first check: only files with an end are."""

from __future__ import annotations

import stat
from pathlib import Path

from perfdoc.profiling.errors import TraceError as TraceError


class UnreadableError(TraceError):
    """A capture that cannot be read at all: one among many can be left out, and told."""


class MissingToolError(TraceError):
    """The program that reads this format is not here: that is no reason to leave a rank out."""


class NoGpuActivityError(TraceError):
    """A whole and readable capture in which no GPU did anything: of one rank among many, a gap to report.

    holds: what it shows instead, a line each.
    """

    def __init__(self, path: Path | str, what: str, remedy: str = "", holds: tuple[str, ...] = ()) -> None:
        super().__init__(path, what, remedy)
        self.holds = holds

    def __reduce__(self) -> tuple[type[TraceError], tuple[object, ...]]:
        """With what it holds."""
        return type(self), (self.path, self.what, self.remedy, self.holds)


def require_regular(path: Path) -> None:
    """Refuse, without opening it, what is not a regular file or cannot be reached. Raises TraceError."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.", "Check the path.") from error
    if stat.S_ISDIR(mode):
        raise TraceError(path, "is a folder where a file belongs.", "Export or copy the file again.")
    if not stat.S_ISREG(mode):
        raise TraceError(path, "is a pipe or a device, not a file.", "Copy what it holds to a file first.")
