"""Writing a result under a temporary name and moving it into place."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def refuse_overwrite(path: Path, force: bool) -> None:
    """FileExistsError where something is there and `force` is not given."""
    if path.exists() and not force:
        raise FileExistsError(f"{path} is there already; give force=True to overwrite it")


@contextmanager
def placed(path: Path, *, force: bool) -> Iterator[Path]:
    """A path beside `path` to write a file or a folder to; moved to `path` when the block ends well.

    Nothing is left behind when the block raises. FileExistsError as in `refuse_overwrite`.
    """
    refuse_overwrite(path, force)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name[:40]}."))
    try:
        inner = scratch / "result"
        yield inner
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        inner.replace(path)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
