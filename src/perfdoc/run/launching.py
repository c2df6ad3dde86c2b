"""A launcher's process: started, stops passed on to it, cleared up behind."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from perfdoc.profiling.launch_folder import LaunchFolder, kill

EXIT_STOPPED = 130
_ORPHANS_S = 60.0
"""For reports that nsys writes of ranks that have ended."""
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def clear_up(launch: LaunchFolder) -> None:
    """End what a killed launcher left behind. Its ranks end by themselves, and their nsys after them."""
    give_up = time.monotonic() + _ORPHANS_S
    while (left := launch.processes()) and time.monotonic() < give_up:
        time.sleep(0.1)
    for pid in left:
        kill(pid)


def wait_for(
    command: Sequence[str], environment: Mapping[str, str], *, passes_on: bool = True
) -> tuple[int, int]:
    """(exit code of the launcher, below 0 where it was killed; how many stops were asked for).

    passes_on: whether the launcher tells what it started of a stop; else all of its group are told.
    """
    stops: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: object) -> None:
        """The launcher lets the ranks finish their step; on the second it ends them, on the third we do."""
        stops.append(number)
        if process is not None:
            _pass_on(process, stops, passes_on)

    before = {
        number: signal.signal(number, forward)
        for number in _STOPS
        # Under nohup a hang-up is to be ignored; an interrupt also is in a script's background, but who sends
        # one to this process means it.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        # A session of its own: a stop reaches the launcher through us, and once, wherever it was sent.
        process = subprocess.Popen(command, start_new_session=True, env=environment)
        if stops:
            _pass_on(process, stops, passes_on)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code, len(stops)


def _pass_on(process: subprocess.Popen[bytes], stops: Sequence[int], passes_on: bool) -> None:
    with contextlib.suppress(ProcessLookupError):
        if len(stops) <= 2 and passes_on:
            process.send_signal(stops[-1])
        elif len(stops) <= 2:
            os.killpg(process.pid, stops[-1])
        else:
            os.killpg(process.pid, signal.SIGKILL)
