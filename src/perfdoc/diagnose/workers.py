"""Where the work on files runs: in this process, or in others of this machine. Others: see cluster."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from perfdoc.profiling.malloc import reuse_memory
from perfdoc.records import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

T = TypeVar("T")
_T_co = TypeVar("_T_co", covariant=True)
_LOST = "a worker process died, perhaps out of memory. Try fewer: --jobs 1."
_LOOK_S = 0.5
_ENDS = (signal.SIGTERM, signal.SIGHUP)


class WorkerLostError(RuntimeError):
    """A worker process died."""


@dataclass(frozen=True, kw_only=True)
class Task(Generic[_T_co]):
    """The work on one file, or on the few of one rank. It and its result must pickle."""

    files: Sequence[Path]
    """What it reads."""
    work: Callable[[], _T_co]


class Place(Protocol):
    """Where tasks run."""

    def run(self, tasks: Sequence[Task[T]]) -> Generator[T]:
        """The results, in the order of the tasks.

        Raises what the first task that failed raised, WorkerLostError where what ran a task is gone. Ends
        what it started, however it ends: who stops early closes the iterator.
        """
        ...


class Here:
    """This process, one after the other."""

    def run(self, tasks: Sequence[Task[T]]) -> Generator[T]:
        """As Place says."""
        for task in tasks:
            yield task.work()


@dataclass(frozen=True)
class Processes:
    """So many processes of this machine, this one among them, each with one file at a time. Another one costs
    what it imports, 0.2 s, where it cannot be a copy of this one."""

    workers: int

    def run(self, tasks: Sequence[Task[T]]) -> Generator[T]:
        """As Place says."""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        context = multiprocessing.get_context("fork" if _may_fork() else "spawn")
        begin = partial(_begin_worker, gc.get_threshold())
        with ProcessPoolExecutor(max(self.workers - 1, 1), context, initializer=begin) as pool:
            try:
                with _starting_workers():
                    futures = _submitted(tasks[1:], pool)
                futures[:0] = map(_done_here, tasks[:1])
                for number in range(len(tasks)):
                    while not futures[number].done() and (other := _not_begun(futures, number)) is not None:
                        futures[other] = _done_here(tasks[other])
                    yield _wait_for(futures[number], pool)
            except BaseException as error:
                _end_workers(pool)
                if isinstance(error, BrokenProcessPool):
                    raise WorkerLostError(_LOST) from error
                raise


def _may_fork() -> bool:
    """Whether this process has no other thread, of Python or of a library: the copy of one that has may wait
    for ever for a lock that the other thread held. Where the system does not tell, nothing is copied: Apple's
    libraries fail in copies."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) == 1
    except OSError:
        return False


@contextmanager
def _starting_workers() -> Iterator[None]:
    """Workers are born with interrupts blocked, which are the parent's to answer, and do not run the caller's
    script again: one that calls `perfdoc.analyze` outside of `if __name__ == "__main__"` would begin again in
    each of them. What ends the parent waits too: Python drops what is raised in the hooks of a fork."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *_ENDS})
    script, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = script
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _begin_worker(garbage: tuple[int, int, int]) -> None:
    """Leave an interrupt to the parent, end when told to, and with it, however it ends. Memory is as in the
    command, and garbage looked for as in the parent, not at the end."""
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


def _submitted(tasks: Sequence[Task[T]], pool: ProcessPoolExecutor) -> list[Future[T]]:
    """As futures that may be told that the pool is broken though they are cancelled, as what is done here is.
    Python 3.11's own raise then, in the pool's thread, which ends no worker any more."""
    from concurrent.futures import Future, InvalidStateError

    class Result(Future[T]):
        def set_exception(self, exception: BaseException | None) -> None:
            with suppress(InvalidStateError):
                super().set_exception(exception)

    futures = [pool.submit(task.work) for task in tasks]
    for future in futures:
        future.__class__ = Result
    return futures


def _done_here(task: Task[T]) -> Future[T]:
    """The work on a task in this process; what it raises is kept until its turn."""
    from concurrent.futures import Future

    done: Future[T] = Future()
    try:
        done.set_result(task.work())
    except Exception as error:  # noqa: BLE001 - raised again by who asks for the result
        done.set_exception(error)
    return done


def _not_begun(futures: Sequence[Future[T]], first: int) -> int | None:
    """The first task that no process has taken, which none will take now."""
    return next((i for i in range(first, len(futures)) if futures[i].cancel()), None)


def _wait_for(future: Future[T], pool: ProcessPoolExecutor) -> T:
    """The result. The pool does not see the end of a worker that was killed while it sent one: it waits for
    the rest for ever."""
    while True:
        try:
            return future.result(timeout=_LOOK_S)
        except TimeoutError:
            if future.done():
                return future.result()
            if any(worker.exitcode is not None for worker in list(pool._processes.values())):
                raise WorkerLostError(_LOST) from None


def _end_workers(pool: ProcessPoolExecutor) -> None:
    """At once. One may be in the middle of sending a result: without the end of the pipe here, the pool's
    thread would wait for the rest."""
    workers, results = list(pool._processes.values()), pool._result_queue
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()
    results._writer.close()  # type: ignore[attr-defined]
