"""One rank's profiling: opens the window at its first step, closes it after its last, loses no training."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from perfdoc.profiling import garbage, ranges
from perfdoc.profiling.distributed import collectives, groups
from perfdoc.profiling.errors import TraceError, one_line
from perfdoc.profiling.logs import write_collectives
from perfdoc.profiling.marks import DeviceKind
from perfdoc.profiling.memory import MemoryRecorder
from perfdoc.profiling.profiler_choice import Profiler
from perfdoc.profiling.run_directory import RunDirectory
from perfdoc.profiling.vocabulary import STEP, numbered
from perfdoc.profiling.window import NsysCapture, ProfileWindow, TorchCapture


class Session:
    """Profiling of one rank, from after init_process_group to the end of training.

        with Session(run, window=window, profiler="torch", rank=0, world_size=2, device="cpu") as session:
            for step in range(...):
                with session.step(step):
                    ...

    A profiler that fails does not end training: the window closes and `problem` says why, in one line.
    """

    def __init__(
        self,
        run: RunDirectory,
        *,
        window: ProfileWindow,
        profiler: Profiler,
        rank: int,
        world_size: int,
        device: DeviceKind,
        shapes: bool = False,
        memory_history: bool = True,
        snapshot: str | None = None,
    ) -> None:
        self._run, self._window, self._rank = run, window, rank
        self._world_size, self._device = world_size, device
        self._capture: TorchCapture | NsysCapture | None = None
        if window.has_rank(rank) and profiler == "torch":
            self._capture = TorchCapture(run, rank, world_size, device, shapes=shapes)
        elif window.has_rank(rank) and profiler == "nsys":
            self._capture = NsysCapture(device)
        self._memory = MemoryRecorder(run, rank, device, history=memory_history, copy=snapshot)
        self.ranges_through = ""
        """Through what ranges were emitted, once the window has opened."""
        self.problem: str | None = None
        """Why there is no capture, or not all of one; None where nothing went wrong."""
        self._prepared = self._open = self._done = False
        self._pid, self._writes, self._ended_by = os.getpid(), False, 0

    def __enter__(self) -> Session:
        if self._capture is not None:
            if importlib.util.find_spec("torch") is not None:
                collectives.install()
            garbage.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._capture is None:
            return
        if self._open:
            self._close()
            if self.problem is None and kind is None:
                self.problem = f"training ended before step {self._window.last}, the last profiled one"
        elif not self._done and self.problem is None and kind is None:
            self.problem = f"training ended before step {self._window.start}, the first profiled one"
        collectives.uninstall()
        garbage.uninstall()

    def is_profiled(self, step: int) -> bool:
        """Whether this rank is captured in `step`; such a step's time is not a normal one."""
        return self._capture is not None and self.problem is None and self._window.has_step(step)

    @contextlib.contextmanager
    def step(self, step: int) -> Iterator[None]:
        """Run one training step: in its range, inside the window where it belongs there."""
        if self._capture is not None and not self._done:
            self._before(step)
        remembers = self._done and step == self._window.last + 1 and self._try(self._memory.start_history)
        try:
            with ranges.range(numbered(STEP, step)):
                yield
        finally:
            if self._open:
                self._after(step)
            if remembers:
                self._try(self._memory.stop_history)

    def _before(self, step: int) -> None:
        assert self._capture is not None
        if not self._prepared and step >= self._window.start - 1:
            self._prepared = True
            if not self._try(self._capture.prepare):
                self._done = True
        if not (self._open or self._done) and self._window.has_step(step):
            self._open = True
            if isinstance(self._capture, TorchCapture):  # nsys writes its report of a program that was ended
                _replace(signal.SIG_DFL, self._end)
            if not self._try(lambda: self._begin(step)):
                self._close()

    def _begin(self, step: int) -> None:
        assert self._capture is not None
        self._memory.start(step)
        self.ranges_through = self._capture.begin()
        groups.emit_marks(rank=self._rank, world_size=self._world_size, device=self._device)

    def _after(self, step: int) -> None:
        well = self._try(lambda: self._memory.step_ended(step))
        if not well or step >= self._window.last:
            self._close()

    def _close(self) -> None:
        assert self._capture is not None
        self._open, self._done, self._writes = False, True, True
        # Each by itself: a disk that is full for one file may still hold the others.
        self._try(self._capture.end)
        self._try(self._write_collectives)
        self._try(self._memory.stop)
        self._writes = False
        _replace(self._end, signal.SIG_DFL)
        if self._ended_by:
            os.kill(self._pid, self._ended_by)

    def _end(self, number: int, frame: object) -> None:
        """A scheduler takes the machine back: what is captured is written before its signal ends us."""
        self._ended_by = number
        if self._open and os.getpid() == self._pid:  # not in a worker that was forked meanwhile
            self._close()
        elif not self._writes:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _write_collectives(self) -> None:
        records = collectives.drain()
        write_collectives(self._run.collectives_path(self._rank), records)
        if (lost := collectives.dropped()) > 0:
            what = f"{lost} collectives of the profiled steps have no record."
            raise TraceError(self._run.collectives_path(self._rank), what, "Profile fewer steps.")

    def _try(self, action: Callable[[], None]) -> bool:
        """Whether an action of the profiler went well; the first that did not is the problem."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - torch's and NVTX's are of any class, and training goes on
            self.problem = self.problem or one_line(error)
            return False
        return True


def _replace(handler: object, other: Any) -> None:
    """Of the signals by which schedulers end a job, where the handler is ours to replace."""
    with contextlib.suppress(ValueError):  # of the main thread alone
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == handler:
                signal.signal(number, other)
