"""Clients of Dask for the time of one analysis: of a scheduler that runs already, and of local workers."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.resource_tracker
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perfdoc.diagnose.asked import UserError
from perfdoc.profiling.background import begun
from perfdoc.results.names import shorten

if TYPE_CHECKING:
    from distributed import Client

_CONNECT_S = 10.0
_END_S = 5.0
"""What a farewell may last: whoever does not answer by then is left."""


class ClusterError(UserError):
    """Workers that cannot do what is asked, or a scheduler that does not answer."""


@contextmanager
def remote(address: str) -> Iterator[Client]:
    """Raises ClusterError where no scheduler answers."""
    import dask
    from distributed import Client

    def connected() -> Client:
        with dask.config.set({"distributed.comm.timeouts.connect": f"{_CONNECT_S}s"}):
            return Client(address, timeout=_CONNECT_S, set_as_default=False)

    try:
        # In a thread of its own: what accepts and says nothing holds Dask up for longer than its time limits.
        client = begun(connected, "connect").result(timeout=_CONNECT_S + _END_S)
    except Exception as error:  # of many kinds, by what answers in place of a scheduler
        said = shorten(str(error) or "no answer in time", 200)
        raise ClusterError(f"{address}: no Dask scheduler answers ({said}).") from error
    try:
        yield client
    finally:
        with contextlib.suppress(Exception):
            client.close(timeout=_END_S)


@contextmanager
def local(workers: int) -> Iterator[Client]:
    """So many processes of one thread, which end with this process, however it ends."""
    import dask
    from distributed import Client, LocalCluster
    from distributed.security import Security

    with (
        tempfile.TemporaryDirectory(prefix="perfdoc-dask-", ignore_cleanup_errors=True) as scratch,
        dask.config.set(
            {
                # One file at a time is with a worker: where it dies, no other is suspected.
                "distributed.scheduler.worker-saturation": 1.0,
                # A busy machine takes longer than Dask's 15 s to start a worker again.
                "distributed.deploy.lost-worker-timeout": "1 day",
                "temporary-directory": scratch,
            }
        ),
    ):
        # An interrupt is for this thread to answer. Threads and workers inherit what is blocked here.
        multiprocessing.resource_tracker.ensure_running()  # which unblocks it
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            cluster = LocalCluster(
                n_workers=workers,
                threads_per_worker=1,
                memory_limit=0,
                dashboard_address="127.0.0.1:0",  # of a page about tasks, which is there without a dashboard
                scheduler_kwargs={"dashboard": False},
                local_directory=scratch,
                security=Security.temporary(),  # other users of this machine can reach its ports
                silence_logs=logging.CRITICAL,
            )
        except Exception as error:  # of many kinds: no port, no memory, no process
            said = shorten(str(error) or type(error).__name__, 200)
            raise ClusterError(f"--dask: local workers do not start ({said}).") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        try:
            with Client(cluster, set_as_default=False) as client:
                yield client
        finally:
            for nanny in cluster.workers.values():
                nanny.auto_restart = False
                if nanny.pid is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(nanny.pid, signal.SIGKILL)
            with contextlib.suppress(Exception):
                cluster.close(timeout=_END_S)


@contextmanager
def quiet() -> Iterator[None]:
    """Without Dask's log: what a user must know is said in a line."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)
