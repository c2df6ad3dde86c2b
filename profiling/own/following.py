"""What follows the steps of this process: a session with a window, or whatever profiler is there.

Without a window, ranges are on while nsys is attached or a PyTorch profiler collects, and nothing else is
done: a step then costs a look at both.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from perfdoc.profiling import ranges
from perfdoc.profiling.errors import TraceError, one_line
from perfdoc.profiling.nsys.command import is_attached
from perfdoc.profiling.own import active
from perfdoc.profiling.own.hooks import mark_data_loading, unmark_data_loading
from perfdoc.profiling.process import own_device, own_rank
from perfdoc.profiling.vocabulary import STEP, numbered

TYPE_CHECKING = False
if TYPE_CHECKING:
    from perfdoc.profiling.own.asked_window import AskedWindow
    from perfdoc.profiling.own.recording import Recorder
    from perfdoc.profiling.profiler_choice import Profiler
    from perfdoc.profiling.session import Session
    from perfdoc.profiling.window import ProfileWindow

_HOLDER = "ranges"
MARKS_EVERY_S = 1.0
"""Between two repeats of the marks of rank and groups: nsys does not say when it begins to collect."""
_INJECTED = "NVTX_INJECTION64_PATH"
"""Set in a process that any tool reads NVTX of."""


def warn(message: str) -> None:
    """One line on standard error, with the rank; the job goes on."""
    sys.stderr.write(f"perfdoc: rank {own_rank()[0]}: {message}\n")


_record_asked = os.environ.get(active.VARIABLE, "")


def active_recorder() -> Recorder | None:
    """What records the steps of this process; the environment may ask for one."""
    global _record_asked
    if _record_asked:
        folder, _record_asked = _record_asked, ""
        from perfdoc.profiling.own.recording import record

        try:
            record(folder)
        except ValueError as error:
            warn(str(error))
    return active.current


@contextlib.contextmanager
def recorded(number: int, profiled: Callable[[], bool]) -> Iterator[None]:
    """One step in its row, where steps are recorded. profiled: asked at its end."""
    recorder = active_recorder()
    if recorder is None:
        yield
        return
    recorder.step_begins(number)
    try:
        yield
    finally:
        recorder.step_ends(profiled=profiled())


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
            collectives.drain()  # nobody writes these records, which would grow

    @contextlib.contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One training step in its range."""
        with recorded(number, lambda: profiled):
            profiled = self.look()
            with self._ranged(number) if profiled else contextlib.nullcontext():
                yield

    @contextlib.contextmanager
    def _ranged(self, number: int) -> Iterator[None]:
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
        with recorded(number, lambda: self._session.is_profiled(number)), self._windowed(number):
            yield

    @contextlib.contextmanager
    def _windowed(self, number: int) -> Iterator[None]:
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
            mark_data_loading(_HOLDER)
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
    mark_data_loading(_HOLDER)


def _uninstall() -> None:
    from perfdoc.profiling import garbage
    from perfdoc.profiling.distributed import collectives

    unmark_data_loading(_HOLDER)
    garbage.uninstall()
    collectives.uninstall()
    collectives.drain()


def windowed(
    window: ProfileWindow, *, folder: Path, profiler: Profiler = "torch", cuda: bool = False
) -> Windowed:
    """A session for this process, its files in a run directory. cuda: whether it is known to use a GPU.

    Raises TraceError where the folder cannot be made.
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
        except TraceError as error:
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
        except TraceError as error:
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
