"""One process at a time at what lies in a folder."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Wait until no other process holds what is read, changed and written back in the folder.

    The lock is on the folder's parent, or what there is of its path: the folder may be made while it is held,
    and nothing is left behind. The kernel lets go of it when its holder is killed. Where a system or a file
    system has no locks, nothing waits.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            there = next(p for p in folder.absolute().parents if p.is_dir())
            held = os.open(there, os.O_RDONLY)
            stack.callback(os.close, held)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
