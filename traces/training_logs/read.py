"""Step times and what ran, from the logs that trainers print, so that no trainer has to change.

Megatron-LM, Megatron-Bridge, NeMo, torchtitan and Hugging Face Trainer; a launcher may put words before every
line. Their step lines:

- Megatron-LM and Megatron-Bridge, every `log_interval` iterations, the mean since the line before:
  ` [2025-08-01 07:19:50] iteration        2/    5000 | consumed samples:          256 | elapsed time per
  iteration (ms): 12936.1 | throughput per GPU (TFLOP/s/GPU): 118.7 | … | global batch size:   128 | …`
- Megatron-Bridge also `Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU` before that line.
- Both `[Rank 0] (after 10 iterations) memory (MB) | allocated: 9554.8 | … | max reserved: 31000.0`.
- NeMo 2: `Training epoch 0, iteration 28/99 | … | global_batch_size: 32 | global_step: 28 | … |
  train_step_timing in s: 0.189 | …`, with three or four significant digits.
- torchtitan gives no step time: it is what its clock went on between two lines, every `log_freq` steps.
  `[titan] 2026-02-24 19:46:17,508 - root - INFO - step: 10  loss:  7.62585  grad_norm: 26.6250  memory:
  66.91GiB(37.51%)  tps: 10,050  tflops: 314.71  mfu: 13.99%`; tokens are of a device. Every process writes.
- Hugging Face Trainer's lines `{'loss': 1.3, …, 'epoch': 0.02}` hold neither step nor time. Its progress bar
  does: ` 14%|█▍        | 10/69 [10:55<1:11:19, 72.53s/it]`, with a moving mean of a step's time (or of steps
  a second) in two decimals: one slow step is seen in several, less each time. Evaluation and tokenizing have
  bars of other lengths.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from perfdoc.traces.training_logs.lines import Lines, LogStep, StepLine, TrainingLog
from perfdoc.traces.training_logs.said import Said
from perfdoc.traces.training_logs.text import (
    CLOCK,
    NUMBER,
    WORD,
    clock_of,
    figure_of,
    lines_of,
    number_of,
    rank_of,
    seconds_of,
    step_ns,
    tflops_of,
    whole_of,
)

_MEGATRON_STEP = re.compile(r"iteration\s{1,20}([0-9]{1,12})/\s{0,20}([0-9]{1,12})\s?\|")
_MEGATRON_CLOCK = re.compile(rf"\[{CLOCK}\]\s{{0,4}}iteration\s")
_NEMO_STEP = re.compile(r"global_step:\s?([0-9]{1,12})\b")
_NEMO_ITERATION = re.compile(r"iteration\s([0-9]{1,12})/([0-9]{1,12})\s\|")
_MEGATRON_TIME = re.compile(rf"elapsed time per iteration \(ms\):\s{{0,5}}{WORD}")
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
        step=_megatron_step(step[1], seconds_of(time, 1e3), rate, batch),
        rank=rank_of(line),
        at=clock_of(_MEGATRON_CLOCK.search(line)),
    )


def nemo(line: str) -> StepLine | None:
    """A line of NeMo; None where it is none."""
    if "step" not in line and "iteration" not in line:
        return None
    time = _NEMO_TIME.search(line)
    step, of = _NEMO_STEP.search(line), _NEMO_ITERATION.search(line)
    if (number := step or of) is None or (time is None and (step is None or of is None)):
        return None
    samples = _SAMPLES.search(line)
    rate, batch = _NEMO_TFLOPS.search(line), _NEMO_BATCH.search(line)
    return StepLine(
        trainer="nemo",
        number=int(number[1]),
        total=int(of[2]) if of is not None else None,
        samples=int(samples[1]) if samples is not None else None,
        step=_megatron_step(number[1], seconds_of(time, 1.0), rate, batch),
        rank=rank_of(line),
    )


def _megatron_step(
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


_TITAN_STEP = re.compile(rf"{CLOCK}.{{0,80}}?\bstep:\s{{0,9}}([0-9]{{1,12}})\s{{1,4}}loss:")
_TITAN_TOTAL = re.compile(r"\bTrainer is initialized with\b.{0,400}\btotal steps ([0-9]{1,12})\b")
_TITAN_MEMORY = re.compile(rf"\bmemory:\s{{0,4}}{NUMBER}GiB\(")
_TITAN_TOKENS = re.compile(rf"\b(?:tps|wps):\s{{0,8}}{NUMBER}")
_TITAN_TFLOPS = re.compile(rf"\btflops:\s{{0,8}}{NUMBER}")
_TITAN_MFU = re.compile(rf"\bmfu:\s{{0,4}}{NUMBER}%")
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
        if "total steps" in line and (total := _TITAN_TOTAL.search(line)) is not None:
            self._total = int(total[1])
        found = _TITAN_STEP.search(line) if "step:" in line else None
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
        step = _titan_step(number, seconds, line)
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


def _titan_step(number: int, seconds: float, line: str) -> LogStep | None:
    duration = step_ns(seconds)
    if duration is None:
        return None
    memory, mfu = figure_of(_TITAN_MEMORY.search(line)), figure_of(_TITAN_MFU.search(line))
    tokens = _TITAN_TOKENS.search(line)
    rate = None if tokens is None else whole_of(tokens[1])
    return LogStep(
        step=number,
        duration_ns=duration,
        tflops_per_gpu=tflops_of(_TITAN_TFLOPS.search(line)),
        global_batch_size=None,
        tokens_per_s_per_gpu=float(rate) if rate else None,
        mfu_frac=mfu / 100 if mfu is not None and 0 < mfu <= 100 else None,
        peak_memory_bytes=round(memory * 2**30) if memory is not None and 0 < memory < _MAX_GIB else None,
    )


_HF_BAR = re.compile(
    r"[0-9]{1,3}%\|[^|]{0,300}\| {0,12}(?P<step>[0-9]{1,12})/(?P<total>[0-9]{1,12}) "
    r"\[[0-9:]{1,20}<[^,\]]{0,30}, {0,9}(?P<rate>[0-9.]{1,12}|\?)(?P<unit>s/it|it/s)"
)
_NAME = re.compile(r"(\w{1,40}): {0,4}$")
"""Of a bar, before its percentage."""
_HF_NAMES = (None, "train", "training")
_HF_LOSS = re.compile(r"\{'loss': ")
_HF_TOTAL = re.compile(r"\bTotal optimization steps = ([0-9,]{1,20})")
_MOST_BARS = 64
_MOST_STEPS = 2_000_000


class Bars:
    """Collects every bar that has no name or trains; which of them is training's is known at the end."""

    def __init__(self) -> None:
        self.ended = False
        """The trainer said that it is done, by a stop before the last step or not."""
        self._bars: dict[int, list[StepLine]] = {}
        self._held = 0
        self._now: int | None = None
        self._told: Counter[int] = Counter()
        self._announced: int | None = None

    def read(self, line: str) -> None:
        """Take a line, whatever it is."""
        self.ended |= "{'train_runtime': " in line
        if "Total optimization steps" in line and (total := _HF_TOTAL.search(line)) is not None:
            self._announced = whole_of(total[1])
        if "%|" in line:
            for found in _HF_BAR.finditer(line):
                self._take(line, found)
        if self._now is not None and "{'loss'" in line and _HF_LOSS.search(line) is not None:
            self._told[self._now] += 1

    def _take(self, line: str, found: re.Match[str]) -> None:
        before = line[max(found.start() - 60, 0) : found.start()]
        named = None if before.strip() == rank_of(line).strip() else _NAME.search(before)
        name = None if named is None else named[1].lower()
        step, total = int(found["step"]), int(found["total"])
        if name not in _HF_NAMES or not step or step > total:
            return
        self._now = total
        if total not in self._bars and len(self._bars) >= _MOST_BARS:
            return
        bar = self._bars.setdefault(total, [])
        if (bar and bar[-1].number == step) or self._held >= _MOST_STEPS:
            return  # drawn again below a line that was written over it
        self._held += 1
        bar.append(
            StepLine(
                trainer="hugging-face",
                number=step,
                total=total,
                samples=None,
                step=_bar_step(step, found["rate"], found["unit"]),
                rank=rank_of(line),
            )
        )

    def steps(self) -> list[StepLine]:
        """Those of training: of the announced length, else of the bar below which losses were told."""
        if self._announced in self._bars:
            return self._bars[self._announced]
        return self._bars[self._told.most_common(1)[0][0]] if self._told else []


