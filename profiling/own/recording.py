"""`record("runs/mine")`: a small row for each step of this rank, for `perfdoc watch`.

Whatever tells of steps is followed: `step`, `steps`, the callbacks, `follow_megatron`. A step costs some
tens of microseconds, and on CUDA nothing waits for the device.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from perfdoc.profiling import ranges
from perfdoc.profiling.logs import Began, StepRecord
from perfdoc.profiling.own import active
from perfdoc.profiling.own.began import began, megatron_arguments, megatron_tokens, tokens_of
from perfdoc.profiling.own.hooks import Hooks, mark_data_loading, unmark_data_loading
from perfdoc.profiling.own.phases import Parts, Phases
from perfdoc.profiling.own.sinks import chosen
from perfdoc.profiling.own.telemetry import Telemetry
from perfdoc.profiling.process import own_device, own_rank
from perfdoc.profiling.run_directory import ENDED, RunDirectory
from perfdoc.profiling.step_log import StepLog

MAX_PENDING = 8
"""Steps that the device may be behind; then a step is written without its parts."""


class StepClock:
    """What a step of this process took, by its parts; made when training begins."""

    def __init__(self) -> None:
        self.phases = Phases(cuda=own_device() == "cuda")
        self.phases.listen()
        self._hooks = Hooks(self.phases)
        self._hooks.install()
        self._cpu_ns = 0
        self._is_first = True
        self._replicas: set[int] = set()

    def step_begins(self, *, anew: bool = True) -> None:
        """A step begins. anew: what lies since the last one is of none."""
        self._hooks.renew()
        if anew:
            self._begin_anew()
        self.phases.step_begins()

    def _begin_anew(self) -> None:
        self.phases.give_back(self.phases.cut())
        self._hooks.collections.taken()
        self._cpu_ns = time.process_time_ns()

    def step_ends(self) -> tuple[dict[str, Any], Parts]:
        """The step is over: fields of its record that are known now, and its parts."""
        parts = self.phases.cut()
        collections, garbage_ns = self._hooks.collections.taken()
        before, self._cpu_ns = self._cpu_ns, time.process_time_ns()
        known = {
            "garbage_ns": garbage_ns,
            "collections": collections,
            "cpu_ns": self._cpu_ns - before,
            "unseen_waits": parts.unseen_waits,
            "allocated_bytes": _allocated_bytes(),
            "resident_bytes": resident_bytes(),
        }
        if self._is_first:
            self._is_first = False
            self._hooks.install()
            self._replicas = self._hooks.follow_gradients()
            self._begin_anew()  # what this took is of no step
        return known, parts

    def role(self) -> dict[str, int]:
        """Which replica this is, where DistributedDataParallel is over all ranks; after the first step."""
        rank, world_size = own_rank()
        return {"dp": rank} if world_size in self._replicas and world_size > 1 else {}

    def close(self) -> None:
        """Take everything out of torch and Python again."""
        self._hooks.uninstall()
        ranges.time_phases({})


class Recorder:
    """Writes the steps of one process."""

    def __init__(
        self,
        run: RunDirectory,
        *,
        role: Mapping[str, int],
        facts: Mapping[str, Any],
        shown: Telemetry | None = None,
        flops: float | None = None,
    ) -> None:
        self._run, self._role, self.facts, self._flops = run, role, facts, flops
        self.shown = shown or Telemetry(services=())
        self._log: StepLog | None = None
        self._clock: StepClock | None = None
        self._pending: deque[tuple[StepRecord, Parts, bool]] = deque()
        self._number = self._start_ns = self._since_ns = 0
        self.tokens = self._length = 0
        """Of this step so far; of its longest sequence."""
        self.model: Mapping[str, Any] = {}
        """What a configuration of it says, from which its FLOPs follow."""
        self._loss: float | None = None
        self._steps = 0
        self._with_between = self._data_between = False

    def begin(self, *, data_between: bool = False, shown: Telemetry | None = None) -> None:
        """A training begins, or is over: what lies before the next step is of none.

        data_between: what lies between two steps is of the later one, in a loop that loads its data there.
        shown: where the steps of the training that begins are shown; None: as those before.
        """
        self._data_between, self._with_between = data_between, False
        self._steps = self._length = 0  # another model, it may be
        mark_data_loading("steps", self.saw)  # a trainer loads its first batch before its first step
        self._write_known(last=True)
        if shown is not None:
            self.shown = shown

    def step_begins(self, number: int) -> None:
        """A step begins."""
        if self._clock is None:
            self._clock = StepClock()
            try:
                self._log = StepLog(self._run.steps_path(own_rank()[0]))
                (self._run.path / ENDED).unlink(missing_ok=True)
            except OSError as error:
                said = f"{error.filename}: cannot be written: {error.strerror}; no steps are recorded"
                sys.stderr.write(f"perfdoc: {said}\n")
        if not self._steps:
            self.model = self.model or megatron_arguments()
        mark_data_loading("steps", self.saw)  # torch may have come since
        _exit_codes.clear()  # whoever called it goes on
        if self.shown.begins(self._run.path):
            atexit.register(stop)  # what a service puts there meanwhile comes after it
        self._number, self._start_ns, self._loss = number, time.time_ns(), None
        if not self._with_between:
            self.tokens, self._since_ns = 0, time.perf_counter_ns()
        self._clock.step_begins(anew=not self._with_between)

    def step_ends(self, *, profiled: bool = False) -> None:
        """The step is over. profiled: a profiler was on, so that its time is not a normal one."""
        if self._clock is None:
            return
        since_ns, self._since_ns = self._since_ns, time.perf_counter_ns()
        known, parts = self._clock.step_ends()
        row = StepRecord(
            step=self._number,
            start_ns=self._start_ns,
            duration_ns=max(self._since_ns - since_ns, 1),
            loss=self._loss,
            profiled=profiled,
            rank_tokens=self.tokens or None,
            tokens=megatron_tokens(self.model),
            began=None if self._steps else self._began(),
            **known,
        )
        self.tokens = 0
        self._pending.append((row, parts, self._with_between))
        self._with_between = self._data_between
        self._steps += 1
        self._write_known()

    def tell(self, *, loss: float | None = None, tokens: int | None = None) -> None:
        """What the training loop knows of the step: its loss, this rank's tokens."""
        self._loss = self._loss if loss is None else float(loss)
        self.tokens = self.tokens if tokens is None else int(tokens)

    def saw(self, batch: object) -> None:
        """A batch was loaded: its tokens, where it looks like one of tokens."""
        with contextlib.suppress(Exception):  # of the user's own, it may be, with any attributes
            tokens, length = tokens_of(batch)
            self.tokens, self._length = self.tokens + tokens, max(self._length, length)

    def _began(self) -> Began:
        role = {**(self._clock.role() if self._clock else {}), **self._role}
        return began(role, self.facts, self.model, self._length, flops_per_step=self._flops)

    def close(self) -> None:
        """No step follows; safe to repeat."""
        self._write_known(last=True)
        self.shown.ends()
        unmark_data_loading("steps")
        if self._clock is not None:
            self._clock.close()
            self._clock = None
            with contextlib.suppress(OSError):
                raised = hasattr(sys, "last_type") and not hasattr(sys, "ps1")  # a notebook goes on after it
                if own_rank()[0] == 0 and not raised and not any(_exit_codes):
                    (self._run.path / ENDED).touch()
        if self._log is not None:
            self._log.close()
            self._log = None

    def leave(self) -> None:
        """Of a forked child: write nothing and end nothing."""
        self._clock = self._log = None
        self.shown = Telemetry(services=())

    def _write_known(self, *, last: bool = False) -> None:
        while self._pending:
            row, parts, with_between = self._pending[0]
            known = parts.is_known()
            if not known and not last and len(self._pending) <= MAX_PENDING:
                return
            self._pending.popleft()
            # Else the host's time stands in: the device is steps behind, or training is over.
            if known:
                row = with_parts(row, parts.ns(), with_between=with_between)
                if self._clock is not None:
                    self._clock.phases.give_back(parts)
            if self._log is not None:
                self._log.keep(row)
            self.shown.add(row)


