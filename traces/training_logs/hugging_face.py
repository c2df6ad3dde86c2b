"""Steps of Hugging Face Trainer, whose lines `{'loss': 1.3, …, 'epoch': 0.02}` hold neither step nor time.

Its progress bar does: ` 14%|█▍        | 10/69 [10:55<1:11:19, 72.53s/it]`, with whole seconds of time gone,
and with a moving mean of a step's time (or of steps a second) in two decimals. That mean is what is read: one
slow step is seen in several, less each time. Evaluation and tokenizing have bars of other lengths.
"""

from __future__ import annotations

import re
from collections import Counter

from perfdoc.traces.training_logs.lines import LogStep, StepLine
from perfdoc.traces.training_logs.text import number_of, rank_of, step_ns, whole_of

_BAR = re.compile(
    r"[0-9]{1,3}%\|[^|]{0,300}\| {0,12}(?P<step>[0-9]{1,12})/(?P<total>[0-9]{1,12}) "
    r"\[[0-9:]{1,20}<[^,\]]{0,30}, {0,9}(?P<rate>[0-9.]{1,12}|\?)(?P<unit>s/it|it/s)"
)
_NAME = re.compile(r"(\w{1,40}): {0,4}$")
"""Of a bar, before its percentage."""
_NAMES = (None, "train", "training")
_LOSS = re.compile(r"\{'loss': ")
_TOTAL = re.compile(r"\bTotal optimization steps = ([0-9,]{1,20})")
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
        if "Total optimization steps" in line and (total := _TOTAL.search(line)) is not None:
            self._announced = whole_of(total[1])
        if "%|" in line:
            for found in _BAR.finditer(line):
                self._take(line, found)
        if self._now is not None and "{'loss'" in line and _LOSS.search(line) is not None:
            self._told[self._now] += 1

    def _take(self, line: str, found: re.Match[str]) -> None:
        before = line[max(found.start() - 60, 0) : found.start()]
        named = None if before.strip() == rank_of(line).strip() else _NAME.search(before)
        name = None if named is None else named[1].lower()
        step, total = int(found["step"]), int(found["total"])
        if name not in _NAMES or not step or step > total:
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
                step=_step(step, found["rate"], found["unit"]),
                rank=rank_of(line),
            )
        )

    def steps(self) -> list[StepLine]:
        """Those of training: of the announced length, else of the bar below which losses were told."""
        if self._announced in self._bars:
            return self._bars[self._announced]
        return self._bars[self._told.most_common(1)[0][0]] if self._told else []


def _step(number: int, rate: str, unit: str) -> LogStep | None:
    value = number_of(rate)
    if not value:
        return None
    duration = step_ns(value if unit == "s/it" else 1 / value)
    if duration is None:
        return None
    return LogStep(step=number, duration_ns=duration, tflops_per_gpu=None, global_batch_size=None)
