"""The step lines of a training log, put together: steps by number, and what is gone or does not belong.

A job that was restarted goes back to its last checkpoint and on from there: the later line of a step counts.
Two jobs in one file look alike but for their beginning, their end or their samples, and are told by these.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeAlias

from perfdoc.records import dataclass
from perfdoc.traces.errors import TraceError

Dialect = Literal["megatron-lm", "megatron-bridge", "nemo", "torchtitan", "hugging-face"]
Trainer = Literal["megatron", "nemo", "torchtitan", "hugging-face"]
_DIALECTS: Mapping[str, Dialect] = MappingProxyType(
    {"megatron": "megatron-lm", "nemo": "nemo", "torchtitan": "torchtitan", "hugging-face": "hugging-face"}
)
NAMES = "Megatron-LM, Megatron-Bridge, NeMo, torchtitan or Hugging Face Trainer"

SaidFact: TypeAlias = str | int | bool
MAX_STEPS = 2_000_000
_RANKS_BEHIND = 3
"""So many lines one process may be ahead of another that writes into the same file."""
_INTERLEAVED_FRAC = 0.1
"""Where more of the lines than this go back, two jobs write in turn: none restarts so often."""


class UnreadableStepsError(TraceError):
    """A log that has step lines, and no time in any of them."""


@dataclass(frozen=True, kw_only=True)
class LogStep:
    """What a log says of a step, or of the steps since the one before."""

    step: int
    duration_ns: int
    """Of one step; the mean where a line stands for several."""
    tflops_per_gpu: float | None
    """As the trainer counts them; conventions differ, so compare within one trainer only."""
    global_batch_size: int | None
    """Sequences."""
    tokens_per_s_per_gpu: float | None = None
    mfu_frac: float | None = None
    """By the peak that the trainer takes."""
    peak_memory_bytes: int | None = None
    """Most that PyTorch reserved since the line before."""


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """One line of a step; `step` is None where its time cannot be read."""

    trainer: Trainer
    number: int
    total: int | None
    """The number of the last step, as the line announces it."""
    samples: int | None
    """Consumed so far."""
    step: LogStep | None
    rank: str = ""
    """Which process wrote it, by its launcher's mark."""
    at: datetime | None = None
    """When it was written, by its own clock."""


