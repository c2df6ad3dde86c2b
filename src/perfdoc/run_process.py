"""The training processes of `perfdoc run`: start them, pass a stop on, wait for their end."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfdoc.profiling.environment import name_command
from perfdoc.profiling.launch_folder import Failure, LaunchFolder

EXIT_STOPPED = 130
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the processes of this machine ended."""

    code: int
    """0 trained to the end, 130 a stop was asked for, else a rank failed."""
    ranks: tuple[int, ...]
    """Ranks that this machine had; empty where none came so far as to say."""
    failure: Failure | None


def train(command: Sequence[str], *, debug: bool = False) -> Outcome:
    """Run the launcher's line to its end. Raises OSError where it cannot be started."""
    launch = LaunchFolder.make()
    try:
        environment = dict(os.environ)
        launch.name_in(environment)
        name_command(environment, ["perfdoc", *sys.argv[1:]])
        if debug:
            environment["PERFDOC_DEBUG"] = "1"
        code = _wait(command, environment)
        return Outcome(
            code=EXIT_STOPPED if launch.stopped() else code,
            ranks=tuple(launch.ranks()),
            failure=launch.failure(),
        )
    finally:
        shutil.rmtree(launch.path, ignore_errors=True)


def _wait(command: Sequence[str], environment: Mapping[str, str]) -> int:
    stops: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def forward(number: int, frame: object) -> None:
        """The launcher lets the ranks finish their step; on the second it ends them, on the third we do."""
        stops.append(number)
        if process is not None:
            _pass_on(process, stops)

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
            _pass_on(process, stops)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return EXIT_STOPPED if stops else code


def _pass_on(process: subprocess.Popen[bytes], stops: Sequence[int]) -> None:
    with contextlib.suppress(ProcessLookupError):
        if len(stops) <= 2:
            process.send_signal(stops[-1])
        else:
            os.killpg(process.pid, signal.SIGKILL)
