"""Dask as the place where files are measured: local workers, or those of a scheduler that runs already.

Dask schedules, tries again and transports. What is added: that workers see the files and are of this version,
an order of errors that does not depend on who was first, and an end of all that was started.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import pickle
import re
import socket
import sys
import time
import uuid
import zlib
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError
from concurrent.futures import Future as ThreadFuture
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from perfdoc.diagnose import dask_clients
from perfdoc.diagnose.dask_clients import ClusterError
from perfdoc.diagnose.place import T, Task, WorkerLostError
from perfdoc.profiling.background import begun
from perfdoc.results.names import shorten
from perfdoc.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

_ADDRESS = re.compile(r"(tcp|tls|ucx|ws|wss)://[^/\s]+:\d+/?")
_NEARLY = re.compile(r"[A-Za-z]+://.*|[^/\s:]+:\d+/?", re.DOTALL)
_INSTALL = "--dask: Dask is not installed. pip install 'perfdoc[dask]'"
_LOOK_S = 0.02
_TOGETHER_S = 0.5
"""Tasks that one death condemned are told of within this time."""
_NAMED = 3
_AT_ONCE = 8
"""Results on their way."""
_ALONE_S = 10.0
"""Without a result before it is asked whether there is any worker."""
_File: TypeAlias = tuple[str, int | None]
"""Path and size in bytes; None for a folder."""


def is_address(word: str) -> bool:
    """Whether a word of the command line is a scheduler's address.

    >>> is_address("tcp://10.0.0.7:8786"), is_address("traces/rank0.sqlite")
    (True, False)
    """
    return _ADDRESS.fullmatch(word) is not None


def looks_like_address(word: str) -> bool:
    """Whether a word that is none was meant to be one, if there is no such file.

    >>> [looks_like_address(word) for word in ("login1:8786", "TCP://login1:8786", "traces/rank0.sqlite")]
    [True, True, False]
    """
    return _NEARLY.fullmatch(word) is not None


def require_dask() -> None:
    """Raises ClusterError."""
    if importlib.util.find_spec("distributed") is None:
        raise ClusterError(_INSTALL)


class Dask:
    """Workers of Dask. Results come as files are done."""

    def __init__(self, address: str | None, workers: int) -> None:
        """address: of a scheduler; None: local workers, so many, which end with this."""
        self.address = address
        self.workers = workers

    def run(self, tasks: Sequence[Task[T]]) -> Generator[tuple[int, T]]:
        """As Place says. Raises ClusterError too."""
        require_dask()
        files = [_files(task) for task in tasks]
        relative = any(not os.path.isabs(path) for of_task in files for path, _ in of_task)  # noqa: PTH117
        folder = str(Path.cwd()) if relative else None
        client = (
            dask_clients.local(min(self.workers, len(tasks)))
            if self.address is None
            else dask_clients.remote(self.address)
        )
        with dask_clients.quiet(), client as client_:
            if self.address is not None:
                _check_workers(client_, folder, [file for of_task in files for file in of_task])
            run = uuid.uuid4().hex
            futures = [
                client_.submit(
                    measure_there,
                    *(__version__, folder, of_task, pickle.dumps(task.work)),
                    key=f"perfdoc-{run}-{i}",
                    pure=False,
                )
                for i, (task, of_task) in enumerate(zip(tasks, files, strict=True))
            ]
            try:
                for i, content in _as_they_come(client_, futures, tasks):
                    yield i, pickle.loads(zlib.decompress(content))
            finally:
                if self.address is not None:  # local workers end anyway
                    with contextlib.suppress(Exception):
                        client_.cancel(futures, force=True)


def _files(task: Task[Any]) -> list[_File]:
    """What the workers must see. A file that is not here either is the reader's to tell."""
    found: list[_File] = []
    for path in task.files:
        with contextlib.suppress(OSError, ValueError):
            found.append((str(path), None if path.is_dir() else path.stat().st_size))
    return found


def measure_there(version: str, folder: str | None, files: Sequence[_File], work: bytes) -> bytes:
    """One task, in a worker. Pickled in and out: a worker of another version answers before it unpacks what
    it may not understand, and Dask knows how large a result is. Packed, for it passes through the scheduler.

    folder: where relative paths begin; paths are part of the answer, so the worker goes there.
    Raises ClusterError where this worker cannot do it, and what the task raises.
    """
    here = socket.gethostname()
    if version != __version__:
        raise ClusterError(_other_version(f"worker {here}", __version__, version))
    if unseen := first_unseen(folder, files):
        raise ClusterError(_unseen(f"worker {here}", unseen))
    if folder is not None:
        os.chdir(folder)
    return zlib.compress(pickle.dumps(pickle.loads(work)(), protocol=5), level=1)


def first_unseen(folder: str | None, files: Sequence[_File]) -> str:
    """The first file that is not here, or of another size; empty where all are as the caller sees them."""
    for path, size in files:
        here = Path(folder or "", path)
        try:
            if here.stat().st_size != size and not (size is None and here.is_dir()):
                return path
        except OSError:
            return path
    return ""


