"""What follows the steps of this process: a session with a window, or whatever profiler is there.

Without a window, ranges are on while nsys is attached or a PyTorch profiler collects, and nothing else is
done: a step then costs a look at both.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.errors import CaptureError, one_line
from perfdoc.profiling.nsys.command import is_attached
from perfdoc.profiling.own.process import own_device, own_rank
from perfdoc.profiling.vocabulary import DATA, STEP, numbered

_wrapped: tuple[Any, Any] | None = None
"""The iterators' class, and its own `__next__`."""


def mark_data_loading() -> None:
    """Put a range around every wait for a torch DataLoader. Idempotent; nothing where torch
    has not imported them."""
    global _wrapped
    module = sys.modules.get("torch.utils.data.dataloader")
    iterators = getattr(module, "_BaseDataLoaderIter", None)
    if _wrapped is not None or iterators is None:
        return
    original = iterators.__next__

    @functools.wraps(original)
    def waited_for(self: Any) -> Any:
        close = ranges.begin(DATA)
        if close is None:
            return original(self)
        try:
            return original(self)
        finally:
            close()

    _wrapped = iterators, original
    iterators.__next__ = waited_for


def unmark_data_loading() -> None:
    """Put torch's own method back."""
    global _wrapped
    if _wrapped is not None:
        iterators, original = _wrapped
        iterators.__next__ = original
        _wrapped = None


TYPE_CHECKING = False
if TYPE_CHECKING:
    from perfdoc.profiling.own.asked_window import AskedWindow
    from perfdoc.profiling.profiler_choice import Profiler
    from perfdoc.profiling.session import Session
    from perfdoc.profiling.window import ProfileWindow

MARKS_EVERY_S = 1.0
"""Between two repeats of the marks of rank and groups: nsys does not say when it begins to collect."""
_INJECTED = "NVTX_INJECTION64_PATH"
"""Set in a process that any tool reads NVTX of."""


def warn(message: str) -> None:
    """One line on standard error, with the rank; the job goes on."""
    sys.stderr.write(f"perfdoc: rank {own_rank()[0]}: {message}\n")


class Attached:
    """Whatever profiler is there: no window of ours."""

    def __init__(self) -> None:
        self._nsys = is_attached() or _INJECTED in os.environ
        self._state = False, False
        self._expected = False
        self._marked_s = float("-inf")

    def look(self) -> bool:
        """Switch ranges by what collects now; whether anything does."""
        profiler = sys.modules.get("torch.autograd.profiler")
        collecting = self._expected or (profiler is not None and bool(profiler._is_profiler_enabled))
        state = self._nsys, collecting
        if state != self._state:
            self._state = state
            if any(state):
                ranges.enable(nvtx=self._nsys, record_function=collecting)
                _install()
            else:
                ranges.disable()
                _uninstall()
        return any(state)

    def expect(self, expected: bool) -> None:
        """A PyTorch profiler is about to collect, or is done: nothing of it is to be missed."""
        self._expected = expected
        self.look()

    def mark(self) -> None:
        """Say which rank this is, and its groups."""
        from perfdoc.profiling.distributed import collectives, groups

        rank, world_size = own_rank()
        groups.emit_marks(rank=rank, world_size=world_size, device=own_device())
        if not self._expected:
            collectives.drain(everything=True)  # nobody writes these records, which would grow

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One training step in its range."""
        if not self.look():
            yield
            return
        with ranges.range(numbered(STEP, number)):
            if (now := time.monotonic()) - self._marked_s > MARKS_EVERY_S:
                self._marked_s = now
                self.mark()
            yield


class Windowed:
    """A session that profiles some steps of some ranks, opened at the first step."""

    def __init__(self, session: Session, window: ProfileWindow, *, folder: Path) -> None:
        self._session, self._window = session, window
        self._first: int | None = None
        self._told = self._entered = False
        self.folder = folder

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One training step, inside the window where it belongs there."""
        if self._first is None:
            self._first = number
            self._begin()
            if number > self._window.last:
                warn(f"the first step is {number}, after the window's last, {self._window.last}: no capture")
        if not self._entered:
            yield
            return
        with self._session.step(number):
            yield
        self._tell()

    def _begin(self) -> None:
        try:
            self._session.__enter__()
            mark_data_loading()
            self._entered = True
        except Exception as error:  # noqa: BLE001 - whatever a torch refuses to have wrapped, training goes on
            warn(f"no capture: {one_line(error)}")
            _uninstall()

    def end(self) -> None:
        """No step follows."""
        if not self._entered or self._first is None:
            return
        first, self._first, self._entered = self._first, None, False
        self._session.__exit__(None, None, None)
        _uninstall()
        if first <= self._window.last:
            self._tell()

    def look(self) -> bool:
        """Whether ranges are on: the window decides."""
        return ranges.on()

    def _tell(self) -> None:
        if self._session.problem is not None and not self._told:
            self._told = True
            warn(self._session.problem)


def _install() -> None:
    from perfdoc.profiling import garbage
    from perfdoc.profiling.distributed import collectives

    garbage.install()
    if "torch" in sys.modules:
        with contextlib.suppress(RuntimeError):  # a torch without its distributed package
            collectives.install()
    mark_data_loading()


def _uninstall() -> None:
    from perfdoc.profiling import garbage
    from perfdoc.profiling.distributed import collectives

    unmark_data_loading()
    garbage.uninstall()
    collectives.uninstall()
    collectives.drain(everything=True)


def windowed(
    window: ProfileWindow, *, folder: Path, profiler: Profiler = "torch", cuda: bool = False
) -> Windowed:
    """A session for this process, its files in a run directory. cuda: whether it is known to use a GPU.

    Raises CaptureError where the folder cannot be made.
    """
    from perfdoc.profiling.run_directory import RunDirectory
    from perfdoc.profiling.session import Session

    rank, world_size = own_rank()
    session = Session(
        RunDirectory.join(folder),
        window=window,
        profiler=profiler,
        rank=rank,
        world_size=world_size,
        device="cuda" if cuda else own_device(),
        shapes=True,
        memory_history=False,
    )
    return Windowed(session, window, folder=folder)


attached = Attached()
_windowed: Windowed | None = None
_asked: AskedWindow | None = None


def _read_asked() -> None:
    global _asked
    if os.environ.get("PERFDOC_WINDOW"):
        from perfdoc.profiling.own.asked_window import asked

        try:
            _asked = asked()
        except CaptureError as error:
            warn(str(error))


_read_asked()


def look() -> bool:
    """Whether ranges are on here. Before the first step of an asked window they are not: which rank this is,
    and where it computes, is known at that step."""
    return _asked is None and (_windowed or attached).look()


def follower() -> Attached | Windowed:
    """What follows a step; the asked window's session is made here, at the first one."""
    global _windowed, _asked
    if _asked is not None:
        window, _asked = _asked, None
        torch = sys.modules.get("torch")
        cuda = window.device == "cuda" and torch is not None and torch.cuda.is_available()
        try:
            use(windowed(window.window, folder=Path(window.folder), profiler=window.profiler, cuda=cuda))
        except CaptureError as error:
            warn(str(error))
    return _windowed or attached


def use(given: Windowed) -> bool:
    """Let a session follow the steps; whether it does. One that `perfdoc capture` asked for stays."""
    global _windowed
    if _asked is not None or _windowed is not None:
        return False
    _windowed = given
    atexit.register(release)  # a trainer that fails does not say that it ends
    return True


def release() -> None:
    """The session's window is over, or never came."""
    global _windowed
    if _windowed is not None:
        done, _windowed = _windowed, None
        done.end()
