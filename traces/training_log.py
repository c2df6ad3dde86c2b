"""Step times in the logs that Megatron-LM, Megatron-Bridge and NeMo print, so that no trainer has to change.

What each prints (a launcher may put words before every line):

- Megatron-LM and Megatron-Bridge, every `log_interval` iterations, the mean since the line before:
  ` [2025-08-01 07:19:50] iteration        2/    5000 | consumed samples:          256 | elapsed time per
  iteration (ms): 12936.1 | throughput per GPU (TFLOP/s/GPU): 118.7 | … | global batch size:   128 | …`
- Megatron-Bridge also `Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU` before that line.
- NeMo: `Training epoch 0, iteration 28/99 | … | global_batch_size: 32 | global_step: 28 | … |
  train_step_timing in s: 0.189 | …`, with three or four significant digits.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfdoc.traces.errors import TraceError
from perfdoc.traces.regular_file import require_regular

Dialect = Literal["megatron-lm", "megatron-bridge", "nemo"]

MAX_LINE = 20_000
"""Longer lines are cut: a progress bar that never ends its line is no step."""
MAX_STEPS = 2_000_000
_MAX_STEP_S = 86_400.0
_MAX_TFLOPS = 1e6

_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{0,9})?(?:[eE][+-]?[0-9]{1,2})?)"
_MEGATRON_STEP = re.compile(r"iteration\s{1,20}([0-9]{1,12})/\s{0,20}[0-9]{1,12}\s?\|")
_NEMO_STEP = re.compile(r"global_step:\s?([0-9]{1,12})\b")
_NEMO_ITERATION = re.compile(r"iteration\s([0-9]{1,12})/[0-9]{1,12}\s\|")
_MEGATRON_TIME = re.compile(rf"elapsed time per iteration \(ms\):\s{{0,5}}{_NUMBER}")
_NEMO_TIME = re.compile(rf"train_step_timing in s:\s{{0,5}}{_NUMBER}")
_MEGATRON_TFLOPS = re.compile(rf"throughput per GPU \(TFLOP/s/GPU\):\s{{0,5}}{_NUMBER}")
_BRIDGE_TFLOPS = re.compile(rf"GPU utilization:\s{{0,5}}{_NUMBER}\s{{0,2}}MODEL_TFLOP/s/GPU")
_NEMO_TFLOPS = re.compile(rf"TFLOPS_per_GPU:\s{{0,5}}{_NUMBER}")
_MEGATRON_BATCH = re.compile(r"global batch size:\s{0,20}([0-9]{1,9})\b")
_NEMO_BATCH = re.compile(r"global_batch_size:\s{0,5}([0-9]{1,9})\b")


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
class TrainingLog:
    """The steps of a log by number, each once: after a restart the later line of a step counts."""

    path: Path
    dialect: Dialect
    steps: tuple[LogStep, ...]

    @property
    def interval(self) -> int:
        """How many steps a line stands for (the usual distance of two lines' numbers)."""
        numbers = [s.step for s in self.steps]
        distances = sorted(b - a for a, b in itertools.pairwise(numbers))
        return distances[len(distances) // 2] if distances else 1


def read_training_log(path: Path) -> TrainingLog:
    """Read a log of any of the three trainers. Raises TraceError where it holds no steps."""
    steps: dict[int, LogStep] = {}
    dialect: Dialect | None = None
    utilization: float | None = None
    for line in _lines(path):
        if (bridge := _BRIDGE_TFLOPS.search(line)) is not None:
            dialect, utilization = "megatron-bridge", _possible_tflops(bridge)
        found = _megatron(line)
        if found is not None:
            if utilization is not None and found.tflops_per_gpu is None:
                found = LogStep(
                    step=found.step,
                    duration_ns=found.duration_ns,
                    tflops_per_gpu=utilization,
                    global_batch_size=found.global_batch_size,
                )
            utilization = None
            dialect = dialect or "megatron-lm"
        elif (found := _nemo(line)) is not None:
            dialect = dialect or "nemo"
        if found is not None:
            steps[found.step] = found
            if len(steps) > MAX_STEPS:
                raise TraceError(path, f"holds more than {MAX_STEPS:,} steps.", "Cut the log.")
    if dialect is None or not steps:
        raise TraceError(
            path,
            "holds no step times of Megatron-LM, Megatron-Bridge or NeMo.",
            "Give the log of the rank that prints `iteration …` lines (Megatron's last rank, NeMo's first).",
        )
    return TrainingLog(path=path, dialect=dialect, steps=tuple(steps[n] for n in sorted(steps)))


def _lines(path: Path) -> Iterator[str]:
    require_regular(path)
    try:
        file = path.open("rb")
    except OSError as error:
        raise TraceError(path, f"cannot be opened: {error.strerror}.", "Check the path.") from error
    with file:
        while raw := file.readline(MAX_LINE):
            # A progress bar returns to the start of its line; what it wrote last before a step counts.
            yield from raw.decode("utf-8", "replace").split("\r")


def _megatron(line: str) -> LogStep | None:
    time = _MEGATRON_TIME.search(line)
    step = _MEGATRON_STEP.search(line)
    if time is None or step is None:
        return None
    return _step(step[1], float(time[1]) / 1e3, _MEGATRON_TFLOPS.search(line), _MEGATRON_BATCH.search(line))


def _nemo(line: str) -> LogStep | None:
    time = _NEMO_TIME.search(line)
    step = _NEMO_STEP.search(line) or _NEMO_ITERATION.search(line)
    if time is None or step is None:
        return None
    return _step(step[1], float(time[1]), _NEMO_TFLOPS.search(line), _NEMO_BATCH.search(line))


def _step(
    number: str, seconds: float, tflops: re.Match[str] | None, batch: re.Match[str] | None
) -> LogStep | None:
    if not 0 < seconds < _MAX_STEP_S:
        return None
    return LogStep(
        step=int(number),
        duration_ns=round(seconds * 1e9),
        tflops_per_gpu=_possible_tflops(tflops) if tflops is not None else None,
        global_batch_size=int(batch[1]) if batch is not None else None,
    )


def _possible_tflops(found: re.Match[str]) -> float | None:
    """No device does an exaFLOP a second: such a figure is a damaged line."""
    return value if 0 < (value := float(found[1])) < _MAX_TFLOPS else None
