"""Step times and what ran, from the logs that trainers print, so that no trainer has to change.

Megatron-LM, Megatron-Bridge, NeMo, torchtitan and Hugging Face Trainer; a launcher may put words before every
line.
"""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from perfdoc.traces.training_logs.lines import Lines, TrainingLog
from perfdoc.traces.training_logs.said import Said
from perfdoc.traces.training_logs.text import CLOCK, clock_of, lines_of, tflops_of
from perfdoc.traces.training_logs.trainers import (
    Bars,
    Titan,
    bridge_rate,
    ends_as_planned,
    megatron,
    nemo,
    peak_memory,
)

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
