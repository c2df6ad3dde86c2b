"""steps/rank<N>.jsonl: one line for every step of a rank, profiled or not."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgspec

from perfdoc.profiling.json_lines import LineWriter, read_lines


class StepRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One training step of one rank."""

    step: int
    start_ns: int
    """Nanoseconds of UTC since 1970."""
    duration_ns: int
    """Time to the end of the step on a clock that never jumps; the device has finished where there is one."""
    tokens: int
    """Tokens of the step over all ranks."""
    loss: float | None = None
    """Mean over the step's tokens; null where this rank does not have it (not the last pipeline stage)."""
    gradient_norm: float | None = None
    """Before clipping, over the whole model; null where it was not computed."""
    learning_rate: float | None = None
    data_ns: int | None = None
    """Part of the duration spent waiting for batches."""
    garbage_ns: int | None = None
    """Part of the duration spent in Python's garbage collector."""
    profiled: bool = False
    skipped: bool = False
    """The optimizer left the parameters as they were (overflow in fp16)."""
    not_finite: tuple[str, ...] = ()
    """Names of the fields that are null because they were infinite or no number."""


class StepLog:
    """Appends the steps of one rank; every line is in the file when `write` returns.

    A run that resumes may go on in the same file. Raises OSError where it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self._lines = LineWriter(path)

    def write(self, record: StepRecord) -> None:
        """Append one step. JSON has no infinity: such values become null and are named in `not_finite`."""
        lost = tuple(
            name
            for name in ("loss", "gradient_norm", "learning_rate")
            if (value := getattr(record, name)) is not None and not math.isfinite(value)
        )
        if lost:
            record = msgspec.structs.replace(record, not_finite=lost, **dict.fromkeys(lost))
        self._lines.write(record)

    def close(self) -> None:
        """Close the file; safe to repeat."""
        self._lines.close()


def read_steps(path: Path) -> Iterator[StepRecord]:
    """The steps of a rank in the order of writing; a line torn by the end of its writer is left out.

    After a resume a step may occur twice: the later line counts. Raises CaptureError for a file that
    cannot be opened and for a whole line that is no step.
    """
    return read_lines(path, StepRecord)
