"""Step lines of torchtitan, which give no step time: it is what its clock went on between two of them.

`[titan] 2026-02-24 19:46:17,508 - root - INFO - step: 10  loss:  7.62585  grad_norm: 26.6250  memory:
66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%`, every `log_freq` steps; tokens are of a device.
Every process may write one.
"""

from __future__ import annotations

import re
from collections import deque
from datetime import datetime

from perfdoc.traces.training_logs.lines import LogStep, StepLine
from perfdoc.traces.training_logs.text import (
    CLOCK,
    NUMBER,
    clock_of,
    figure_of,
    rank_of,
    step_ns,
    tflops_of,
    whole_of,
)

_STEP = re.compile(rf"{CLOCK}.{{0,80}}?\bstep:\s{{0,9}}([0-9]{{1,12}})\s{{1,4}}loss:")
_TOTAL = re.compile(r"\bTrainer is initialized with\b.{0,400}\btotal steps ([0-9]{1,12})\b")
_MEMORY = re.compile(rf"\bmemory:\s{{0,4}}{NUMBER}GiB\(")
_TOKENS = re.compile(rf"\b(?:tps|wps):\s{{0,8}}{NUMBER}")
_TFLOPS = re.compile(rf"\btflops:\s{{0,8}}{NUMBER}")
_MFU = re.compile(rf"\bmfu:\s{{0,4}}{NUMBER}%")
_ONE_START_S = 5.0
"""Processes write their first line within this of one another; a job that starts again takes longer."""
_MAX_GIB = 1e5


class Titan:
    """Reads the lines in their order, since a step's time lies between two of them."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, datetime, str]] = deque(maxlen=3)
        self._last_s = 2 * _ONE_START_S
        self._total: int | None = None

    def read(self, line: str) -> StepLine | None:
        """A step; None for other lines, for the first one of a job, and for what another process wrote of a
        step that is known."""
        if "total steps" in line and (total := _TOTAL.search(line)) is not None:
            self._total = int(total[1])
        found = _STEP.search(line) if "step:" in line else None
        at = clock_of(found)
        if found is None or at is None:
            return None
        number, rank = int(found[4]), rank_of(line)
        if any(n == number and self._at_once(at, rank, other) for n, *other in self._recent):
            return None
        before = self._recent[-1] if self._recent else None
        self._recent.append((number, at, rank))
        if before is None or number <= before[0]:  # the first line of a job: it took its start as well
            self._last_s = 2 * _ONE_START_S
            return None
        seconds = (at - before[1]).total_seconds() / (number - before[0])
        step = _step(number, seconds, line)
        if step is not None:
            self._last_s = seconds * (number - before[0])
        return StepLine(
            trainer="torchtitan", number=number, total=self._total, samples=None, step=step, rank=rank, at=at
        )

    def _at_once(self, at: datetime, rank: str, other: list[object]) -> bool:
        then, its_rank = other
        assert isinstance(then, datetime)
        apart = abs((at - then).total_seconds())
        return apart < 0.5 * self._last_s or (rank != its_rank and apart < 2 * self._last_s)


def _step(number: int, seconds: float, line: str) -> LogStep | None:
    duration = step_ns(seconds)
    if duration is None:
        return None
    memory, mfu = figure_of(_MEMORY.search(line)), figure_of(_MFU.search(line))
    tokens = _TOKENS.search(line)
    rate = None if tokens is None else whole_of(tokens[1])
    return LogStep(
        step=number,
        duration_ns=duration,
        tflops_per_gpu=tflops_of(_TFLOPS.search(line)),
        global_batch_size=None,
        tokens_per_s_per_gpu=float(rate) if rate else None,
        mfu_frac=mfu / 100 if mfu is not None and 0 < mfu <= 100 else None,
        peak_memory_bytes=round(memory * 2**30) if memory is not None and 0 < memory < _MAX_GIB else None,
    )
