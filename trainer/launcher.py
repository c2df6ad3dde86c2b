"""torchrun with one line where it prints a screenful, and a stop that it does not cut short.

`python -m perfdoc.trainer.launcher TORCHRUN... -m perfdoc.trainer.main ...` takes torchrun's arguments and
starts ranks as torchrun does. It differs in three things:

- SIGINT, SIGTERM or SIGHUP leave a mark that every rank sees after its step (`StopRequest`). torchrun itself
  would pass the signal on and kill ranks that have not ended 30 s later, in the midst of a checkpoint. A
  second signal ends the ranks at once.
- A rank that fails has said why; what follows is one line, not torchrun's traceback and table
  (PERFDOC_DEBUG=1 shows those).
- Nothing that it started outlives it, and it does not outlive `perfdoc run`: where that is killed, it stops
  as if asked to.
"""

if __name__ == "__main__":
    from perfdoc.trainer import interrupted  # noqa: F401

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from perfdoc.profiling.launch_folder import Failure, LaunchFolder, kill, words_of
from perfdoc.trainer.end import EXIT_BAD_INPUT, EXIT_CONSEQUENCE, EXIT_FAILED, EXIT_INTERRUPTED, first_line

SAME_SIGNAL_S = 1.0
"""A signal this soon after another is the same one: a batch system sends it to every process of a job, and
`perfdoc run` passes on its own."""
LAST_STEP_S = 900.0
"""For a last step and its checkpoint, where nobody is left to give a second signal."""
QUIET = {"LOGLEVEL": "CRITICAL", "TORCH_CPP_LOG_LEVEL": "ERROR", "KINETO_LOG_LEVEL": "6"}
"""Variables for torchrun's loggers, for warnings of torch's C++ side (a store that has gone when a run is
over is told with a stack of addresses), and for the PyTorch profiler's progress. Set unless they are set."""
TRAINER = "perfdoc.trainer.main"
CAUSES = {
    signal.SIGKILL: "killed (SIGKILL); often by the system, out of memory",
    signal.SIGSEGV: "ended by a segmentation fault (SIGSEGV)",
    signal.SIGABRT: "aborted (SIGABRT); see its messages above",
    signal.SIGBUS: "ended by SIGBUS; often /dev/shm or the disk is full",
}


class EndNow(BaseException):
    """The second signal. Not an Exception, which torchrun would count as a failure of the agent."""


class Stopper:
    """What the launcher does with the signals that ask it to end."""

    def __init__(self, launch: LaunchFolder) -> None:
        self._launch = launch
        self._asked_s: float | None = None

    def listen(self) -> None:
        """Take over the signals; under nohup SIGHUP stays ignored."""
        signal.signal(signal.SIGINT, self._asked)
        signal.signal(signal.SIGTERM, self._asked)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            signal.signal(signal.SIGHUP, self._asked)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._asked_s is None:
            self._asked_s = now
            self._launch.ask_to_stop()
            say("stopping after this step; a second signal ends it at once")
        elif now - self._asked_s > SAME_SIGNAL_S:
            kill_ranks(self._launch)
            raise EndNow


def main(arguments: list[str]) -> int:
    """Launch and wait; 0, 1 where a rank failed, 2 where one found bad input, 130 after a stop."""
    own = None
    if (launch := LaunchFolder.of()) is None:
        launch = own = LaunchFolder.make()
        launch.name_in(os.environ)
    launch.live_as("launcher")
    Stopper(launch).listen()
    orphaned = threading.Event()
    threading.Thread(target=stop_with_run, args=(launch, orphaned), daemon=True).start()
    try:
        code = _run_torchrun(arguments, launch)
        return EXIT_INTERRUPTED if launch.stopped() else code
    except EndNow:
        launch.note_failure(Failure(rank=-1, reason="ended at once by a second signal"))
        return EXIT_INTERRUPTED
    finally:
        clear_up(launch)
        if own is not None or orphaned.is_set():
            shutil.rmtree(launch.path, ignore_errors=True)


def stop_with_run(launch: LaunchFolder, orphaned: threading.Event) -> None:
    """Stop as if asked to where `perfdoc run` ends first, which only a SIGKILL makes it do."""
    if launch.outlives("run"):
        orphaned.set()
        say("perfdoc run was killed")
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(LAST_STEP_S)
        os.kill(os.getpid(), signal.SIGTERM)


