"""A training loop that tells its callbacks where it is: the steps and phases that they mark."""

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from perfdoc.profiling import ranges
from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.own import following
from perfdoc.profiling.own.asked_window import window_of_steps
from perfdoc.profiling.own.sinks import Sink, begun, chosen, harmless
from perfdoc.profiling.own.telemetry import EVERY, Telemetry


class Loop:
    """Steps and phases by their beginnings and ends; what is left open is closed by what follows."""

    data_between = False
    """Whether batches are loaded between the steps."""

    def __init_subclass__(cls, **named: Any) -> None:
        """What a trainer calls, `on_…`, ends no training: a failure is told, once."""
        super().__init_subclass__(**named)
        for name, method in [*vars(cls).items()]:
            if name.startswith("on_") and cls.__module__.startswith("perfdoc."):  # not a user's subclass
                setattr(cls, name, _unfailing(name, method))

    def __init__(
        self,
        steps: tuple[int, int] | None = None,
        folder: str | Path | None = None,
        record: str | Path | None = None,
        log: Sequence[str] | None = None,
    ) -> None:
        """steps: (first, end) for the PyTorch profiler, into `folder`, a run directory; without them marks
        for whatever profiler is there. record: a run directory for a row of each step, for `perfdoc watch`.
        log: where figures of them are shown, see `perfdoc.profiling.record`.

        Raises ValueError for steps that are none, or one of both without the other, and other services.
        """
        if (steps is None) != (folder is None):
            raise ValueError("steps and folder go together: which steps to profile, and where the traces go")
        self._window = None if steps is None else window_of_steps(steps)
        self._folder = None if folder is None else Path(folder)
        self._record = None if record is None else Path(record)
        self._services = chosen(log)
        self._step: AbstractContextManager[None] | None = None
        self._phase: ranges.Opened | None = None
        self._beside: ranges.Opened | None = None
        self._owns = False
        self._at_end: Callable[[], object] = lambda: None

    def begins(
        self,
        at_end: Callable[[], object] = lambda: None,
        facts: Mapping[str, object] | None = None,
        loggers: Callable[[], Sequence[Sink]] = begun,
        every: int = EVERY,
        model: Mapping[str, object] | None = None,
    ) -> None:
        """Training begins: from here on the session follows, where one was asked for, and steps are recorded.

        facts: what the trainer was started with. at_end: what else is to be undone. loggers: the framework's
        own. every: steps from one of its points to the next. model: its configuration. A training that failed
        did not say so: what it left ends here.
        """
        global _running
        if _running is not None:
            _running.ends()
        _running, self._at_end = self, at_end
        try:
            recorder = following.active_recorder()
            if self._record is not None:
                from perfdoc.profiling.own.recording import record

                recorder = record(self._record)
                recorder.facts = {**recorder.facts, **(facts or {})}
            if recorder is not None:
                services = recorder.shown.services if self._services is None else self._services
                shown = Telemetry(services=services, of_framework=loggers, every=every, window=self._folder)
                recorder.model = model or {}
                recorder.begin(data_between=self.data_between, shown=shown)
        except TraceError as error:
            following.warn(str(error))  # training goes on
        if self._window is None or self._folder is None:
            return
        try:
            self._owns = following.use(following.windowed(self._window, folder=self._folder))
            if not self._owns:
                following.warn("steps of the callback are not profiled: another window is followed already")
        except TraceError as error:
            following.warn(str(error))  # training goes on

    def ends(self) -> None:
        """Training is over, however it ended."""
        global _running
        if _running is self:
            _running = None
        self._at_end()
        self._at_end = lambda: None
        self.leaves()
        self.step_ends()
        if self._owns:
            self._owns = False
            following.release()
        if (recorder := following.active_recorder()) is not None:
            recorder.begin()
            recorder.shown.ends()

    def step_begins(self, number: int) -> None:
        """A step begins, after the one before has ended."""
        self.step_ends()
        self._step = following.follower().step(number)
        self._step.__enter__()

    def step_ends(self) -> None:
        """The step is over, and the phase in it."""
        self.phase(None)
        step, self._step = self._step, None
        if step is not None:
            step.__exit__(None, None, None)

    def phase(self, name: str | None) -> None:
        """What the loop does from now on; None: nothing with a name. Within a step only."""
        opened, self._phase = self._phase, None
        if opened is not None:
            opened()
        if name is not None and self._step is not None:
            self._phase = ranges.begin(name)

    def enters(self, name: str) -> None:
        """Something beside the steps, such as an evaluation."""
        self.leaves()
        if ranges.on() or following.look() or ranges.timed():
            self._beside = ranges.begin(name)

    def leaves(self) -> None:
        """It is over."""
        opened, self._beside = self._beside, None
        if opened is not None:
            opened()


def told(act: Callable[[Loop], object]) -> Callable[..., None]:
    """What a trainer calls where that alone says what has come, whatever it gives beside it."""

    def on(self: Loop, *_: Any, **__: Any) -> None:
        act(self)

    return on


def _unfailing(name: str, method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def safe(self: Loop, *args: Any, **named: Any) -> Any:
        failed = self.__dict__.setdefault("_failed", set())  # this one's; the next training's begins anew
        return harmless(name, failed)(functools.partial(method, self, *args, **named))

    return safe


_running: Loop | None = None
"""The loop of this process that has begun and not ended."""
