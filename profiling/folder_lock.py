"""One process at a time at what lies in a folder."""

import contextlib
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 60.0
_AGAIN_S = 0.1


@contextmanager
def alone_in(folder: Path, say: Callable[[str], None] = lambda _: None) -> Iterator[None]:
    """Keep this user's other processes on this machine out while a folder's files are read, changed, written.

    Says that it waits where it does, and raises ValueError after WAIT_S. The lock is a file among the
    temporary ones, named by the folder's path, so that the folder need not exist and nothing is left in it;
    the kernel lets go of it when its holder is killed. Where a system has no locks, nothing waits.
    """
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]
    with contextlib.ExitStack() as stack:
        try:
            import fcntl

            file = Path(tempfile.gettempdir()) / f"perfdoc-{os.getuid()}-{name}.lock"
            held = os.open(file, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        except (ImportError, OSError):
            yield
            return
        stack.callback(os.close, held)
        give_up = time.monotonic() + WAIT_S
        waits = False
        while True:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > give_up:
                    raise ValueError(f"{folder}: another process has held it for {WAIT_S:.0f} s.") from error
            except OSError:
                break
            if not waits:
                waits = True
                say(f"{folder}: waiting for another process")
            time.sleep(_AGAIN_S)
        yield
