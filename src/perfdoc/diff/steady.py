"""Steps of a run's log that its speed is judged by."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.steps.step_times_figures import warmup_steps
from perfdoc.analyzers.steps.step_times_log import of_the_job, read_logged_steps

MAX_STEPS = 1000
"""Of the last steps; more of them add nothing."""


def steady_steps_ns(run_directory: Path | None) -> I64:
    """Steps of the job without warm-up, profiled steps and the one after them; empty where none are known.

    Raises TraceError for a log that cannot be read.
    """
    job = of_the_job(read_logged_steps(run_directory))
    if job is None:
        return np.empty(0, np.int64)
    found = job.duration_ns[job.unprofiled]
    warmup = warmup_steps(found)
    return np.empty(0, np.int64) if warmup is None else found[warmup:][-MAX_STEPS:]
