"""What the gate knows of one run, and how the steps that count are chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from perfdoc.analyzers.steps.step_times_figures import MIN_WARMUP_STEPS, warmup_steps

MIN_STEADY_STEPS = 5
"""Fewer steps after the warm-up have no median worth comparing."""

Positive = Annotated[float, msgspec.Meta(gt=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class RunFigures(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """One run, as a baseline keeps it. Unknown is null."""

    source: str
    """Name of the run directory or of the log, without its folder."""
    utc: str | None = None
    """When it began."""
    commit: str | None = None
    median_step_ns: Annotated[int, msgspec.Meta(gt=0)]
    """Of the steady, unprofiled steps."""
    mad_step_ns: Count
    """Median absolute deviation of the same."""
    steps: Count
    """How many they are; lines of a log that stand for several steps count once."""
    warmup_steps: Count
    """First steps that were left out, by the rule of `warmup_steps` in perfdoc.analyzers.steps."""
    mfu_frac: float | None = None
    tokens_per_s_per_gpu: float | None = None
    tflops_per_gpu: float | None = None
    """As the trainer of a log counts them."""
    peak_memory_bytes: int | None = None
    """Most that PyTorch reserved on any GPU; on a CPU the most that any rank had resident."""
    exposed_comm_frac: float | None = None
    """Of the profiled steps, mean over ranks."""
    parts_ns: dict[str, int] = {}
    """Where a step goes, mean over ranks: leaves of the ledger of the profiled steps."""


class TooFewStepsError(ValueError):
    """A run without enough steps."""


def steady(times_ns: Sequence[int]) -> dict[str, Any]:
    """The fields of RunFigures that follow from the unprofiled step times, in their order.

    Raises TooFewStepsError where the warm-up cannot be told, or little is left after it.

    >>> steady([90, 40] + [10] * 8)["median_step_ns"]
    10
    """
    times = np.asarray(times_ns, np.int64)
    warmup = warmup_steps(times)
    if warmup is None or len(times) - warmup < MIN_STEADY_STEPS:
        need = max(MIN_WARMUP_STEPS, MIN_STEADY_STEPS + (warmup or 0))
        raise TooFewStepsError(f"{len(times)} unprofiled steps; {need} are the least")
    counted = times[warmup:]
    median = float(np.median(counted))
    return {
        "median_step_ns": round(median),
        "mad_step_ns": round(float(np.median(np.abs(counted - median)))),
        "steps": len(counted),
        "warmup_steps": warmup,
    }
