"""Columns of traces that were read before, kept in a folder by the content of the trace.

Only where reading takes longer than finding and checking what is kept (`LEAST_BYTES`). An entry appears whole
or not at all, without locks; whoever finds it gone, damaged or another's reads the trace. What is kept is
bounded: least recently used goes first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import BinaryIO

from perfdoc.profiling import whole_file
from perfdoc.profiling.background import begun
from perfdoc.profiling.cache_folder import cache_folder
from perfdoc.profiling.errors import CaptureError
from perfdoc.profiling.nsys.command import find_nsys
from perfdoc.traces.column_file import DamagedError, most_bytes, read_columns, write_columns
from perfdoc.traces.model import Trace

OF = "traces"
MOST_BYTES = 10 * 10**9
MOST_FRAC = 0.1
"""Of the disk: of what is free and what is kept."""
_READ_WITH = ("adbc-driver-sqlite", "msgspec", "numpy", "pyarrow")
_END = ".columns"
_ABANDONED_S = 24 * 3600
_OTHERS_WRITE = 0o022
_DAMAGED = "perfdoc: kept columns of a trace are damaged; the trace is read again\n"


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What `perfdoc doctor` says."""

    folder: Path
    trouble: str
    """Why nothing is kept there; empty where something may be."""
    entries: int
    bytes: int
    most_bytes: int


def kept() -> Kept | None:
    """None where nothing is to be kept."""
    folder = cache_folder(OF)
    if folder is None:
        return None
    entries = _entries(folder)
    return Kept(
        folder=folder,
        trouble=_trouble(folder),
        entries=len(entries),
        bytes=sum(e.bytes for e in entries),
        most_bytes=_most_bytes(folder, entries),
    )


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the columns of one trace are kept, its content aside."""

    folder: Path
    begin: str
    """Of the file's name; the content's hash follows."""

    def anything(self) -> bool:
        """Whether there may be an entry: without one nobody waits for the hash."""
        return any(e.path.name.startswith(self.begin) for e in _entries(self.folder))

    def find(self, sha256: str, path: Path) -> Trace | None:
        """What is kept of that content, as the trace of `path`; what is damaged goes."""
        name = self._name(sha256)
        entry = self.folder / name
        try:
            with _opened(entry) as file:
                try:
                    trace = read_columns(file, name, path)
                except DamagedError:
                    sys.stderr.write(_DAMAGED)
                    entry.unlink()
                    return None
                with contextlib.suppress(OSError):
                    os.utime(file.fileno())
                return trace
        except (OSError, RuntimeError, MemoryError):  # no thread can be started where memory is short
            return None

    def keep(self, sha256: str, trace: Trace) -> None:
        """Write it where there is room. What goes wrong leaves nothing, and is nobody's trouble."""
        name = self._name(sha256)
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if _trouble(self.folder) or not _made_room(self.folder, most_bytes(trace)):
                return
            with _whole(self.folder, name) as file:
                write_columns(file, trace, name)
        except (OSError, ValueError):
            pass

    def _name(self, sha256: str) -> str:
        return f"{self.begin}{sha256}{_END}"


def place_of(kind: str, size: int) -> Place | None:
    """kind: whatever else the reader is told than the content, and the version of what it starts.

    None where nothing is to be kept.
    """
    folder, version = cache_folder(OF), _readers_version()
    if folder is None or not version or not hasattr(os, "geteuid"):
        return None
    digest = hashlib.sha256(f"{version} {kind}".encode()).hexdigest()[:16]
    return Place(folder=folder, begin=f"{size:x}-{digest}-")


@cache
def _readers_version() -> str:
    """Of all that a reader is made of: it changes whenever one may read something else. Empty: unknown."""
    rooms = (Path(__file__).parent, Path(whole_file.__file__).parent)
    return sources_digest(rooms)


def sources_digest(rooms: Sequence[Path]) -> str:
    """Of the source files below some folders and the packages that they read with; empty where unknown."""
    found = hashlib.sha256(sys.byteorder.encode())
    try:
        found.update(repr([version(name) for name in _READ_WITH]).encode())
        for room in rooms:
            for file in sorted(room.rglob("*")):
                if file.suffix in (".py", ".yaml"):
                    content = file.read_bytes()
                    found.update(f"{file.relative_to(room)} {len(content)}\n".encode())
                    found.update(content)
    except (OSError, PackageNotFoundError):
        return ""
    return found.hexdigest()