def _check_workers(client: Client, folder: str | None, files: Sequence[_File]) -> None:
    """That those which are there by now are of this version and see the files; others are asked with their
    first task. Raises ClusterError."""
    # Of the standard library, so that who has no perfdoc can answer too. The scheduler unpacks tasks as well.
    asked = (importlib.metadata.version, "perfdoc")
    versions = _answers(client, *asked)
    with _whose("the scheduler"):
        versions["the scheduler"] = client.run_on_scheduler(*asked)
    for who, version in versions.items():
        if version != __version__:
            raise ClusterError(_other_version(who, version, __version__))
    for who, path in _answers(client, first_unseen, folder, files).items():
        if path:
            raise ClusterError(_unseen(who, path))
    if len(versions) == 1:
        _say("the scheduler has no workers yet; waiting for one")


def _answers(client: Client, function: Callable[..., str], *args: object) -> dict[str, str]:
    """Of the workers that are there by now. Raises ClusterError."""
    found: dict[str, Any] = client.run(function, *args, on_error="return")
    answers: dict[str, str] = {}
    for worker, answer in sorted(found.items()):
        with _whose(f"worker {worker}"):
            if not isinstance(answer, Exception):
                answers[f"worker {worker}"] = answer
            elif not _is_lost(answer):  # else another does its work
                raise answer
    return answers


@contextlib.contextmanager
def _whose(who: str) -> Generator[None]:
    """Raises ClusterError with a name for what went wrong there."""
    try:
        yield
    except importlib.metadata.PackageNotFoundError:
        raise ClusterError(_none_there(who)) from None
    except Exception as error:
        raise ClusterError(f"{who} failed: {shorten(f'{type(error).__name__}: {error}', 300)}") from error


def _is_lost(error: Exception) -> bool:
    """Whether a worker did not answer because it is gone."""
    from distributed.comm import CommClosedError

    # Of the system's errors only those of a connection: what a worker cannot open is no reason to do without
    # it. Where Dask connects in vain it raises an OSError of its own words.
    lost = isinstance(error, CommClosedError | TimeoutError | ConnectionError)
    return lost or (type(error) is OSError and error.errno is None)


def _none_there(who: str) -> str:
    return f"{who} has no perfdoc. Install {__version__} there."


def _other_version(who: str, has: str, wanted: str) -> str:
    return f"{who} has perfdoc {has}, and this is {wanted}. Install one version everywhere."


def _unseen(who: str, path: str) -> str:
    return (
        f"{path}: {who} does not see this file as it is here. Put the captures on a file system "
        "that all workers share, under the same path."
    )


def _as_they_come(
    client: Client, futures: list[Future], tasks: Sequence[Task[Any]]
) -> Generator[tuple[int, bytes]]:
    """(number, result) of each task. Of tasks that fail the error of the first by number is raised, whichever
    was done first: those after a failure are cancelled, those before are waited for."""
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    number = {future.key: i for i, future in enumerate(futures)}
    pending = set(number.values())
    fetched: dict[int, ThreadFuture[bytes]] = {}
    failure: Exception | None = None
    coming = as_completed(futures, loop=client.loop, raise_errors=False)
    heard, told = time.monotonic(), False
    while pending:
        while len(fetched) < _AT_ONCE and coming.has_ready():
            # In a thread: where the worker died meanwhile this takes as long as the work.
            future = next(coming)
            fetched[number[future.key]] = begun(future.result, "fetch")
        ready = sorted(i for i, content in fetched.items() if content.done())
        if not ready:
            time.sleep(_LOOK_S)  # never long, so that a signal is answered
            if not told and time.monotonic() - heard > _ALONE_S:
                told, heard = _tell_where_alone(client), time.monotonic()
            continue
        heard, told = time.monotonic(), False
        for i in ready:
            content = fetched.pop(i)
            if i not in pending:
                continue
            pending.remove(i)
            try:
                result = content.result()
            except CancelledError:
                raise WorkerLostError("the scheduler is gone, and with it the work on all files.") from None
            except KilledWorker as error:
                failure = WorkerLostError(_killing(error, futures, tasks))
            except ImportError as error:  # of a worker that came after the others were asked
                missing = error.name or shorten(str(error), 200)
                what = f"a worker cannot import {missing}. Install perfdoc {__version__} there, whole."
                failure = ClusterError(_none_there("a worker") if error.name == "perfdoc" else what)
            except Exception as error:  # noqa: BLE001 - whatever the task raised
                failure = error
            else:
                yield i, result
                futures[i].release()  # or the worker would keep it
                continue
            client.cancel(futures[i + 1 :], force=True)
            pending = {p for p in pending if p < i}
    if failure is not None:
        raise failure


def _killing(error: Any, futures: Sequence[Future], tasks: Sequence[Task[Any]]) -> str:
    """Which file no worker survives. One that waited behind it in the same workers is condemned with it."""
    time.sleep(_TOGETHER_S)
    with_it = [
        task.files[0].name
        for future, task in zip(futures, tasks, strict=True)
        if future.status == "error" and isinstance(future.exception(), type(error))
    ]
    more = len(with_it) - _NAMED
    names = (" or ".join(with_it[:_NAMED]) or "a file") + (f" or one of {more:,} more" if more > 0 else "")
    return (
        f"{names}: {error.allowed_failures + 1} workers died one after the other that had this file, perhaps "
        "out of memory. Leave it out, or give workers more memory."
    )


def _tell_where_alone(client: Client) -> bool:
    """Whether it was said that there is no worker."""
    with contextlib.suppress(OSError, TimeoutError):
        if not client.nthreads():
            _say("no worker is there; waiting for one")
            return True
    return False


def _say(what: str) -> None:
    sys.stderr.write(f"perfdoc: {what}\n")
    sys.stderr.flush()
