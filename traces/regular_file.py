"""Only files with an end are read: opening a pipe or a device could wait for ever."""

from __future__ import annotations

import stat
from pathlib import Path

from perfdoc.traces.errors import TraceError


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