_NAMED = ("data", "forward", "backward", "optimizer", "wait")


def with_parts(row: StepRecord, parts: Mapping[str, int], *, with_between: bool) -> StepRecord:
    """The row with its duration and phases."""
    outside = parts.get("beside", 0) + (0 if with_between else parts.get("between", 0))
    named = {f"{name}_ns": parts.get(name, 0) for name in _NAMED}
    return msgspec.structs.replace(row, duration_ns=max(sum(parts.values()) - outside, 1), **named)


def _allocated_bytes() -> int | None:
    torch: Any = sys.modules.get("torch")
    if torch is None or own_device() != "cuda":
        return None
    try:  # as torch.cuda.max_memory_allocated, which puts all figures into a sorted table first
        return int(torch._C._cuda_memoryStats(torch.cuda.current_device())["allocated_bytes"]["all"]["peak"])
    except (AttributeError, KeyError, RuntimeError):
        return int(torch.cuda.max_memory_allocated())


def resident_bytes() -> int | None:
    """Of this process, without files that it has mapped: these grow as a data set is read, and give way.
    None where the system does not say."""
    try:
        with open("/proc/self/statm", "rb", buffering=0) as file:  # noqa: PTH123 - half the time of Path's
            _, resident, of_files, *_ = map(int, file.read(200).split())
            return max(resident - of_files, 0) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


