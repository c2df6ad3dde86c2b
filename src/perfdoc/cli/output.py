"""Writing results whole or not at all.

A regular file is written under a temporary name beside it and moved into place; a symbolic link stays, and
the file that it leads to is replaced. A pipe or a device is written through, never replaced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_SYSTEM_FOLDERS = (Path("/dev"), Path("/proc"))
"""Names there stand for what is open elsewhere: a file beside them cannot take their place."""


@dataclass(frozen=True, kw_only=True)
class _Target:
    """Where a content goes."""

    path: Path
    """As the user wrote it."""
    real: Path | None
    """The regular file behind symbolic links; None for what is written through."""


def write_all(contents: Mapping[Path, bytes], folder: Path | None = None) -> None:
    """Write every file, or none where one of them cannot be written.

    `folder` is made first where it is not there, with its parents. Raises OSError that names the path as
    it was given.
    """
    with ExitStack() as undo:
        if folder is not None:
            undo.enter_context(made(folder))
        targets = {path: _target(path) for path in contents}
        staged: list[tuple[_Target, Path]] = []
        for path, target in targets.items():
            if target.real is not None:
                staged.append((target, undo.enter_context(_staged(target, contents[path]))))
        for path, target in targets.items():
            if target.real is None:
                with _named(path), path.open("wb", buffering=0) as file:
                    _write_through(file.fileno(), contents[path])
        for target, temporary in staged:
            assert target.real is not None
            with _named(target.path):
                temporary.replace(target.real)


@contextmanager
def written_whole(path: Path) -> Iterator[IO[bytes]]:
    """A file to write to part by part, put in the place of `path` when the block ends without an error.

    Raises OSError that names the path as it was given. What fails inside of the block with a name of its own,
    such as that of a file which is read there, keeps it.
    """
    target = _target(path)
    if target.real is None:
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    with _begun(target) as (handle, temporary):
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
        except OSError as error:
            if error.filename is not None:
                raise
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        with _named(path):
            _set_mode(temporary, target)
            temporary.replace(target.real)


def may_write(path: Path) -> None:
    """Raise OSError where a file cannot be written there: no such folder, or a folder of its name."""
    with _named(path):
        if path.is_dir():
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not path.parent.is_dir():
            code = errno.ENOTDIR if path.parent.exists() else errno.ENOENT
            raise OSError(code, os.strerror(code))


def is_stream(path: Path) -> bool:
    """Whether a path is a pipe or a character device, which writing does not overwrite. Raises OSError."""
    if not path.exists():
        return False
    mode = path.stat().st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode)


def _target(path: Path) -> _Target:
    may_write(path)
    with _named(path):
        if path.exists() and not path.is_file():
            return _Target(path=path, real=None)
        if any(path.absolute().is_relative_to(f) for f in _SYSTEM_FOLDERS) and path.exists():
            return _Target(path=path, real=None)
        return _Target(path=path, real=Path(os.path.realpath(path)))


@contextmanager
def _staged(target: _Target, content: bytes) -> Iterator[Path]:
    """The content under a temporary name; removed unless it was moved away."""
    with _begun(target) as (handle, temporary):
        with _named(target.path):
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            _set_mode(temporary, target)
        yield temporary


@contextmanager
def _begun(target: _Target) -> Iterator[tuple[int, Path]]:
    """An empty open file beside the target, and its name; removed unless it was moved away."""
    assert target.real is not None
    with _named(target.path):
        handle, name = tempfile.mkstemp(dir=target.real.parent, prefix=".perfdoc-")
    try:
        yield handle, Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _set_mode(temporary: Path, target: _Target) -> None:
    """That of the file which is replaced, else what a new file gets."""
    assert target.real is not None
    there = target.real.exists()
    temporary.chmod(stat.S_IMODE(target.real.stat().st_mode) if there else 0o666 & ~_umask())


@contextmanager
def made(folder: Path) -> Iterator[None]:
    """A folder with its parents; what was made of them goes again where writing fails."""
    with _named(folder):
        made = [p for p in (folder, *folder.parents) if not p.exists()]
    try:
        with _named(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in made:
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the system with the user's path instead of a temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _write_through(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