def _run_torchrun(arguments: list[str], launch: LaunchFolder) -> int:
    debug = bool(os.environ.get("PERFDOC_DEBUG"))
    if not debug:
        for name, level in QUIET.items():
            os.environ.setdefault(name, level)
        for name in ("torch.distributed.run", "torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        # The signals are ours; the one that is left nobody sends. Its files go with the launch's own.
        ours = ["--signals-to-handle=SIGQUIT", f"--log-dir={launch.path / 'torchrun'}"]
        run.run(run.parse_args([*ours, *arguments]))
    except ChildFailedError as error:
        failed = {rank: each for rank, each in error.failures.items() if not launch.is_done(rank)}
        if not failed:  # processes that would not end, see `perfdoc.trainer.main.leave`
            return 0
        failure, told = first_failure(failed)
        launch.note_failure(failure)
        if debug:
            raise
        if not told:
            say(failure.reason)
        return EXIT_BAD_INPUT if failure.bad_input else EXIT_FAILED
    except Exception as error:  # a store out of reach, nodes that do not come, full disks
        if debug:
            raise
        reason = f"the launch failed: {_why(error)}"
        launch.note_failure(Failure(rank=-1, reason=reason))
        say(reason)
        return EXIT_FAILED
    return 0


def first_failure(failures: Mapping[int, Any]) -> tuple[Failure, bool]:
    """The failure that the others followed from, of torchrun's by rank, and whether the rank has told it.

    Ranks that lost a peer end with EXIT_CONSEQUENCE, those that torchrun ends with SIGTERM (or SIGKILL, later
    than the first). What is left failed by itself: by an error that it wrote, or by a signal.
    """
    in_time = sorted(failures.items(), key=lambda item: item[1].timestamp)
    for rank, failure in in_time:
        if isinstance(failure.message, dict):  # the file that `failure.report` writes
            reason = f"rank {rank}: {failure.message.get('message', '')}"
            return Failure(rank=rank, reason=reason, bad_input=failure.exitcode == EXIT_BAD_INPUT), True
    for rank, failure in in_time:
        number = -failure.exitcode if failure.exitcode < 0 else failure.exitcode - 128
        if number > 0 and number != signal.SIGTERM:
            return Failure(rank=rank, reason=f"rank {rank} was {_cause(number)}"), False
    for rank, failure in in_time:
        if failure.exitcode in (EXIT_FAILED, EXIT_BAD_INPUT):
            reason = f"rank {rank} failed; see its standard error"
            return Failure(rank=rank, reason=reason, bad_input=failure.exitcode == EXIT_BAD_INPUT), True
        if failure.exitcode > 0 and failure.exitcode != EXIT_CONSEQUENCE:
            return Failure(rank=rank, reason=f"rank {rank} ended with code {failure.exitcode}"), False
    reason = "the ranks lost connection; check the messages of other machines, if any"
    return Failure(rank=-1, reason=reason), False


def _why(error: Exception) -> str:
    kind = type(error).__name__
    if kind.startswith("Rendezvous"):
        return f"machines did not connect at --rdzv-endpoint ({kind}). Start all of them, within minutes."
    return first_line(error.__cause__ or error)


def kill_ranks(launch: LaunchFolder) -> None:
    """SIGKILL to every rank. Their nsys live on, to write their reports."""
    for pid in launch.ranks().values():
        if TRAINER.encode() in words_of(pid, "cmdline"):  # the id may have gone to another process since
            kill(pid)


def clear_up(launch: LaunchFolder) -> None:
    """SIGKILL to whatever of this launch still runs: a rank that lost its nsys, or helpers of a killed rank,
    which nobody else ends (the checkpoint's server process, nsys's agent)."""
    for pid in launch.processes():
        if pid != os.getpid():
            kill(pid)


def say(message: str) -> None:
    """One line on standard error, also from within a signal's handler."""
    with contextlib.suppress(OSError):
        os.write(2, f"perfdoc: {message}\n".encode(errors="backslashreplace"))


def _cause(number: int) -> str:
    with contextlib.suppress(ValueError):
        known = signal.Signals(number)
        return CAUSES.get(known, f"ended by {known.name}")
    return f"ended by signal {number}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
