"""Where the time of a step goes on one rank: one clock that is told what begins, so that parts sum to it.

On a CPU the host's clock is read. On CUDA an event is recorded on the stream instead, and read a step
later: nothing waits for the device. A wait for other ranks takes its time away from the phase around it.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Literal

from perfdoc.profiling import ranges
from perfdoc.profiling.vocabulary import BACKWARD, CHECKPOINT, DATA, EVALUATION, FORWARD, OPTIMIZER

Phase = Literal["between", "beside", "other", "data", "forward", "backward", "optimizer", "wait"]
"""between: after one step and before the next. beside: an evaluation or a checkpoint."""
OF_RANGES: Mapping[str, Phase] = {
    DATA: "data",
    FORWARD: "forward",
    BACKWARD: "backward",
    OPTIMIZER: "optimizer",
    EVALUATION: "beside",
    f"{CHECKPOINT} save": "beside",
    f"{CHECKPOINT} load": "beside",
}
MAX_WAITS = 256
"""Of a step that are timed on CUDA: each takes two events, 3 us of the host."""


class Parts:
    """The parts of one step; on CUDA they are known once the device has come to its end."""

    def __init__(self, spent_ns: Mapping[str, int], events: Sequence[tuple[Phase, Any]], unseen: int) -> None:
        self._spent_ns, self._events = spent_ns, events
        self.unseen_waits = unseen

    def is_known(self) -> bool:
        """Whether `ns` may be asked."""
        return not self._events or bool(self._events[-1][1].query())

    def ns(self) -> dict[str, int]:
        """Nanoseconds by phase."""
        if not self._events:
            return dict(self._spent_ns)
        found: dict[str, int] = {}
        for (_, begin), (phase, end) in zip(self._events, self._events[1:], strict=False):
            found[phase] = found.get(phase, 0) + round(1e6 * begin.elapsed_time(end))
        return found

    def events(self) -> list[Any]:
        """Those that no other step needs, to be used again."""
        return [event for _, event in self._events[1:]]


class Phases:
    """What this rank does at each moment: its training thread, and autograd's while that waits for it."""

    def __init__(self, *, cuda: bool = False) -> None:
        self._phase: Phase = "between"
        self._thread = threading.get_ident()
        self._spent_ns: dict[str, int] = {}
        self._since_ns = perf_counter_ns()
        self._cuda: Any = None
        self._free: list[Any] = []
        self._events: list[tuple[Phase, Any]] = []
        self._waits = self._unseen = 0
        self._forward_is_told = self._guesses = False
        if cuda:
            self._cuda = importlib.import_module("torch.cuda")
            self._stream = self._cuda.current_stream()
            self._events = [("between", self._event())]

    def listen(self) -> None:
        """Follow the ranges of phases while no profiler is on."""
        ranges.time_phases({name: partial(self.enter, phase) for name, phase in OF_RANGES.items()})

    def step_begins(self) -> None:
        """From here to `cut` is a step; what nothing tells of is its forward until a backward begins, unless
        the loop tells its forwards."""
        self._thread = threading.get_ident()
        self._guesses = not self._forward_is_told
        self._turn("forward" if self._guesses else "other")

    def enter(self, phase: Phase) -> Callable[[], object]:
        """A phase begins; call the result where it ends."""
        before = self._phase
        if not self._may_turn(before):
            return _nothing
        if phase == "forward":
            self._forward_is_told = True
        elif phase == "wait":
            self._waits += 1
            if self._cuda is not None and not self._is_timed():
                self._unseen += 1
                return _nothing
        self._turn(phase)
        if self._guesses and before == "forward" and phase in ("backward", "optimizer"):
            before = "other"
        return partial(self._turn, before)

    def gradients_done(self) -> None:
        """The last gradient of a backward is there: what follows until its end is waiting for other ranks."""
        if self._phase == "backward":
            self._turn("wait")

    def cut(self) -> Parts:
        """A step ends: its parts, since the last cut. What is between steps is a part as well."""
        self._turn("between")
        if self._cuda is None:
            parts = Parts(self._spent_ns, (), 0)
            self._spent_ns = {}
        else:
            parts = Parts({}, self._events, self._unseen)
            self._events = [("between", self._events[-1][1])]
        self._waits = self._unseen = 0
        return parts

    def give_back(self, parts: Parts) -> None:
        """Events of a step that was read."""
        self._free += parts.events()[:-1]  # the last one begins the step after

    def _may_turn(self, before: Phase) -> bool:
        # Autograd's thread on CUDA, while the one that trains waits for it; no loader's or checkpoint's.
        return threading.get_ident() == self._thread or before in ("backward", "wait")

    def _is_timed(self) -> bool:
        return self._waits <= MAX_WAITS and self._cuda.current_stream() == self._stream

    def _turn(self, phase: Phase) -> None:
        if self._cuda is None:
            now_ns = perf_counter_ns()
            self._spent_ns[self._phase] = self._spent_ns.get(self._phase, 0) + now_ns - self._since_ns
            self._since_ns = now_ns
        elif not self._cuda.is_current_stream_capturing():  # an event of a graph cannot be read
            self._events.append((self._phase, self._event()))
        self._phase = phase

    def _event(self) -> Any:
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record(self._stream)  # all on one: the last is over when all are, and none before another
        return event


def _nothing() -> None:
    return None
