"""The step log of a rank, and its early rows as rows of means, which keep that of a long run small.

Each row of means is of 16 steps or more that took 10 s or longer together: 360 rows an hour, 0.15 MB, for
the quickest steps. The last thousand steps stay as they are.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import sys
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from perfdoc.profiling.errors import TraceError
from perfdoc.profiling.logs import LineWriter, StepRecord, encoded, read_steps
from perfdoc.profiling.whole_file import whole_file

MOST_ROWS = 2_000
"""Of single steps in a file; then the earlier half becomes rows of means."""
MAX_UNWRITTEN = 10_000
"""Rows that are kept while the disk is full, 5 MB; then the earlier ones become rows of means."""

KEPT = 1_000
"""Last steps with a row of their own."""
MIN_STEPS = 16
MIN_NS = 10_000_000_000
MOST_MEANS = 2_000
"""Rows of means; then neighbours become one, so that a month of training is read and written as a day is."""

_MEANS = (
    *("tokens", "loss", "gradient_norm", "data_ns", "garbage_ns", "forward_ns", "backward_ns"),
    *("optimizer_ns", "wait_ns", "rank_tokens", "collections", "cpu_ns"),
)
_LAST = ("learning_rate", "allocated_bytes", "resident_bytes")


class StepLog:
    """Appends the steps of one rank; every line is in the file when `write` returns.

    A run that resumes may go on in the same file. Long files are shortened: early rows become rows of means,
    so that a rank writes less than 1 MB an hour. Raises OSError where it
    cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._lines = LineWriter(path)
        self._rows = _count_lines(path)
        self._unwritten: deque[StepRecord] = deque()
        self._problem = ""

    def write(self, record: StepRecord) -> None:
        """Append one step. JSON has no infinity: such values become null and are named in `not_finite`."""
        self._lines.write(_finite(record))
        self._rows += 1
        if self._rows >= MOST_ROWS:
            self._shorten()

    def keep(self, record: StepRecord) -> None:
        """As `write`, for a training that goes on when the disk is full: what cannot be written now is kept
        and written later, which is told once each time that it begins."""
        self._unwritten.append(_finite(record))  # it may become part of a mean before it is written
        if len(self._unwritten) > MAX_UNWRITTEN:
            self._unwritten = deque(shortened(list(self._unwritten)))
        before, self._problem = self._problem, self._write_kept()
        if self._problem and not before:
            _tell(f"{self._problem}; steps are kept for later")

    def _write_kept(self) -> str:
        """Why not all could be written; empty where they are."""
        try:
            while self._unwritten:
                self.write(self._unwritten[0])
                self._unwritten.popleft()
        except OSError as error:
            return f"{error.filename}: cannot be written: {error.strerror}"
        return ""

    def _shorten(self) -> None:
        path = self._lines.path
        try:
            rows = shortened(list(read_steps(path)))
            content = b"".join(map(encoded, rows))
            with whole_file(path, replace=True) as part:
                part.write_bytes(content)
        except (OSError, TraceError):
            self._rows -= MOST_ROWS // 4  # the file stays as it is, and grows until there is room
            return
        self._lines.close()
        self._lines = LineWriter(path)
        self._rows = sum(row.steps == 1 for row in rows)

    def close(self) -> None:
        """Close the file; safe to repeat. Tells what becomes of steps that the disk has no room for."""
        problem = self._write_kept()
        self._lines.close()
        if problem:
            _tell(self._fit_in(problem))

    def _fit_in(self, problem: str) -> str:
        """Put what is kept into the room that the file has, all steps in rows of means: a full disk takes
        other bytes in place of those that are there. What became of it."""
        path, kept = self._lines.path, list(self._unwritten)
        span = f"steps {kept[0].step - kept[0].steps + 1:,} to {kept[-1].step:,}"
        self._unwritten.clear()
        try:
            rows, room = _not_taken_back([*read_steps(path), *kept]), path.stat().st_size
            for size in (1 << n for n in range(1, 30)):
                content = b"".join(map(encoded, _grouped(rows, size, most_steps=size)))
                if len(content) <= room:
                    with path.open("r+b") as file:
                        file.write(content)
                        file.truncate()
                    return f"{path}: no room for {span}: all steps are now means of up to {size:,}"
        except (OSError, TraceError):
            pass  # told as what it was at first
        return f"{problem}; {span} are lost"


