"""A clean stop: finish the step, save, leave. Asked for by SIGINT or SIGTERM, or through the launcher."""

from __future__ import annotations

import signal
from types import FrameType

from perfdoc.profiling.launch_folder import LaunchFolder


class StopRequest:
    """Remembers that a stop was asked for. A second SIGINT interrupts at once.

    The launcher does not pass signals on to its ranks: under nsys they would reach nsys as well, and a rank
    that is still starting would be ended by them. It leaves a mark in its folder instead.
    """

    def __init__(self, launch: LaunchFolder | None = None) -> None:
        self._launch = launch
        self._by_signal = False
        self.signal_number: int | None = None

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
        self.signal_number = number
