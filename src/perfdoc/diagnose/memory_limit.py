"""A bound on memory: as many workers as fit below it, and none that may take more than its part.

The system enforces it on workers (RLIMIT_DATA: private memory that may be written, which libraries' code and
mapped files are not). A file that needs more than a worker's part is measured again by one that may have all
of it. This process looks at its own after each result: were it refused memory, a thread of the executor would
die of it, and its results would never come.
"""

from __future__ import annotations

import contextlib
import errno
import pickle
import re
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from perfdoc.diagnose.asked import UserError
from perfdoc.diagnose.place import T, Task, WorkerLostError
from perfdoc.diagnose.processes import Processes
from perfdoc.profiling.usable_memory import data_bytes
from perfdoc.results.figures import size
from perfdoc.traces import TraceError
from perfdoc.traces.load import content_size

with contextlib.suppress(ImportError):  # Windows has none
    import resource

LEAST_BYTES = 512 * 2**20
_LEAST_PART_BYTES = 256 * 2**20
"""Half of it is there before a worker has read anything."""
_OWN_FRAC = 0.25
"""For this process while workers measure."""
_PER_FILE_BYTE = 5
"""Memory of a worker for one byte of SQLite, as docs/performance.md has it for one device: the most of all
formats that hold their rows unpacked. What needs more is measured twice."""
_REFUSED = ("out of memory", "start new thread")
"""SQLite's words, and Python's: a thread's stack counts too."""
_UNITS = {"M": 2**20, "MB": 10**6, "MIB": 2**20, "G": 2**30, "GB": 10**9, "GIB": 2**30, "T": 2**40}


class NeedsMemoryError(TraceError):
    """A capture whose analysis needs more memory than it may have."""


def limit_bytes(text: str) -> int:
    """Bytes of a size as people write it; M and G are SLURM's, which are powers of 1,024. Raises UserError.

    >>> limit_bytes("1.5GB"), limit_bytes("2G")
    (1500000000, 2147483648)
    """
    found = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?([A-Za-z]{1,3})", text)
    if found is None or (unit := _UNITS.get(found[2].upper())) is None:
        raise UserError(f"--memory-limit {text!r}: give a number and a unit, such as 4GB or 8G.")
    if (limit := int(float(found[1]) * unit)) < LEAST_BYTES:
        raise UserError(f"--memory-limit {text}: an analysis takes at least {size(LEAST_BYTES)}.")
    if sys.platform != "linux":
        raise UserError("--memory-limit: this system cannot bound a process's memory; Linux can.")
    return limit


class Limited:
    """Workers of this machine that together with this process stay below a bound."""

    def __init__(self, limit: int, jobs: int) -> None:
        """limit: bytes, at least LEAST_BYTES. jobs: workers at once, at most."""
        self.limit = limit
        self.jobs = jobs

    def run(self, tasks: Sequence[Task[T]]) -> Generator[tuple[int, T]]:
        """As Place says. Raises NeedsMemoryError too."""
        own = max(_LEAST_PART_BYTES, int(self.limit * _OWN_FRAC))
        rest = self.limit - own
        wanted = max(_LEAST_PART_BYTES, _PER_FILE_BYTE * max(map(_file_bytes, tasks), default=0))
        workers = max(1, min(self.jobs, len(tasks), rest // wanted))
        left: Sequence[int] = range(len(tasks))
        for at_once in dict.fromkeys((workers, 1)):
            part = rest // at_once
            tried = [Task(files=tasks[i].files, work=partial(_within, part, tasks[i].work)) for i in left]
            more = list(left)
            # Some libraries end their process where they are refused memory. What waited is tried again too.
            with contextlib.suppress(WorkerLostError), closing(Processes(at_once).run(tried)) as coming:
                for at, found in coming:
                    if found is None:
                        continue
                    more.remove(left[at])
                    yield left[at], pickle.loads(found)
                    if data_bytes() > own:
                        raise MemoryError
            if not (left := more):
                return
        raise NeedsMemoryError(
            tasks[left[0]].files[0],
            f"needs more than {size(rest)} of memory; --memory-limit leaves no more.",
            "Give more, or analyse with --no-replay, or capture fewer steps.",
        )


def _within(part: int, work: Callable[[], object]) -> bytes | None:
    """The result, pickled; None where the work, or its pickle, needs more memory. In a worker, which has
    inherited the bound of the process that started it."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    soft = part if hard == resource.RLIM_INFINITY else min(part, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())  # its own takes 1 GiB at once, used or not
    try:
        result = work()
        # A capture that is left out is a result too.
        return None if wants_memory(result) else pickle.dumps(result, protocol=5)
    except Exception as error:
        if wants_memory(error):
            return None
        raise


def wants_memory(error: object) -> bool:
    """Whether memory that was refused is behind an error, however those call it who met with it."""
    while isinstance(error, BaseException):
        refused = isinstance(error, MemoryError) or (
            isinstance(error, OSError) and error.errno == errno.ENOMEM
        )
        if refused or any(words in str(error) for words in _REFUSED):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def bounded(limit: int) -> Iterator[None]:
    """This process may have so many bytes and no more; MemoryError where it wants them."""
    before = soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if soft == resource.RLIM_INFINITY or limit < soft:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _file_bytes(task: Task[T]) -> int:
    with contextlib.suppress(OSError):
        return sum(map(content_size, task.files))
    return 0
