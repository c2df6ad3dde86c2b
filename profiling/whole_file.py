"""Files that appear under their name only when they are whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perfdoc.profiling.errors import CaptureError

PART = ".part-"
"""How the temporary name of an unfinished file or folder begins."""


@contextmanager
def whole_file(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary path beside `path` to write to, which is moved there at the end of the block.

    When the block raises, the temporary file is removed and `path` stays as it was. The temporary name
    ends as `path` does, for writers that choose a format by it. Raises CaptureError where `path` exists
    and is not to be replaced, before the block and again at its end. The system's errors name `path` where
    they name the temporary file, or none, as those of a full disk do.
    """
    if not replace and path.exists():
        raise _exists(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{PART}{os.getpid()}-{path.name}")
    try:
        yield part
        move_into_place(part, path, replace=replace)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(part)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        part.unlink(missing_ok=True)


def move_into_place(part: Path, path: Path, *, replace: bool = False) -> None:
    """Give a finished file its name, its content on the disk first.

    Raises CaptureError where the name is taken and not to be replaced.
    """
    with part.open("rb") as file:
        os.fsync(file.fileno())
    if replace:
        part.replace(path)
        return
    try:
        # A link, unlike a rename, fails where the name is taken.
        os.link(part, path)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:
        # File systems without links: the check and the move are two steps there.
        if path.exists():
            raise _exists(path) from None
        part.rename(path)
        return
    part.unlink()


def _exists(path: Path) -> CaptureError:
    return CaptureError(path, "exists and is not overwritten.", "Give another directory, or remove it.")
