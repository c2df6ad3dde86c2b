"""Imported first by what a person starts: Ctrl-C while the rest is imported is a line, not a traceback.

Libraries take seconds to import, and whoever of ours listens to signals comes after them.
"""

import os
import signal
from types import FrameType


def _end(number: int, frame: FrameType | None) -> None:
    # Nothing is under way yet, and an exception may be lost within an import.
    os.write(2, b"perfdoc: interrupted\n")
    os._exit(130)


signal.signal(signal.SIGINT, _end)
