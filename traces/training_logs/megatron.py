"""Step lines of Megatron-LM, Megatron-Bridge and NeMo.

- Megatron-LM and Megatron-Bridge, every `log_interval` iterations, the mean since the line before:
  ` [2025-08-01 07:19:50] iteration        2/    5000 | consumed samples:          256 | elapsed time per
  iteration (ms): 12936.1 | throughput per GPU (TFLOP/s/GPU): 118.7 | … | global batch size:   128 | …`
- Megatron-Bridge also `Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU` before that line.
- Both `[Rank 0] (after 10 iterations) memory (MB) | allocated: 9554.8 | … | max reserved: 31000.0`.
- NeMo 2: `Training epoch 0, iteration 28/99 | … | global_batch_size: 32 | global_step: 28 | … |
  train_step_timing in s: 0.189 | …`, with three or four significant digits.
- NeMo 1 in its bar: `Epoch 0:   1%|  | 795/77225 [9:07<8:01, 41.36s/it, …, global_step=794.0,
  train_step_timing in s=41.30]`. Its global step has three digits, so the bar's place is the number; its
  length may be an epoch's.
"""

from __future__ import annotations

import re

from perfdoc.traces.training_logs.lines import LogStep, StepLine
from perfdoc.traces.training_logs.text import (
    CLOCK,
    NUMBER,
    WORD,
    clock_of,
    figure_of,
    number_of,
    rank_of,
    seconds_of,
    step_ns,
    tflops_of,
)

_MEGATRON_STEP = re.compile(r"iteration\s{1,20}([0-9]{1,12})/\s{0,20}([0-9]{1,12})\s?\|")
_MEGATRON_CLOCK = re.compile(rf"\[{CLOCK}\]\s{{0,4}}iteration\s")
_NEMO_STEP = re.compile(r"global_step:\s?([0-9]{1,12})\b")
_NEMO_ITERATION = re.compile(r"iteration\s([0-9]{1,12})/([0-9]{1,12})\s\|")
_MEGATRON_TIME = re.compile(rf"elapsed time per iteration \(ms\):\s{{0,5}}{WORD}")
_NEMO_BAR = re.compile(
    rf"\| {{0,12}}([0-9]{{1,12}})/[0-9]{{1,12}} \[[^\]]{{0,600}}\btrain_step_timing in s={NUMBER}"
)
_NEMO_TIME = re.compile(rf"train_step_timing in s:\s{{0,5}}{WORD}")
_SAMPLES = re.compile(r"consumed[ _]samples:\s{0,20}([0-9]{1,15})\b")
_PLANNED_END = re.compile(r"exiting program (?:at iteration [0-9]|after [0-9.]{1,20} minutes)")
"""Of --exit-interval and --exit-duration-in-mins, by Megatron."""
_MEGATRON_TFLOPS = re.compile(rf"throughput per GPU \(TFLOP/s/GPU\):\s{{0,5}}{NUMBER}")
_BRIDGE_TFLOPS = re.compile(rf"GPU utilization:\s{{0,5}}{NUMBER}\s{{0,2}}(?:MODEL_)?TFLOP/s/GPU")
_NEMO_TFLOPS = re.compile(rf"TFLOPS_per_GPU:\s{{0,5}}{NUMBER}")
_MEGATRON_BATCH = re.compile(r"global batch size:\s{0,20}([0-9]{1,9})\b")
_NEMO_BATCH = re.compile(r"global_batch_size:\s{0,5}([0-9]{1,9})\b")
_MEMORY = re.compile(rf"iterations\) memory \(MB\) \|.{{0,200}}\bmax reserved:\s{{0,5}}{NUMBER}")
_MAX_MEMORY_MB = 1e8


def ends_as_planned(line: str) -> bool:
    """Whether Megatron says that it stops here, before its last iteration."""
    return "exiting program" in line and _PLANNED_END.search(line) is not None


def bridge_rate(line: str) -> re.Match[str] | None:
    """Megatron-Bridge's rate, which it prints before the line of the step."""
    return _BRIDGE_TFLOPS.search(line) if "GPU utilization" in line else None


def peak_memory(line: str) -> int | None:
    """Bytes that Megatron's report of memory says were reserved at most."""
    found = _MEMORY.search(line) if "max reserved" in line else None
    mega = figure_of(found)
    return round(mega * 2**20) if mega is not None and 0 < mega < _MAX_MEMORY_MB else None


def megatron(line: str) -> StepLine | None:
    """A line of Megatron-LM or Megatron-Bridge; None where it is none."""
    if "iteration" not in line:
        return None
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
        step=_step(step[1], seconds_of(time, 1e3), rate, batch),
        rank=rank_of(line),
        at=clock_of(_MEGATRON_CLOCK.search(line)),
    )


def nemo(line: str) -> StepLine | None:
    """A line of NeMo; None where it is none."""
    if "step" not in line and "iteration" not in line:
        return None
    if "train_step_timing in s=" in line and (bar := _NEMO_BAR.search(line)) is not None:
        value = number_of(bar[2])
        step_of = _step(bar[1], value, None, None)
        return StepLine(trainer="nemo", number=int(bar[1]), total=None, samples=None, step=step_of)
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
        step=_step(number[1], seconds_of(time, 1.0), _NEMO_TFLOPS.search(line), _NEMO_BATCH.search(line)),
        rank=rank_of(line),
    )


def _step(
    number: str, seconds: float | None, tflops: re.Match[str] | None, batch: re.Match[str] | None
) -> LogStep | None:
    duration = step_ns(seconds)
    if duration is None:
        return None
    return LogStep(
        step=int(number),
        duration_ns=duration,
        tflops_per_gpu=tflops_of(tflops),
        global_batch_size=int(batch[1]) if batch is not None else None,
    )
