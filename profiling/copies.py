"""Copies of this process, which begin with all that it has."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from perfdoc.profiling.malloc import reuse_memory
from perfdoc.profiling.telling import in_worker, still
from perfdoc.profiling.whole_file import undisturbed

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

T = TypeVar("T")
_LOOKS = 10
_LOOK_S = 0.0005
"""The system still shows a thread for a moment that Python has seen end."""
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_beside = False
"""Whether this one may have a copy at work beside it."""


@contextmanager
def copies_of(processes: int) -> Iterator[None]:
    """Of an analysis that may take so many: `beside` makes copies, which it does not by itself."""
    global _beside
    before, _beside = _beside, processes > 1
    try:
        yield
    finally:
        _beside = before


@contextmanager
def beside(work: Callable[[], T], *, worth: bool = True) -> Iterator[Callable[[], T]]:
    """What returns the result of the work: a copy does it while the block goes on, if that is worth the 10 to
    20 ms of a copy. Else, and where the copy failed, it is done here when it is asked for. Arguments are not
    pickled, the result is; what the work changes stays in the copy, which ends with the block."""
    if not (worth and _beside and not in_worker() and may_fork()):
        yield work
        return
    import multiprocessing

    context = multiprocessing.get_context("fork")
    comes, goes = context.Pipe(duplex=False)
    copy = context.Process(target=_send, args=(work, goes), daemon=True)

    def result() -> T:
        try:
            done: T = comes.recv()
        except (EOFError, OSError):
            done = work()
        return done

    try:
        with starting():
            copy.start()
        goes.close()
        yield result
    finally:
        comes.close()
        if copy.pid is not None:
            copy.kill()
            copy.join()


def _send(work: Callable[[], T], goes: Connection) -> None:
    with suppress(BaseException):  # the same is raised where it is done again
        begin(gc.get_threshold())
        goes.send(work())


def may_fork() -> bool:
    """Whether this process has no other thread, of Python or of a library, but the bar's, which is away while
    one starts: the copy of one that has may wait for ever for a lock that the other thread held. Where the
    system does not tell, nothing is copied: Apple's libraries fail in copies."""
    with still(), suppress(OSError):
        for _ in range(_LOOKS):
            if len(list(Path("/proc/self/task").iterdir())) == 1:
                return True
            if threading.active_count() > 1:
                break
            time.sleep(_LOOK_S)
    return False


@contextmanager
def starting() -> Iterator[None]:
    """Workers are born with interrupts blocked, which are the parent's to answer, and do not run the caller's
    script again: one that calls `perfdoc.analyze` outside of `if __name__ == "__main__"` would begin again in
    each of them. What ends the parent waits too: Python drops what is raised in the hooks of a fork."""
    with undisturbed(), still():
        script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script


def begin(garbage: tuple[int, int, int]) -> None:
    """Of a worker: leave an interrupt to the parent, end when told to, and with it, however it ends. Memory
    is as in the command, and garbage looked for as in the parent, not at the end."""
    from multiprocessing import parent_process

    gc.set_threshold(*garbage)
    atexit.register(gc.freeze)
    reuse_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for number in _ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)  # a copy has the command's, which raises
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDS)
    parent = parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
