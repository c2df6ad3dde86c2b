"""Where the work on files runs: in this process, or in others of this machine. Others: see cluster."""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from perfdoc.profiling.copies import begin, may_fork, starting
from perfdoc.profiling.errors import UserError
from perfdoc.records import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor

T = TypeVar("T")
_T_co = TypeVar("_T_co", covariant=True)
_LOST = "a worker process died, perhaps out of memory. Try fewer: --jobs 1."
_LOOK_S = 0.5


class WorkerLostError(UserError):
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

        context = multiprocessing.get_context("fork" if may_fork() else "spawn")
        first = partial(begin, gc.get_threshold())
        with ProcessPoolExecutor(max(self.workers - 1, 1), context, initializer=first) as pool:
            try:
                with starting():
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
