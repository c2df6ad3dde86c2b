"""Where torch tells that a phase begins or that a rank waits, without a word of the training loop.

Waits: `Work.wait`, in which every collective and message of torch.distributed ends that Python issues, and
`wait_tensor`, in which the functional ones of DTensor do.
DistributedDataParallel's are issued in C++: there a wait is what follows the last gradient of a backward.
Not seen: collectives of compiled graphs, and on CUDA those that other streams wait for.
"""

from __future__ import annotations

import functools
import gc
import importlib
import sys
import threading
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Protocol

from perfdoc.profiling import ranges
from perfdoc.profiling.own.phases import Phases
from perfdoc.profiling.vocabulary import BACKWARD, DATA

_wrapped: tuple[Any, Any] | None = None
"""The iterators' class, and its own `__next__`."""
_holders: set[str] = set()
_on_batch: Callable[[object], object] | None = None


def mark_data_loading(holder: str, on_batch: Callable[[object], object] | None = None) -> None:
    """Put a range around every wait for a torch DataLoader. Idempotent; nothing where torch
    has not imported them.

    holder: who wants it, until it is unmarked for that one. on_batch: is given each batch.
    """
    global _wrapped, _on_batch
    module = sys.modules.get("torch.utils.data.dataloader")
    iterators = getattr(module, "_BaseDataLoaderIter", None)
    if iterators is None:
        return
    _holders.add(holder)
    _on_batch = on_batch or _on_batch
    if _wrapped is not None:
        return
    original = iterators.__next__

    @functools.wraps(original)
    def waited_for(self: Any) -> Any:
        close = ranges.begin(DATA)
        try:
            batch = original(self)
        finally:
            if close is not None:
                close()
        if _on_batch is not None:
            _on_batch(batch)
        return batch

    _wrapped = iterators, original
    iterators.__next__ = waited_for


def unmark_data_loading(holder: str) -> None:
    """Put torch's own method back, where nobody else wants it wrapped."""
    global _wrapped, _on_batch
    _holders.discard(holder)
    if _wrapped is not None and not _holders:
        iterators, original = _wrapped
        iterators.__next__ = original
        _wrapped = _on_batch = None


class Told(Protocol):
    """Who is told."""

    def phase(self, name: str | None) -> None:
        """A backward begins; None: it is over."""


class Backwards:
    """Tells of every backward pass that anybody starts, for trainers that do not say.

    A pass may start others: reentrant activation checkpointing runs one for each checkpoint, on CUDA on a
    thread of autograd's own, which may not close a range of this one. The outermost alone is told.
    """

    def __init__(self, loop: Told) -> None:
        self._loop = loop
        self._original: Any = None
        self._inside = 0
        self._counting = threading.Lock()

    def install(self) -> None:
        """Wrap torch.autograd.backward, in which every `loss.backward()` ends. Twice is once."""
        if self._original is not None:
            return
        autograd: Any = importlib.import_module("torch.autograd")
        original = self._original = autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            is_outermost = self._counted(1) == 1
            try:
                if is_outermost:
                    self._loop.phase(BACKWARD)
                return original(*args, **kwargs)
            finally:
                if is_outermost:
                    self._loop.phase(None)
                self._counted(-1)

        autograd.backward = backward

    def _counted(self, more: int) -> int:
        with self._counting:
            self._inside += more
            return self._inside

    def uninstall(self) -> None:
        """Put torch's own back."""
        original, self._original = self._original, None
        if original is not None:
            importlib.import_module("torch.autograd").backward = original  # type: ignore[attr-defined]


class Collections:
    """Counts Python's garbage collections and their time."""

    def __init__(self) -> None:
        self.count = self.ns = self._began_ns = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        """One of `gc.callbacks`."""
        if phase == "start":
            self._began_ns = perf_counter_ns()
            return
        self.count += 1
        self.ns += perf_counter_ns() - self._began_ns

    def taken(self) -> tuple[int, int]:
        """(runs, nanoseconds) since the last call."""
        found = self.count, self.ns
        self.count = self.ns = 0
        return found


