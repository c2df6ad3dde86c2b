"""The window that `perfdoc capture` asks the steps of a job to open: an environment variable."""

import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Literal

import msgspec

from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.window import ProfileWindow

VARIABLE = "PERFDOC_WINDOW"


class AskedWindow(msgspec.Struct, frozen=True, kw_only=True):
    """Which steps of which ranks are captured, by what, and where the files go."""

    start: int
    steps: int
    ranks: tuple[int, ...] | None
    """None for all."""
    profiler: Literal["nsys", "torch"]
    device: DeviceKind
    """What nsys waits for: on `cuda` the call that opens its capture range."""
    folder: str
    """A run directory, absolute."""

    @property
    def window(self) -> ProfileWindow:
        """The steps and ranks. Raises ValueError where they are none."""
        return ProfileWindow(start=self.start, steps=self.steps, ranks=self.ranks)


def ask(window: AskedWindow, environment: MutableMapping[str, str]) -> None:
    """Ask the processes with this environment."""
    environment[VARIABLE] = msgspec.json.encode(window).decode()


def asked(environment: Mapping[str, str] | None = None) -> AskedWindow | None:
    """What this process is asked for; None where nothing is. Raises TraceError where it cannot be read."""
    text = (os.environ if environment is None else environment).get(VARIABLE)
    if not text:
        return None
    try:
        window = msgspec.json.decode(text, type=AskedWindow)
        if not Path(window.folder).is_absolute():
            raise ValueError("folder is no absolute path")
        _ = window.window
    except (ValueError, msgspec.DecodeError) as error:
        raise TraceError(VARIABLE, f"{error}.", "It is set by `perfdoc capture`; unset it.") from error
    return window


def window_of_steps(steps: tuple[int, int], ranks: tuple[int, ...] | None = None) -> ProfileWindow:
    """The window of steps (first, end); the end is not in it. Raises ValueError where none is."""
    first, end = steps
    if not 0 <= first < end:
        raise ValueError(
            f"steps {first}:{end}: the first is 0 or later, and before the end, which is not in it"
        )
    return ProfileWindow(start=first, steps=end - first, ranks=ranks)
