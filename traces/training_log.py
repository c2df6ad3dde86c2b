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

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from perfdoc.traces.errors import TraceError, require_regular
from perfdoc.traces.log_lines import Lines, LogStep, StepLine, TrainingLog

MAX_LINE = 20_000
"""Longer lines are cut: a progress bar that never ends its line is no step."""
_MAX_STEP_S = 86_400.0
_MAX_TFLOPS = 1e6

_NUMBER = r"([0-9]{1,12}(?:\.[0-9]{0,9})?(?:[eE][+-]?[0-9]{1,2})?)"
_WHOLE_NUMBER = re.compile(_NUMBER)
_WORD = r"(?:\x1b\[[0-9;]{0,12}m)?([^\s|\x1b]{0,40})"
"""What stands where a number should; a terminal's colour may stand before and after it."""
_MEGATRON_STEP = re.compile(r"iteration\s{1,20}([0-9]{1,12})/\s{0,20}([0-9]{1,12})\s?\|")
_NEMO_STEP = re.compile(r"global_step:\s?([0-9]{1,12})\b")
_NEMO_ITERATION = re.compile(r"iteration\s([0-9]{1,12})/([0-9]{1,12})\s\|")
_MEGATRON_TIME = re.compile(rf"elapsed time per iteration \(ms\):\s{{0,5}}{_WORD}")
_NEMO_TIME = re.compile(rf"train_step_timing in s:\s{{0,5}}{_WORD}")
_SAMPLES = re.compile(r"consumed[ _]samples:\s{0,20}([0-9]{1,15})\b")
_PLANNED_END = re.compile(r"exiting program (?:at iteration [0-9]|after [0-9.]{1,20} minutes)")
"""Of --exit-interval and --exit-duration-in-mins, by Megatron."""
_MEGATRON_TFLOPS = re.compile(rf"throughput per GPU \(TFLOP/s/GPU\):\s{{0,5}}{_NUMBER}")
_BRIDGE_TFLOPS = re.compile(rf"GPU utilization:\s{{0,5}}{_NUMBER}\s{{0,2}}MODEL_TFLOP/s/GPU")
_NEMO_TFLOPS = re.compile(rf"TFLOPS_per_GPU:\s{{0,5}}{_NUMBER}")
_MEGATRON_BATCH = re.compile(r"global batch size:\s{0,20}([0-9]{1,9})\b")
_NEMO_BATCH = re.compile(r"global_batch_size:\s{0,5}([0-9]{1,9})\b")


def read_training_log(path: Path) -> TrainingLog:
    """Read a log of any of the three trainers.

    Raises TraceError where it holds no steps, UnreadableStepsError where none of them has a time.
    """
    found = Lines(path)
    utilization: float | None = None
    bridge = False
    for text in _lines(path):
        if (rate := _BRIDGE_TFLOPS.search(text)) is not None:
            bridge, utilization = True, _possible_tflops(rate)
        line = _megatron(text) or _nemo(text)
        if line is None:
            found.ended_as_planned |= _PLANNED_END.search(text) is not None
            continue
        if line.trainer == "megatron":
            if line.step is not None and utilization is not None and line.step.tflops_per_gpu is None:
                line = replace(line, step=replace(line.step, tflops_per_gpu=utilization))
            utilization = None
        found.add(line)
    return found.log("megatron-bridge" if bridge else None)


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


def _megatron(line: str) -> StepLine | None:
    step = _MEGATRON_STEP.search(line)
    time = _MEGATRON_TIME.search(line)
    samples = _SAMPLES.search(line)
    if step is None or (time is None and samples is None):
        return None
    if _NEMO_TIME.search(line) is not None or _NEMO_STEP.search(line) is not None:
        return None
    rate, batch = _MEGATRON_TFLOPS.search(line), _MEGATRON_BATCH.search(line)
    return StepLine(
        trainer="megatron",
        number=int(step[1]),
        total=int(step[2]),
        samples=int(samples[1]) if samples is not None else None,
        step=_step(step[1], _seconds(time, 1e3), rate, batch),
    )


def _nemo(line: str) -> StepLine | None:
    time = _NEMO_TIME.search(line)
    step, of = _NEMO_STEP.search(line), _NEMO_ITERATION.search(line)
    if (number := step or of) is None or (time is None and (step is None or of is None)):
        return None
    samples = _SAMPLES.search(line)
    return StepLine(
        trainer="nemo",
        number=int(number[1]),
        total=int(of[2]) if of is not None else None,
        samples=int(samples[1]) if samples is not None else None,
        step=_step(number[1], _seconds(time, 1.0), _NEMO_TFLOPS.search(line), _NEMO_BATCH.search(line)),
    )


def _seconds(found: re.Match[str] | None, of_a_second: float) -> float | None:
    """None where what stands there is no number: nan, -5.0, a torn line."""
    if found is None or _WHOLE_NUMBER.fullmatch(found[1]) is None:
        return None
    return float(found[1]) / of_a_second


def _step(
    number: str, seconds: float | None, tflops: re.Match[str] | None, batch: re.Match[str] | None
) -> LogStep | None:
    if seconds is None or not 0 < seconds < _MAX_STEP_S:
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