def _bar_step(number: int, rate: str, unit: str) -> LogStep | None:
    value = number_of(rate)
    if not value:
        return None
    duration = step_ns(value if unit == "s/it" else 1 / value)
    if duration is None:
        return None
    return LogStep(step=number, duration_ns=duration, tflops_per_gpu=None, global_batch_size=None)


_LOGGER_CLOCK = re.compile(rf"(?:\[NeMo I |\[INFO\|[^\]]{{1,80}}\] ?|\[titan\] |^\s?\[){CLOCK}")
"""Of a logger's own line: a date elsewhere may be that of a package."""


def read_training_log(path: Path) -> TrainingLog:
    """Read a log of any of these trainers.

    Raises TraceError where it holds no steps, UnreadableStepsError where none of them has a time.
    """
    found, said, titan, bars = Lines(path), Said(), Titan(), Bars()
    utilization: float | None = None
    bridge = False
    began: datetime | None = None
    memory = 0
    for text in lines_of(path):
        if (rate := bridge_rate(text)) is not None:
            bridge, utilization = True, tflops_of(rate)
        line = megatron(text) or nemo(text) or titan.read(text)
        if began is None:
            began = line.at if line is not None else None
            began = began or clock_of(_LOGGER_CLOCK.search(text))
        if line is None:
            said.read(text)
            bars.read(text)
            found.ended_as_planned |= ends_as_planned(text)
            memory = max(memory, peak_memory(text) or 0)
            continue
        if line.trainer == "megatron":
            if line.step is not None and utilization is not None and line.step.tflops_per_gpu is None:
                line = replace(line, step=replace(line.step, tflops_per_gpu=utilization))
            utilization = None
        found.add(line)
    if not found:
        for line in bars.steps():
            found.add(line)
        found.ended_as_planned = bars.ended
    return found.log(
        "megatron-bridge" if bridge else None,
        said=said.facts(),
        contradiction=said.contradiction,
        began=began,
        peak_memory_bytes=memory or None,
    )
