"""What takes long to make and is the same for every page, kept where Python keeps compiled modules.

So it needs no setting of its own, is as trustworthy as the code that runs, and follows Python's own: none is
written with PYTHONDONTWRITEBYTECODE, and PYTHONPYCACHEPREFIX moves it. Where it cannot be written it is made
every time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
from collections.abc import Callable
from importlib.util import cache_from_source
from pathlib import Path

from jinja2 import FileSystemBytecodeCache
from jinja2.bccache import Bucket

_DIGEST_BYTES = 32
"""SHA-256 of the content, before it: a machine that lost power may have kept the name without the bytes."""
_MODE = 0o644
"""Who else uses this installation may read it: nothing in it is private."""


def folder_beside(source: Path) -> Path:
    """The folder of compiled modules for those that lie beside this file; it need not be there."""
    return Path(cache_from_source(str(source.with_suffix(".py")))).parent


def kept_or_made(file: Path, make: Callable[[], bytes]) -> bytes:
    """The content of a file of such a folder; made, and kept if that can be, where it is not there or spoilt.

    file: named by everything that the content follows from.
    """
    with contextlib.suppress(OSError):
        stored = file.read_bytes()
        content = stored[_DIGEST_BYTES:]
        if hashlib.sha256(content).digest() == stored[:_DIGEST_BYTES]:
            return content
    content = make()
    if not sys.dont_write_bytecode:
        with contextlib.suppress(OSError):
            _replace(file, hashlib.sha256(content).digest() + content)
    return content


def _replace(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
        Path(name).chmod(_MODE)
        Path(name).replace(file)
    except BaseException:
        Path(name).unlink(missing_ok=True)  # a signal may come after the move
        raise


class CompiledTemplates(FileSystemBytecodeCache):
    """Compiled templates; each is compiled again when its text or Python's version changes."""

    def __init__(self, templates: Path) -> None:
        super().__init__(str(folder_beside(templates / "any")))

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Write one, where that can be."""
        if not sys.dont_write_bytecode:
            with contextlib.suppress(OSError):
                Path(self.directory).mkdir(parents=True, exist_ok=True)
                super().dump_bytecode(bucket)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Read one, where it is there."""
        with contextlib.suppress(OSError):
            super().load_bytecode(bucket)
