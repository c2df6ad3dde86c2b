"""The step lines of a training log, put together: steps by number, and what is gone or does not belong.

A job that was restarted goes back to its last checkpoint and on from there: the later line of a step counts.
Two jobs in one file look alike but for their beginning, their end or their samples, and are told by these.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfdoc.traces.errors import TraceError

Dialect = Literal["megatron-lm", "megatron-bridge", "nemo"]

MAX_STEPS = 2_000_000
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


@dataclass(frozen=True, kw_only=True)
class StepLine:
    """One line of a step; `step` is None where its time cannot be read."""

    trainer: Literal["megatron", "nemo"]
    number: int
    total: int | None
    """The number of the last step, as the line announces it."""
    samples: int | None
    """Consumed so far."""
    step: LogStep | None


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

    @property
    def interval(self) -> int:
        """How many steps a line stands for (the usual distance of two lines' numbers)."""
        distances = sorted(self._distances())
        return distances[len(distances) // 2] if distances else 1

    @property
    def missing_lines(self) -> int:
        """Lines that there should be between the first and the last, and that are not there at all."""
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

    def add(self, line: StepLine) -> None:
        """Take one line. Raises TraceError for too many."""
        number, step = line.number, line.step
        if step is not None and number == self._before and step == self._steps.get(number):
            return  # the same line again, from another machine of the launcher
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

    def log(self, dialect: Dialect | None) -> TrainingLog:
        """All of them. Raises TraceError where there is no step, UnreadableStepsError where none is readable.

        dialect: where something else than a step line told it.
        """
        if not self._steps:
            if self._unreadable:
                count = len(self._unreadable)
                what = f"holds no step times that can be read: {count:,} of {count:,} steps have none."
                raise UnreadableStepsError(self._path, what, "Give a log whose step lines have times.")
            raise TraceError(
                self._path,
                "holds no step times of Megatron-LM, Megatron-Bridge or NeMo.",
                "Give the log of the rank that prints `iteration …` lines (Megatron's last rank, NeMo's "
                "first).",
            )
        return TrainingLog(
            path=self._path,
            dialect=dialect or ("nemo" if self._trainers == {"nemo"} else "megatron-lm"),
            steps=tuple(self._steps[n] for n in sorted(self._steps)),
            unreadable_steps=tuple(sorted(self._unreadable)),
            announced_steps=max(self._totals, default=None),
            ended_as_planned=self.ended_as_planned,
            restarts=self._backward,
            mixed=self._mixed(),
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
