"""What tells that a file was changed, short of reading it. Standard library only."""

from __future__ import annotations

from pathlib import Path


def file_state(path: Path) -> tuple[int, ...]:
    """Which file it is, its size and its times. Raises OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