def _finite(record: StepRecord) -> StepRecord:
    lost = tuple(
        name
        for name in ("loss", "gradient_norm", "learning_rate")
        if (value := getattr(record, name)) is not None and not math.isfinite(value)
    )
    return msgspec.structs.replace(record, not_finite=lost, **dict.fromkeys(lost)) if lost else record


def _tell(problem: str) -> None:
    with contextlib.suppress(OSError):  # it may go to the same disk
        sys.stderr.write(f"perfdoc: {problem}\n")


def _count_lines(path: Path) -> int:
    """Of a regular file."""
    if not path.is_file():
        return 0
    with path.open("rb") as file:
        return sum(b'"steps"' not in line for line in file)


def shortened(rows: Sequence[StepRecord]) -> list[StepRecord]:
    """The rows with all but the last KEPT single steps in rows of means; steps that a restart took back go.

    A row of means holds no step of another kind (profiled, skipped) and none of another process.
    """
    rows = _not_taken_back(rows)
    early = rows[:-KEPT]
    found = _grouped(early, _size(early) if early else MIN_STEPS, most_steps=1)
    if len(found) > MOST_MEANS:
        size = MIN_STEPS
        while (found[-1].step - found[0].step) // size > MOST_MEANS // 2:
            size *= 2
        found = _grouped(found, size, most_steps=size)
    return found + rows[-KEPT:]


def _grouped(rows: Sequence[StepRecord], size: int, *, most_steps: int) -> list[StepRecord]:
    """Neighbours in one row, cut at multiples of a size; rows of more than most_steps stay as they are."""
    found: list[StepRecord] = []
    group: list[StepRecord] = []
    for row in rows:
        if group and not _belongs(group, row, size, most_steps):
            found.append(_mean(group))
            group = []
        group.append(row)
    if group:
        found.append(_mean(group))
    return found


def _not_taken_back(rows: Sequence[StepRecord]) -> list[StepRecord]:
    found: list[StepRecord] = []
    for row in rows:
        while found and found[-1].step >= row.step:
            found.pop()
        found.append(row)
    return found


def _belongs(group: Sequence[StepRecord], row: StepRecord, size: int, most_steps: int) -> bool:
    if row.began is not None or max(row.steps, group[0].steps) > most_steps:
        return False
    same_kind = (row.profiled, row.skipped) == (group[0].profiled, group[0].skipped)
    return same_kind and row.step // size == group[0].step // size


def _size(rows: Sequence[StepRecord]) -> int:
    """Steps of a row of means: a power of two, so that all ranks of a job cut at the same steps."""
    median = max(statistics.median(row.duration_ns for row in rows), 1)
    size = MIN_STEPS
    while size * median < MIN_NS:
        size *= 2
    return size


def _mean(group: Sequence[StepRecord]) -> StepRecord:
    if len(group) == 1:
        return group[0]
    steps = sum(row.steps for row in group)

    def mean(name: str) -> Any:
        values = [getattr(row, name) for row in group]
        if any(value is None for value in values):
            return None
        average = sum(value * row.steps for value, row in zip(values, group, strict=True)) / steps
        return average if name in ("loss", "gradient_norm") else round(average)

    last = group[-1]
    return msgspec.structs.replace(
        group[0],
        step=last.step,
        duration_ns=round(sum(row.duration_ns * row.steps for row in group) / steps),
        steps=steps,
        unseen_waits=max(row.unseen_waits for row in group),
        not_finite=tuple(sorted({name for row in group for name in row.not_finite})),
        **{name: mean(name) for name in _MEANS},
        **{name: getattr(last, name) for name in _LAST},
    )
