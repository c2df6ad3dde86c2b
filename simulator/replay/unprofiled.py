"""A profiled window as it would be without the profiler, as far as the run's step log tells.

Collections of garbage look at every object that is alive, the profiler's records among them: of a run of the
trainer they took 374 ms under the profiler and 194 ms without. What removing them saves is the latter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.steps.step_times_log import LoggedSteps
from perfdoc.simulator.engine import schedule
from perfdoc.simulator.replay.edits.host_time import without_host_time
from perfdoc.simulator.replay.rebuilt import Rebuilt


@dataclass(frozen=True, kw_only=True)
class Unprofiled:
    """A window to predict from."""

    rebuilt: Rebuilt
    length_ns: int
    """Of its replay."""
    assumption: str
    """What was changed; empty where nothing was."""


def gc_keep_frac(logs: Mapping[int, LoggedSteps]) -> float | None:
    """Length of a collection without the profiler over that with it, medians over steps that collect; 1 at
    the most. None where the log shows neither or only one kind."""
    profiled, free = (
        np.concatenate(
            [log.garbage_ns[(log.garbage_ns > 0) & getattr(log, which)] for log in logs.values()]
            or [np.empty(0, np.int64)]
        )
        for which in ("profiled", "unprofiled")
    )
    if not len(profiled) or not len(free):
        return None
    return min(float(np.median(free) / np.median(profiled)), 1.0)


def as_unprofiled(rebuilt: Rebuilt, keep_frac: float | None) -> Unprofiled | None:
    """The window with collections of that share of their length; None where there is nothing to change."""
    if keep_frac is None or not any(len(r.host["gc"]) for r in rebuilt.ranks):
        return None
    made = without_host_time("gc", keep_frac=keep_frac).apply(rebuilt)
    return Unprofiled(
        rebuilt=made,
        length_ns=made.span(schedule(made.graph).end_ns),
        assumption=f"collections last {keep_frac:.0%} of what they do under the profiler, says the step log",
    )
