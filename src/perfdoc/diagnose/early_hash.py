"""The SHA-256 of the one file that is to be analysed, begun before what reads it is imported.

Imports keep one core busy and hashing hardly needs the interpreter lock, so it is done by the time that
reading begins. It must import nothing but the standard library.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from perfdoc.profiling.background import begun
from perfdoc.profiling.file_state import file_state

_CAPTURES = (".sqlite", ".json", ".gz")
"""What is analysed as it was named; of a .nsys-rep an export may be."""


@dataclass(frozen=True, kw_only=True)
class EarlyHash:
    """The hash of a file, some time."""

    path: Path
    state: tuple[int, ...]
    """Of the file before it was hashed, as `file_state` gives it."""
    sha256: Future[str]

    def of(self, path: Path) -> Future[str] | None:
        """The hash, if it is that of this file and did not fail by now: whoever reads the file says why."""
        failed = self.sha256.done() and self.sha256.exception() is not None
        return self.sha256 if path == self.path and not failed else None


def begin_hash(paths: Sequence[str]) -> EarlyHash | None:
    """Begin with the file that these arguments name, where it is one and a regular one."""
    if len(paths) != 1 or not paths[0].endswith(_CAPTURES):
        return None
    path = Path(paths[0])
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe could wait for ever
            return None
        state = file_state(path)
    except (OSError, ValueError):
        return None
    return EarlyHash(path=path, state=state, sha256=begun(partial(_sha256, path), "early-hash"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
