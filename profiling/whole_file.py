"""Files that appear under their name only when they are whole, and folders that one process has to itself.

What is unfinished lies in a scratch folder beside its place and is moved there at the end; where anything
goes wrong, a signal included, the scratch folder goes and the place stays as it was. A symbolic link stays,
and the file that it leads to is replaced and keeps its permissions. A pipe or a device is written through.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from perfdoc.profiling.errors import TraceError

WAIT_S = 60.0
_AGAIN_S = 0.1


@contextmanager
def alone_in(folder: Path, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Keep this user's other processes on this machine out while a folder's files are read, changed, written.

    Says that it waits where it does, and raises ValueError after WAIT_S. The lock is a file among the
    temporary ones, named by the folder's path, so that the folder need not exist and nothing is left in it;
    the kernel lets go of it when its holder is killed. Who holds it takes it away at the end. Where a system
    has no locks, nothing waits.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]
    give_up: float | None = None
    with contextlib.ExitStack() as stack:
        while True:
            try:
                import fcntl

                file = Path(tempfile.gettempdir()) / f"perfdoc-{os.getuid()}-{name}.lock"
                held = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
            except (ImportError, OSError):
                break
            opened = stack.enter_context(contextlib.ExitStack())
            opened.callback(os.close, held)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(file.stat(), os.fstat(held)):
                    stack.callback(file.unlink, missing_ok=True)
                    break
            except BlockingIOError as error:
                if give_up is None:
                    say(f"{folder}: waiting for another process")
                    give_up = time.monotonic() + WAIT_S
                if time.monotonic() > give_up:
                    raise ValueError(f"{folder}: another process has held it for {WAIT_S:.0f} s.") from error
                time.sleep(_AGAIN_S)
            except FileNotFoundError:
                pass  # its last holder has taken it away
            except OSError:
                break
            opened.close()
        yield


PART = ".part-"
"""How the temporary name of an unfinished file or folder begins."""
_NAME_LENGTH = 40
"""Of a name, in that of its scratch folder: which file it is of is seen where a kill left it."""
_SYSTEM_FOLDERS = (Path("/dev"), Path("/proc"))
"""Names there stand for what is open elsewhere: a file beside them cannot take their place."""


@contextmanager
def scratch(folder: Path, name: str = "") -> Iterator[Path]:
    """An empty folder in `folder`, on the same disk, which goes with what is in it when the block ends.

    name: of what is made there.
    """
    with ExitStack() as undo:
        with undisturbed():
            made = Path(tempfile.mkdtemp(dir=folder, prefix=f"{PART}{name[:_NAME_LENGTH]}-"))
            undo.callback(undisturbed()(shutil.rmtree), made, ignore_errors=True)
        yield made


@contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that stop a program come at the end of the block: one between a step and the note of how to
    undo it, or in the midst of several that belong together, would leave what is half done."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def whole_file(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """A temporary path to write a file or a folder to, which is moved to `path` at the end of the block.

    Its name is that of `path`, for writers that choose a format by its ending. Raises TraceError where
    `path` exists and is not to be replaced, before the block and again at its end. The system's errors name
    `path` where they name the temporary file, or none, as those of a full disk do.
    """
    refuse_overwrite(path, replace=replace)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _beside(path) as part:
        try:
            yield part
            move_into_place(part, path, replace=replace)
        except OSError as error:
            own = error.filename is None or Path(str(error.filename)).is_relative_to(part.parent)
            if error.errno is None or not own:
                raise
            raise OSError(error.errno, error.strerror, str(path)) from error


def refuse_overwrite(path: Path, *, replace: bool = False) -> None:
    """Raise TraceError where something is there that is not to be replaced."""
    if not replace and path.exists():
        raise _exists(path)


def write_all(contents: Mapping[Path, bytes], folder: Path | None = None) -> None:
    """Write every file, or none where one of them cannot be written.

    `folder` is made first where it is not there, with its parents. Raises OSError that names the path as
    it was given.
    """
    with ExitStack() as undo:
        if folder is not None:
            undo.enter_context(made(folder))
        for path in contents:
            may_write(path)
        parts: dict[Path, Path] = {}
        for path, content in contents.items():
            if not _is_written_through(path):
                parts[path] = undo.enter_context(_beside(path))
                with _named(path):
                    parts[path].write_bytes(content)
        for path in (p for p in contents if p not in parts):
            with _named(path), path.open("wb", buffering=0) as file:
                _write_through(file.fileno(), contents[path])
        with undisturbed():
            for path, part in parts.items():
                with _named(path):
                    move_into_place(part, path, replace=True)


def move_into_place(part: Path, path: Path, *, replace: bool = False) -> None:
    """Give what is finished its name, a file's content on the disk first.

    Raises TraceError where the name is taken and not to be replaced.
    """
    refuse_overwrite(path, replace=replace)
    real = Path(os.path.realpath(path))
    if part.is_dir():
        with _out_of_the_way(real):
            part.rename(real)
        return
    with part.open("rb") as file:
        os.fsync(file.fileno())
    if replace:
        with contextlib.suppress(FileNotFoundError):
            part.chmod(stat.S_IMODE(real.stat().st_mode))
        part.replace(real)
        return
    try:
        # A link, unlike a rename, fails where the name is taken.
        os.link(part, real)
    except FileExistsError:
        raise _exists(path) from None
    except OSError:
        # File systems without links: the check and the move are two steps there.
        if path.exists():
            raise _exists(path) from None
        part.rename(real)
        return
    part.unlink()


def take_away(folder: Path) -> None:
    """Remove a folder whole or not at all: it loses its name first. Raises OSError."""
    with _out_of_the_way(folder):
        pass


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
def _beside(path: Path) -> Iterator[Path]:
    """A path of the same name in a scratch folder beside the regular file that `path` is or leads to."""
    if _is_written_through(path):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    real = Path(os.path.realpath(path))
    with ExitStack() as undo:
        with _named(path):
            folder = undo.enter_context(scratch(real.parent, real.name))
        yield folder / real.name


@contextmanager
def _out_of_the_way(folder: Path) -> Iterator[None]:
    """A folder that has the name, renamed for the block; removed at its end, put back where it raises."""
    if not folder.is_dir():
        yield
        return
    with scratch(folder.parent, folder.name) as aside:
        try:
            folder.rename(aside / folder.name)
            yield
        except BaseException:
            if not folder.exists():  # a signal may come before the first move, or after what follows it
                (aside / folder.name).rename(folder)
            raise


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of the system with the user's path instead of a temporary one."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def _is_written_through(path: Path) -> bool:
    with _named(path):
        if not path.exists() or path.is_dir():
            return False
        return not path.is_file() or any(path.absolute().is_relative_to(f) for f in _SYSTEM_FOLDERS)


def _write_through(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _exists(path: Path) -> TraceError:
    return TraceError(path, "exists and is not overwritten.", "Give another name, or remove it.")