@dataclass(frozen=True, kw_only=True)
class TrainingLog:
    """The steps of a log by number, each once."""

    path: Path
    dialect: Dialect
    steps: tuple[LogStep, ...]
    unreadable_steps: tuple[int, ...]
    """Numbers that have lines and no time in any of them: nan, negative, zero, over a day, torn."""
    announced_steps: int | None
    """The last step, by what the lines say of the end."""
    ended_as_planned: bool
    """The trainer said that it ends here, before the last step."""
    restarts: int
    """How often the steps go back, and on from there."""
    mixed: str
    """Why the lines are of several jobs; empty where they are of one."""
    began: datetime | None
    """What the log's first clock shows, in an unknown zone."""
    said: Mapping[str, SaidFact]
    """What ran, as the log says it (see perfdoc.traces.training_logs.said)."""
    peak_memory_bytes: int | None
    """Most that PyTorch reserved on a device that reports it."""
    smoothed: bool
    """Times are a moving mean over steps, as a progress bar shows it."""
    every_step: bool
    """Whether each step is to have a line, so that one without is missing."""

    @property
    def interval(self) -> int:
        """How many steps a line stands for (the usual distance of two lines' numbers)."""
        distances = sorted(self._distances())
        return distances[len(distances) // 2] if distances else 1

    @property
    def missing_lines(self) -> int:
        """Lines that there should be between the first and the last, and that are not there at all."""
        if not self.every_step:
            return 0
        return sum(max(round(d / self.interval) - 1, 0) for d in self._distances())

    def _distances(self) -> list[int]:
        numbers = sorted([*(s.step for s in self.steps), *self.unreadable_steps])
        return [b - a for a, b in itertools.pairwise(numbers)]


class Lines:
    """Collects the step lines of a file, in its order."""

    def __init__(self, path: Path) -> None:
        self.ended_as_planned = False
        self._path = path
        self._steps: dict[int, LogStep] = {}
        self._unreadable: set[int] = set()
        self._samples: dict[int, int] = {}
        self._other_samples = 0
        self._trainers: set[str] = set()
        self._totals: dict[int, None] = {}
        self._count = self._backward = self._beginnings = 0
        self._first = self._before = -1
        self._recent: deque[StepLine] = deque(maxlen=_RANKS_BEHIND)

    def __bool__(self) -> bool:
        return bool(self._steps or self._unreadable)

    def add(self, line: StepLine) -> None:
        """Take one line. Raises TraceError for too many."""
        number, step = line.number, line.step
        if step is not None and number == self._before and step == self._steps.get(number):
            return  # the same line again, from another machine of the launcher
        if self._is_of_another_rank(line):
            return
        self._recent.append(line)
        self._count += 1
        self._trainers.add(line.trainer)
        if line.total is not None:
            self._totals[line.total] = None
        if self._before >= 0 and number <= self._before:
            self._backward += 1
            self._beginnings += number <= self._first and self._before > self._first
        if self._first < 0:
            self._first = number
        self._before, self.ended_as_planned = number, False
        if line.samples is not None and self._samples.setdefault(number, line.samples) != line.samples:
            self._other_samples += 1
        if step is None:
            self._steps.pop(number, None)
            self._unreadable.add(number)
        else:
            self._steps[number] = step
            self._unreadable.discard(number)
        if len(self._steps) + len(self._unreadable) > MAX_STEPS:
            raise TraceError(self._path, f"holds more than {MAX_STEPS:,} steps.", "Cut the log.")

    def _is_of_another_rank(self, line: StepLine) -> bool:
        """Whether a step is told again by a process beside the one that told it: under another mark, or
        within half of the step. A restart comes later, and as a rule under the same mark."""
        told = next((one for one in self._recent if one.number == line.number), None)
        if told is None:
            return False
        if line.rank != told.rank:
            return True
        if line.at is None or told.at is None or told.step is None:
            return False
        return abs((line.at - told.at).total_seconds()) < 0.5e-9 * told.step.duration_ns

    def log(
        self,
        dialect: Dialect | None,
        *,
        said: Mapping[str, SaidFact] = MappingProxyType({}),
        contradiction: str = "",
        began: datetime | None = None,
        peak_memory_bytes: int | None = None,
    ) -> TrainingLog:
        """All of them. Raises TraceError where there is no step, UnreadableStepsError where none is readable.

        dialect: where something else than a step line told it. contradiction: why what is said of the job is
        of two.
        """
        if not self._steps:
            if self._unreadable:
                count = len(self._unreadable)
                what = f"holds no step times that can be read: {count:,} of {count:,} steps have none."
                raise UnreadableStepsError(self._path, what, "Give a log whose step lines have times.")
            raise TraceError(
                self._path,
                f"holds no step times of {NAMES}.",
                "Give the log of the rank that prints a line for each step (Megatron's last rank, else the "
                "first); of Hugging Face Trainer keep the progress bar.",
            )
        bar = self._trainers == {"hugging-face"}
        memory = [m for s in self._steps.values() if (m := s.peak_memory_bytes) is not None]
        memory += [peak_memory_bytes] if peak_memory_bytes is not None else []
        return TrainingLog(
            path=self._path,
            dialect=dialect or _DIALECTS[min(self._trainers)],
            steps=tuple(self._steps[n] for n in sorted(self._steps)),
            unreadable_steps=tuple(sorted(self._unreadable)),
            announced_steps=max(self._totals, default=None),
            ended_as_planned=self.ended_as_planned,
            restarts=self._backward,
            mixed=self._mixed() or contradiction,
            began=began,
            said=said,
            peak_memory_bytes=max(memory, default=None),
            smoothed=bar,
            every_step=not bar,
        )

    def _mixed(self) -> str:
        if len(self._trainers) > 1:
            return "has step lines of two trainers"
        if len(self._totals) > 1 and "nemo" not in self._trainers:  # NeMo's total is that of an epoch
            ends = ", ".join(f"{total:,}" for total in sorted(self._totals)[:3])
            return (
                f"has step lines of {len(self._totals):,} jobs, by the last step that they announce ({ends})"
            )
        if self._backward > max(_INTERLEAVED_FRAC * self._count, 1):
            return f"has step lines of several jobs in turn: {self._backward:,} of {self._count:,} go back"
        if self._beginnings:
            jobs = self._beginnings + 1
            return f"has step lines of {jobs:,} jobs: so often they begin at step {self._first:,}"
        if self._other_samples:
            return f"has step lines of several jobs: {self._other_samples:,} steps twice, of other samples"
        return ""
