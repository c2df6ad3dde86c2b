"""What the last step of a window lacks: it ends with its last work, the others where the next one's begins.

A job that waits for data at each step's start shows that wait between steps: one fewer than steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.intervals import Intervals
from perfdoc.results.figures import duration, per_cent
from perfdoc.results.ranks import Window
from perfdoc.traces import Note

_FEWEST_STEPS = 3
_SHORT_FRAC = 0.02
"""Of the mean step: what the last one lacks, shared out over all of them. Less is no matter."""


def lacking_ns(window: Window, busy: Intervals) -> int:
    """The idle time at the end of the other steps, median; 0 where it hardly counts, or steps are few."""
    if window.kind != "steps" or window.steps < _FEWEST_STEPS or not len(busy.start_ns):
        return 0
    others = window.step_list[:-1]
    ends = np.array([step.end_ns for step in others], np.int64)
    last = np.maximum(np.searchsorted(busy.start_ns, ends, "left") - 1, 0)
    idle = float(np.median(np.maximum(ends - np.minimum(busy.end_ns[last], ends), 0)))
    usual = float(np.median([step.duration_ns for step in others]))
    return round(idle) if idle > _SHORT_FRAC * usual * window.steps else 0


def last_step_notes(found: Sequence[tuple[Window, int]]) -> list[Note]:
    """For windows, and what the last step of each lacks."""
    lacking = [(window, ns) for window, ns in found if ns]
    if not lacking:
        return []
    window, ns = max(lacking, key=lambda each: (each[1], each[0].start_ns))
    whole = window.step_list[:-1]
    mean = sum(step.duration_ns for step in whole) / len(whole)
    return [
        Note(
            code="last-step-short",
            message=f"{duration(ns)} of idle time between steps ({per_cent(ns / mean)} of one, median) are "
            f"seen {len(whole):,} times in {window.steps:,} steps: the last step ends with its last work. "
            f"The other steps take {duration(round(mean))} in the mean.",
            remedy="Capture more steps: then it hardly counts.",
        )
    ]
