"""Processes of this machine, each with one file at a time, so that memory does not grow with their count."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.queues import SimpleQueue
from types import ModuleType
from typing import Any

from perfdoc.diagnose.place import T, Task, WorkerLostError

_LOST = "a worker process died, perhaps out of memory. Try fewer: --jobs 1."
_LOOK_S = 0.5


class Processes:
    """So many workers of this machine. Results come in the order of the tasks."""

    def __init__(self, workers: int) -> None:
        self.workers = workers

    def run(self, tasks: Sequence[Task[T]]) -> Generator[tuple[int, T]]:
        """As Place says."""
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        # Spawned, because a forked copy of a process with Arrow's threads may hang. An interrupt is the
        # parent's to answer: workers ignore it, and are born with it blocked so that none can catch it before
        # it can ignore.
        context = _OwnWorkers()
        with ProcessPoolExecutor(self.workers, context, initializer=_begin_worker) as pool:
            try:
                blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
                try:
                    futures = [pool.submit(task.work) for task in tasks]
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                yield from enumerate(_result(f, context.workers) for f in futures)
            except BrokenProcessPool as error:
                raise WorkerLostError(_LOST) from error
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                context.end()
                raise


def _result(future: Future[T], workers: Sequence[SpawnProcess]) -> T:
    """Wait for a result, and see by itself whether a worker is gone.

    One that was killed while it sent a result left a part of it: the executor waits for the rest for ever.
    """
    while True:
        try:
            return future.result(timeout=_LOOK_S)
        except TimeoutError:
            if future.done():
                raise
            if any(w.exitcode is not None for w in workers):
                raise WorkerLostError(_LOST) from None


def _begin_worker() -> None:
    """Leave an interrupt to the parent, and end with it, however it ends.

    A worker whose parent was killed would wait for ever to hand its result over.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


class _Worker(SpawnProcess):
    """Imports nothing of the program that asked.

    A spawned process runs the caller's script again, for what is defined there: one that calls
    `perfdoc.analyze` outside of `if __name__ == "__main__"` would begin again in each worker.
    """

    @staticmethod
    def _Popen(process_obj: Any) -> Any:  # noqa: N802
        asking, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            return SpawnProcess._Popen(process_obj)
        finally:
            sys.modules["__main__"] = asking


class _OwnWorkers(SpawnContext):
    """Starts processes and remembers which: whoever calls this code may have children of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.workers: list[SpawnProcess] = []
        self.queues: list[SimpleQueue[Any]] = []

    def SimpleQueue(self) -> SimpleQueue[Any]:  # noqa: N802
        """As the context's own, in which the executor gets results."""
        self.queues.append(super().SimpleQueue())
        return self.queues[-1]

    def end(self) -> None:
        """End the workers, whatever they do.

        One may be in the middle of sending a result. The executor's thread, which this process joins when it
        exits, would wait for the rest for ever: the pipe has no end while this process could write to it too.
        """
        for worker in self.workers:
            if worker.is_alive():
                worker.terminate()
        for queue in self.queues:
            queue._writer.close()  # type: ignore[attr-defined]

    def Process(self, *args: Any, **kwargs: Any) -> SpawnProcess:  # type: ignore[override]  # noqa: N802
        """As the context's own, which the executor calls."""
        self.workers.append(_Worker(*args, **kwargs))
        return self.workers[-1]
