"""Writing results whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_file(path: Path, content: bytes) -> None:
    """Write to a temporary name beside the target and move it into place. Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent or Path(), prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(name, 0o666 & ~_umask())  # noqa: PTH101 - mkstemp made it private
        os.replace(name, path)  # noqa: PTH105
    except BaseException:
        os.unlink(name)  # noqa: PTH108
        raise


def write_bundle(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files into a folder; on failure none of them appears. Raises OSError."""
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        staging = Path(tempfile.mkdtemp(dir=folder, prefix=".perfdoc-"))
        try:
            for name, content in files.items():
                (staging / name).write_bytes(content)
            for name in files:
                (staging / name).replace(folder / name)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except BaseException:
        if made and not any(folder.iterdir()):
            folder.rmdir()
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