def nsys_version() -> str:
    """Of the nsys that exports reports; empty where it does not say."""
    try:
        nsys = find_nsys()
    except CaptureError:
        return ""
    return nsys.label if nsys is not None and nsys.version else ""


@dataclass(frozen=True, kw_only=True)
class _Entry:
    path: Path
    bytes: int
    used: float


def _entries(folder: Path) -> list[_Entry]:
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as files:
        for file in files:
            with contextlib.suppress(OSError):
                if file.name.endswith(_END) and file.is_file(follow_symlinks=False):
                    s = file.stat(follow_symlinks=False)
                    found.append(_Entry(path=Path(file.path), bytes=s.st_size, used=s.st_mtime))
    return found


def _trouble(folder: Path) -> str:
    """Why a folder is not to be used; empty where it may be, or may be made."""
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode):
        return "is no folder"
    if found.st_uid != os.geteuid():
        return "is somebody else's"
    if found.st_mode & _OTHERS_WRITE:
        return "can be written by others"
    return "" if os.access(folder, os.W_OK | os.X_OK) else "cannot be written"


@contextmanager
def _opened(entry: Path) -> Iterator[BinaryIO]:
    """An entry of our own in a folder of our own. Raises OSError."""
    if _trouble(entry.parent):
        raise PermissionError
    with os.fdopen(os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        foreign = found.st_uid != os.geteuid() or found.st_mode & _OTHERS_WRITE
        if foreign or not stat.S_ISREG(found.st_mode):
            raise PermissionError
        yield file


def _most_bytes(folder: Path, entries: list[_Entry]) -> int:
    try:
        there = next((f for f in (folder, *folder.parents) if f.is_dir()), Path("/"))
        free = shutil.disk_usage(there).free
    except OSError:
        return 0
    return min(MOST_BYTES, int(MOST_FRAC * (free + sum(e.bytes for e in entries))))


def _made_room(folder: Path, wanted: int) -> bool:
    """Whether so many bytes fit; the least recently used have gone for them."""
    _forget_abandoned(folder)
    entries = _entries(folder)
    room = _most_bytes(folder, entries) - wanted
    if room < 0:
        return False
    left = sum(e.bytes for e in entries)
    for entry in sorted(entries, key=lambda e: e.used):
        if left <= room:
            break
        with contextlib.suppress(OSError):
            entry.path.unlink()
        left -= entry.bytes
    return True


def _forget_abandoned(folder: Path) -> None:
    """What a kill left of a file, where the system has no files without a name."""
    for part in folder.glob(f"{whole_file.PART}*"):
        with contextlib.suppress(OSError):
            if part.lstat().st_mtime < time.time() - _ABANDONED_S:
                shutil.rmtree(part) if part.is_dir() else part.unlink()


@contextmanager
def _whole(folder: Path, name: str) -> Iterator[BinaryIO]:
    """A file that gets its name when it is whole; nothing where that is taken by then. Raises OSError.

    Until then it has none, where the system can do that, so that not even a kill leaves anything.
    """
    if nameless := getattr(os, "O_TMPFILE", 0):
        try:
            number = os.open(folder, nameless | os.O_WRONLY, 0o600)
        except OSError:  # not every file system can
            number = -1
        if number >= 0:
            with os.fdopen(number, "wb") as file, contextlib.suppress(FileExistsError):
                yield file
                file.flush()
                there = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
                try:  # with a folder the link of /proc is followed
                    os.link(f"/proc/self/fd/{number}", name, src_dir_fd=there, dst_dir_fd=there)
                finally:
                    os.close(there)
            return
    with (
        whole_file.whole_file(folder / name, replace=True) as part,
        os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
    ):
        yield file


def read_through(
    path: Path,
    place: Place | None,
    sha256: Future[str],
    unchanged: Callable[[], bool],
    read: Callable[[Path], Trace],
) -> tuple[Trace, Future[None] | None]:
    """The trace, as it is kept or as it is read; and the writing of what was read, where that goes on.

    unchanged: whether the file is as it was before it was hashed. Raises TraceError as `read` does.
    """
    if place is None:
        return read(path), None
    if place.anything() and sha256.exception() is None:  # whoever reads says why it failed
        found = place.find(sha256.result(), path)
        if found is not None:
            return found, None
    trace = read(path)
    if trace.is_large:  # what it takes to pack would not fit beside the analysis
        return trace, None

    def keep() -> None:
        if sha256.exception() is None and unchanged():
            place.keep(sha256.result(), trace)

    try:
        return trace, begun(keep, "keep")
    except RuntimeError:  # memory is too short for a thread
        return trace, None