class Hooks:
    """What is put into torch and Python for one recorder, and taken out again."""

    def __init__(self, phases: Phases) -> None:
        self._phases = phases
        self._undo: list[Callable[[], object]] = []
        self._is_in_torch = False
        self._waits: tuple[Any, Any, Any] | None = None
        self._backward_ends: Callable[[], object] | None = None
        self.collections = Collections()

    def install(self) -> None:
        """As far as torch is there; once more where it has been imported since. Twice is once."""
        if self.collections not in gc.callbacks:
            gc.callbacks.append(self.collections)
            self._undo.append(functools.partial(gc.callbacks.remove, self.collections))
        if self._is_in_torch or "torch" not in sys.modules:
            return
        self._is_in_torch = True
        backwards = Backwards(self)
        backwards.install()
        self._undo.append(backwards.uninstall)
        optimizer = importlib.import_module("torch.optim.optimizer")
        opened: list[Callable[[], object]] = []

        def begins(*_: Any) -> None:
            opened.append(self._phases.enter("optimizer"))

        def ends(*_: Any) -> None:
            if opened:
                opened.pop()()

        self._undo.append(optimizer.register_optimizer_step_pre_hook(begins).remove)
        self._undo.append(optimizer.register_optimizer_step_post_hook(ends).remove)
        distributed = importlib.import_module("torch.distributed")
        if distributed.is_available():
            self._time_waits(distributed.Work)

    def uninstall(self) -> None:
        """Put everything back."""
        while self._undo:
            self._undo.pop()()
        self._is_in_torch = False

    def phase(self, name: str | None) -> None:
        """What `Backwards` tells: a backward begins, or it is over."""
        ends, self._backward_ends = self._backward_ends, None
        if ends is not None:
            ends()
        if name == BACKWARD:
            self._backward_ends = self._phases.enter("backward")

    def follow_gradients(self) -> set[int]:
        """Look for models in DistributedDataParallel, and be told of the last gradient of each backward.

        How many replicas they have.

        To be called when one step is over, with the models made. It looks at every object of the process.
        """
        parallel = sys.modules.get("torch.nn.parallel.distributed")
        if parallel is None:
            return set()
        models = [o for o in gc.get_objects() if type(o) is parallel.DistributedDataParallel]
        for model in models:
            LastGradient(model, self._phases.gradients_done, self._undo)
        return {int(model.process_group.size()) for model in models}

    def renew(self) -> None:
        """Time waits again, where a profiler that came first has put torch's own method back."""
        if self._waits is not None:
            work, descriptor, wait = self._waits
            if vars(work)["wait"] is descriptor:
                work.wait = wait

    def _time_waits(self, work: Any) -> None:
        # What lies in the class binds; what getattr gives of a built-in does not.
        self._waits = work, vars(work)["wait"], self._timed(work.wait)
        work.wait = self._waits[2]
        self._undo.append(self._restore_waits)
        functional = sys.modules.get("torch.distributed._functional_collectives")
        if functional is not None and hasattr(functional, "wait_tensor"):
            self._undo.append(functools.partial(setattr, functional, "wait_tensor", functional.wait_tensor))
            functional.wait_tensor = self._timed(functional.wait_tensor)  # type: ignore[attr-defined]

    def _timed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """A function in which this rank waits for others. Compiled graphs hold torch's own."""
        enter, is_compiling = self._phases.enter, importlib.import_module("torch.compiler").is_compiling

        @functools.wraps(original)
        def wait(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(*args, **kwargs)
            leave = enter("wait")
            try:
                return original(*args, **kwargs)
            finally:
                leave()

        return wait

    def _restore_waits(self) -> None:
        assert self._waits is not None
        (work, descriptor, wait), self._waits = self._waits, None
        if vars(work)["wait"] is wait:  # else a profiler's lies around it, and puts this one back
            work.wait = descriptor


class LastGradient:
    """Tells of the last gradient of each backward of one model, by the order of its first one."""

    def __init__(self, model: Any, tell: Callable[[], None], undo: list[Callable[[], object]]) -> None:
        self._handles: list[Any] = []
        self._tell, self._last = tell, -1
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        for number, parameter in enumerate(self._parameters):
            hook = functools.partial(self._seen, number)
            self._handles.append(parameter.register_post_accumulate_grad_hook(hook))
        autograd: Any = importlib.import_module("torch.autograd.variable").Variable
        self._queue = autograd._execution_engine.queue_callback
        self._queued = False
        undo.append(self._remove)

    def _seen(self, number: int, _: Any) -> None:
        self._last = number
        if not self._queued:
            self._queued = True
            self._queue(self._backward_is_over)

    def _backward_is_over(self) -> None:
        # From now on one hook is left, of the parameter whose gradient came last.
        self._remove()
        last = self._parameters[self._last]
        self._handles = [last.register_post_accumulate_grad_hook(lambda _: self._tell())]

    def _remove(self) -> None:
        while self._handles:
            self._handles.pop().remove()
