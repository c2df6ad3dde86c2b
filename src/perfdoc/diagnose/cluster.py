"""Dask as the place where files are measured: the workers of a scheduler that runs already.

Dask schedules, tries again and transports. What is added: that workers see the files and are of this version,
and an end of all that was started.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import pickle
import re
import socket
import sys
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from perfdoc.diagnose.workers import T, Task, WorkerLostError
from perfdoc.profiling.background import begun
from perfdoc.profiling.errors import UserError
from perfdoc.profiling.installation import install_command
from perfdoc.results.names import shorten
from perfdoc.version import __version__

if TYPE_CHECKING:
    from distributed import Client, Future

_ADDRESS = re.compile(r"[A-Za-z]+://.+", re.DOTALL)
_CONNECT_S = 10.0
_END_S = 5.0
"""What a farewell may last: whoever does not answer by then is left."""
_ALONE_S = 10.0
"""Without a result before it is asked whether there is any worker."""
_File: TypeAlias = tuple[str, int | None]
"""Path and size in bytes; None for a folder."""


class ClusterError(UserError):
    """Workers that cannot do what is asked, or a scheduler that does not answer."""


def dask_place(address: str, jobs: int | None) -> Dask:
    """The workers of the scheduler at an address. Raises UserError."""
    if importlib.util.find_spec("distributed") is None:
        raise ClusterError(f"--dask: Dask is not installed: {install_command('dask')}")
    if not _ADDRESS.fullmatch(address):
        raise UserError(f"--dask {address}: is no scheduler's address, such as tcp://login1:8786.")
    if jobs is not None:
        raise UserError("--jobs: is for workers of this machine; a scheduler has its own.")
    return Dask(address)


@dataclass(frozen=True)
class Dask:
    """Workers of Dask, on any machines."""

    address: str
    """Of its scheduler."""

    def run(self, tasks: Sequence[Task[T]]) -> Generator[T]:
        """As Place says. Raises ClusterError too."""
        log = logging.root.manager.disable
        logging.disable(logging.CRITICAL)  # what a user must know is said in a line
        try:
            with _connected(self.address) as client:
                sent = [(str(Path.cwd()), _files(task), pickle.dumps(task.work)) for task in tasks]
                futures = [client.submit(measure_there, __version__, *one, pure=False) for one in sent]
                try:
                    for task, future in zip(tasks, futures, strict=True):
                        yield pickle.loads(_wait_for(future, client, task))
                        future.release()  # or the worker would keep it
                finally:
                    with contextlib.suppress(Exception):
                        client.cancel(futures, force=True)
        finally:
            logging.disable(log)


def _files(task: Task[Any]) -> list[_File]:
    """What the workers must see. A file that is not here either is the reader's to tell."""
    files: list[_File] = []
    for path in task.files:
        with contextlib.suppress(OSError, ValueError):
            files.append((str(path), None if path.is_dir() else path.stat().st_size))
    return files


def measure_there(version: str, folder: str, files: Sequence[_File], work: bytes) -> bytes:
    """One task, in a worker. Pickled in and out: a worker of another version answers before it unpacks what
    it may not understand, and Dask knows how large a result is.

    folder: where relative paths begin; paths are part of the answer, so the worker goes there.
    Raises ClusterError where this worker cannot do it, and what the task raises.
    """
    here = f"worker {socket.gethostname()}"
    if version != __version__:
        raise ClusterError(
            f"{here} has perfdoc {__version__}, and this is {version}. Install one version everywhere."
        )
    with contextlib.suppress(OSError):
        os.chdir(folder)
    for name, size in files:
        path = Path(name)
        if not (path.is_dir() if size is None else path.is_file() and path.stat().st_size == size):
            raise ClusterError(
                f"{name}: {here} does not see this file as it is here. Put the captures on a file system "
                "that all workers share, under the same path."
            )
    return pickle.dumps(pickle.loads(work)(), protocol=5)


def _wait_for(future: Future, client: Client, task: Task[Any]) -> bytes:
    """What measure_there returned. Raises WorkerLostError and ClusterError, and what the task raised."""
    from distributed.scheduler import KilledWorker

    told = False
    while True:
        try:
            result: bytes = future.result(timeout=_ALONE_S)
            return result
        except CancelledError:
            raise WorkerLostError("the scheduler is gone, and with it the work on all files.") from None
        except KilledWorker as error:
            raise WorkerLostError(
                f"{task.files[0].name}: {error.allowed_failures + 1} workers died one after the other that "
                "had this file, perhaps out of memory. Leave it out, or give workers more memory."
            ) from None
        except ImportError as error:
            missing = error.name or shorten(str(error), 200)
            raise ClusterError(
                f"a worker cannot import {missing}. Install perfdoc {__version__} there, whole."
            ) from error
        except TimeoutError:
            if future.done():
                raise
            with contextlib.suppress(OSError):
                if not told and not client.nthreads():
                    sys.stderr.write("perfdoc: the scheduler has no worker; waiting for one\n")
                    told = True


@contextmanager
def _connected(address: str) -> Iterator[Client]:
    """Raises ClusterError where no scheduler answers."""
    import dask
    from distributed import Client

    def connect() -> Client:
        with dask.config.set({"distributed.comm.timeouts.connect": f"{_CONNECT_S}s"}):
            return Client(address, timeout=_CONNECT_S, set_as_default=False)

    try:
        # In a thread of its own: what accepts and says nothing holds Dask up for longer than its time limits.
        client = begun(connect, "connect").result(timeout=_CONNECT_S + _END_S)
    except Exception as error:  # of many kinds, by what answers in place of a scheduler
        why = shorten(str(error) or "no answer in time", 200)
        raise ClusterError(f"{address}: no Dask scheduler answers ({why}).") from error
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=_END_S)
