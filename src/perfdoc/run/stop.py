"""Signals that stop a command, as an exception: what runs clears up behind them.

In a module of its own: `python -m perfdoc` runs `__main__` under another name than the one it is imported by,
and who clears up behind a signal must know the same class.
"""

import os
import signal
import threading
from types import FrameType

STOPS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "hung up"}


class Stopped(BaseException):
    """A signal. Not KeyboardInterrupt, which the option parser turns into exit codes of its own."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__(number)
        self.number = signal.Signals(number)


def raise_stopped() -> None:
    """Have these signals raise Stopped in the main thread; the second of a kind ends the clearing up too.

    What is ignored (as under nohup) stays so.
    """
    for number in STOPS:
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _stop)


def stop_behind(error: BaseException | None) -> Stopped | None:
    """The signal behind which something was cleared up when this was raised, which hides it."""
    while error is not None and not isinstance(error, Stopped):
        error = error.__context__
    return error


_LATER_S = 0.02
_IMPORTING = "<frozen importlib._bootstrap>"


def _stop(number: int, frame: FrameType | None) -> None:
    if _must_wait(number, frame):
        again = threading.Timer(_LATER_S, os.kill, (os.getpid(), number))
        again.daemon = True
        again.start()
        return
    signal.signal(number, signal.SIG_DFL)
    raise Stopped(number)


def _must_wait(number: int, frame: FrameType | None) -> bool:
    """Whether this is no place to raise in.

    What is raised within an import may be lost there: compiled modules clear errors that they do not expect.
    And where this thread blocks the signal another one may have got it.
    """
    if number in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        return True
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING:
            return True
        frame = frame.f_back
    return False