def record(
    folder: str | Path,
    *,
    role: Mapping[str, int] | None = None,
    facts: Mapping[str, Any] | None = None,
    log: Sequence[str] | None = None,
    flops_per_step: float | None = None,
) -> Recorder:
    """Record the steps of this process into `folder`/steps/rank<N>.jsonl, from the next one on.

    role: the rank's place in the layout, such as {"pp": 1, "dp": 0}, where megatron-core does not know it.
    facts: what the job was started with; a change of it after a restart is told. Plain values are kept.
    log: where rank 0 shows figures: tensorboard, wandb, mlflow, prometheus=PATH; None: TensorBoard's files in
    the folder, where it is installed, and runs of the others that this process has begun; (): nowhere.
    flops_per_step: of the whole job, for MFU. A process has one recorder: a second call gives the first one.
    Raises TraceError where the folder cannot be made, ValueError for another service.
    """
    if active.current is None:
        shown = Telemetry(services=chosen(log))
        run = RunDirectory.join(Path(folder))
        active.current = Recorder(run, role=role or {}, facts=facts or {}, shown=shown, flops=flops_per_step)
        active.current.begin()
        atexit.register(stop)
        sys.exit = _exits
        if (seen := getattr(sys, "monitoring", None)) is not None and seen.get_tool(_TOOL) is None:
            seen.use_tool_id(_TOOL, "perfdoc")
            seen.register_callback(_TOOL, seen.events.PY_UNWIND, _unwound)
            seen.set_events(_TOOL, seen.events.PY_UNWIND)
    return active.current


_TOOL = 4  # of `sys.monitoring`: none of its debuggers', coverage's, profilers' or optimizers'
_exit, _exit_codes = sys.exit, list[Any]()
"""As it was, and with what codes the program ends: nothing tells atexit. Before Python 3.12 only `sys.exit`
says them, and `raise SystemExit(1)` is no failure."""


def _exits(code: Any = None) -> NoReturn:
    if threading.current_thread() is threading.main_thread():  # else it ends a thread
        _exit_codes.append(code)
    _exit(code)


def _unwound(_code: Any, _at: int, error: BaseException) -> None:
    """An exception leaves a frame: the outermost one of the main thread, and the program ends."""
    ends = isinstance(error, SystemExit) and sys._getframe(1).f_back is None
    if ends and threading.current_thread() is threading.main_thread():
        _exit_codes.append(getattr(error, "code", None))


def stop() -> None:
    """End recording."""
    if active.current is not None:
        ended, active.current = active.current, None
        ended.close()
