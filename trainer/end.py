"""The end of a rank: a clean stop, as asked for, or a failure, told in a line, a file and an exit code."""

import contextlib
import errno
import json
import multiprocessing
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from perfdoc.profiling.errors import one_line
from perfdoc.profiling.launch_folder import LaunchFolder
from perfdoc.profiling.whole_file import whole_file

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_CONSEQUENCE = 3
"""Under the launcher alone, which tells by it who failed first; else such a rank ends with EXIT_FAILED."""
EXIT_INTERRUPTED = 130

CONSEQUENCES = (
    "connection closed by peer",
    "connection reset by peer",
    "connection refused",
    "broken pipe",
    "gloo",
    "nccl",
    "socket timeout",
    "distnetworkerror",
)
"""Words in the errors of ranks whose peer has gone: not what a person needs to read first."""
CONSEQUENCE_DELAY_S = 2.0
"""A rank that fell with another waits this long, so that the other's error is the first on the terminal,
and the first failure that torchrun sees."""


class LostPeerError(RuntimeError):
    """This rank cannot go on because another one failed, which says why."""


def report(error: Exception, rank: int, out: Path | None) -> NoReturn:
    """Say what happened and end the process."""
    consequence = is_consequence(error)
    if consequence:
        time.sleep(CONSEQUENCE_DELAY_S)
    named = isinstance(error, OSError) and error.filename
    message = one_line(error) if named else " ".join(str(error).split()) or type(error).__name__
    details = {
        "rank": rank,
        "time_ns": time.time_ns(),
        "error": type(error).__name__,
        "message": message,
        "consequence": consequence,
        "traceback": "".join(traceback.format_exception(error)),
    }
    _write_details(details, rank, out)
    launch = LaunchFolder.of()
    if consequence:
        if launch is None:  # the launcher says it once, of the rank that was first
            sys.stderr.write(f"perfdoc: rank {rank}: ended because another rank did\n")
    elif isinstance(error, ValueError):  # every rank finds the same mistake
        if launch.is_first_to_say(message) if launch is not None else rank == 0:
            sys.stderr.write(f"perfdoc: {message}\n")
    elif launch is None or launch.is_first_to_say(_identity(error, message)):
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        sys.stderr.write(f"perfdoc: rank {rank}: {kind}{message}\n")
    if os.environ.get("PERFDOC_DEBUG"):
        traceback.print_exception(error)
    sys.stderr.flush()
    sys.stdout.flush()
    for child in multiprocessing.active_children():  # the checkpoint's server process would live on
        child.kill()
    # Threads of the backend may wait for a peer that has gone; leave without joining them.
    os._exit(_exit_code(error, consequence=consequence))


def _identity(error: Exception, message: str) -> str:
    """What no second rank is to say again: a disk is full for all of them, each with a file of its own."""
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    return os.strerror(errno.ENOSPC) if full else message


def _exit_code(error: Exception, *, consequence: bool) -> int:
    if consequence and LaunchFolder.of() is not None:
        return EXIT_CONSEQUENCE
    return EXIT_BAD_INPUT if isinstance(error, ValueError) else EXIT_FAILED


def is_consequence(error: BaseException) -> bool:
    """Whether an error only says that a peer has gone."""
    import torch.distributed as dist

    if isinstance(error, LostPeerError):
        return True
    text = f"{type(error).__name__} {error}".lower()
    return isinstance(error, RuntimeError | dist.DistError) and any(word in text for word in CONSEQUENCES)


def first_line(error: BaseException) -> str:
    """What an error says, in one line: of a failed checkpoint, what the first rank that failed says."""
    failures = getattr(error, "failures", None)
    if failures:
        wrapped = next(iter(failures.values()))
        error = wrapped[0] if isinstance(wrapped, tuple) else wrapped
    return one_line(error)


def _write_details(details: dict[str, Any], rank: int, out: Path | None) -> None:
    """errors/rank<N>.json in the run's folder, the end in run.json, and the file of torchrun's summary.

    Each by itself: a full disk is one of the errors to report, and the next file may lie on another.
    """
    if out is not None and out.is_dir():
        file = out / "errors" / f"rank{rank}.json"
        with contextlib.suppress(OSError), whole_file(file, replace=True) as part:
            part.write_text(json.dumps(details) + "\n", encoding="utf-8")
        if not details["consequence"] and (out / "run.json").is_file():
            from perfdoc.profiling.run_directory import RunDirectory

            with contextlib.suppress(OSError, ValueError):
                RunDirectory.open(out).end("failed", f"rank {rank}: {details['message']}")
    elastic = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if elastic and not details["consequence"]:  # torchrun's summary then names the cause
        extra = {"py_callstack": details["traceback"], "timestamp": str(int(time.time()))}
        message = {"message": details["message"], "extraInfo": extra}
        with contextlib.suppress(OSError):
            Path(elastic).write_text(json.dumps({"message": message}), encoding="utf-8")


class StopRequest:
    """Remembers that a stop was asked for. A second SIGINT interrupts at once.

    The launcher does not pass signals on to its ranks: under nsys they would reach nsys as well, and a rank
    that is still starting would be ended by them. It leaves a mark in its folder instead.
    """

    def __init__(self, launch: LaunchFolder | None = None) -> None:
        self._launch = launch
        self._by_signal = False

    @property
    def requested(self) -> bool:
        """Whether this rank is to stop after the step that it is in."""
        return self._by_signal or (self._launch is not None and self._launch.stop_asked())

    def listen(self) -> None:
        """Take over SIGINT and SIGTERM in this process's main thread."""
        signal.signal(signal.SIGINT, self._asked)
        signal.signal(signal.SIGTERM, self._asked)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self._by_signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._by_signal = True
