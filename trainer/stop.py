"""A clean stop on SIGINT or SIGTERM: finish the step, save, leave."""

from __future__ import annotations

import signal
from types import FrameType


class StopRequest:
    """Remembers that a stop was asked for. A second SIGINT interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self.signal_number: int | None = None

    def listen(self) -> None:
        """Take over SIGINT and SIGTERM in this process's main thread."""
        signal.signal(signal.SIGINT, self._asked)
        signal.signal(signal.SIGTERM, self._asked)

    def _asked(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.requested = True
        self.signal_number = number
