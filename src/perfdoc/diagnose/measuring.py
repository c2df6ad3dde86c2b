"""Measuring many files at once: each is the work of one process, so memory does not grow with their count."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from multiprocessing.context import SpawnContext, SpawnProcess
from multiprocessing.queues import SimpleQueue
from types import ModuleType
from typing import Any, TypeAlias

from perfdoc.analyzers.job import check_distinct
from perfdoc.analyzers.measure import CaptureMeasurement, measure_or_explain
from perfdoc.analyzers.measure_device import Also
from perfdoc.analyzers.memory.job import RankMemory, measure_rank_memory
from perfdoc.diagnose.asked import Work
from perfdoc.results.figures import plural
from perfdoc.simulator.replay.unedited import KEPT_TASKS_MAX, replay_and_keep
from perfdoc.traces import NoGpuActivityError
from perfdoc.traces.load import Ahead

_Result: TypeAlias = CaptureMeasurement | NoGpuActivityError | RankMemory
_LOST = "a worker process died, perhaps out of memory. Try fewer: --jobs 1."
_LOOK_S = 0.5
QUIET_S = 1.0
"""A word about progress this often at most."""


class WorkerLostError(RuntimeError):
    """A worker process died."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was measured."""

    captures: list[CaptureMeasurement]
    silent: list[NoGpuActivityError]
    """Captures without GPU activity."""
    memory: list[RankMemory]


def measure_all(work: Work, jobs: int, ahead: Ahead | None = None, also: Also | None = None) -> Found:
    """Measure everything, on up to `jobs` processes. ahead: the only capture, if it is being read already.

    also: one more analysis of each device, in place of the replay; it must pickle.
    Raises TraceError where a file cannot be measured or two are of one rank, WorkerLostError where a
    process is gone.
    """
    if also is None and work.replay:
        also = replaying(len(work.captures))
    tasks: list[Callable[[], _Result]] = [
        partial(measure_or_explain, path, work.request, work.given, also, ahead, work.comm_kernel)
        for path in work.captures
    ]
    tasks += [partial(measure_rank_memory, files) for files in work.memory]
    workers = 1 if ahead is not None else min(jobs, len(tasks))
    results = _run(tasks, workers, of_them(len(work.captures), len(work.memory)))
    captures = [r for r in results if isinstance(r, CaptureMeasurement)]
    check_distinct(captures)
    return Found(
        captures=captures,
        silent=[r for r in results if isinstance(r, NoGpuActivityError)],
        memory=[r for r in results if isinstance(r, RankMemory)],
    )


def of_them(captures: int, memory: int) -> str:
    """What the files are, where they are not all captures: a rank's record of memory is counted as one.

    >>> of_them(2, 2)
    ' (2 captures, memory of 2 ranks)'
    """
    if not memory:
        return ""
    return f" ({plural(captures, 'capture')}, memory of {plural(memory, 'rank')})"


def replaying(captures: int) -> Also:
    """The replay of each rank of this many captures.

    The bound on work kept for the replay of the job is shared evenly between ranks.
    """
    return partial(replay_and_keep, keep_tasks=KEPT_TASKS_MAX // max(captures, 1))


def _run(tasks: Sequence[Callable[[], _Result]], workers: int, of: str = "") -> list[_Result]:
    if workers <= 1:
        return list(_progress((task() for task in tasks), len(tasks), of))
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    # Spawned, because a forked copy of a process with Arrow's threads may hang. One file at a time is in a
    # worker, so its memory does not grow with the number of ranks. An interrupt is the parent's to answer:
    # workers ignore it, and are born with it blocked so that none can catch it before it can ignore.
    context = _OwnWorkers()
    with ProcessPoolExecutor(workers, context, initializer=_begin_worker) as pool:
        try:
            blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = [pool.submit(task) for task in tasks]
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            return list(_progress((_result(f, context.workers) for f in futures), len(tasks), of))
        except BrokenProcessPool as error:
            raise WorkerLostError(_LOST) from error
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            context.end()
            raise


def _result(future: Future[_Result], workers: Sequence[SpawnProcess]) -> _Result:
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


def _progress(results: Iterable[_Result], count: int, of: str) -> Iterator[_Result]:
    """Pass results on; say what is done once the work has lasted."""
    said = time.monotonic()
    for i, result in enumerate(results, 1):
        yield result
        if time.monotonic() - said > QUIET_S and i < count:
            said = time.monotonic()
            sys.stderr.write(f"perfdoc: {i} of {count} files analysed{of}\n")
            sys.stderr.flush()
