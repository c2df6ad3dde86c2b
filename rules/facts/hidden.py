"""The hidden share of a dimension's communication, and the level of a finding that follows."""

from __future__ import annotations

from perfdoc.results.replay import Gain
from perfdoc.rules.engine.case import Case
from perfdoc.rules.engine.gain import predicted
from perfdoc.rules.engine.rule import Level

QUEUES = "without_queueing_tp"
"""The replay in which no TP collective is queued behind a kernel launched after it."""
LITTLE_HIDDEN_FRAC = 0.10
"""With a smaller hidden share, communication counts as not overlapped."""


def time_ns(case: Case, dimension: str) -> int:
    """Communication of a dimension, rows of all ranks together; rows that overlap count twice."""
    return sum(
        row.total_ns for rank in case.ranks for row in rank.communication if row.dimension == dimension
    )


def hidden_frac(case: Case, dimension: str) -> float | None:
    """Hidden share of a dimension's communication; None without any."""
    total = time_ns(case, dimension)
    rows = [row for rank in case.ranks for row in rank.communication if row.dimension == dimension]
    return sum(row.hidden_ns for row in rows) / total if total else None


def level_of(case: Case, dimension: str, *, switched_off: bool) -> Level:
    """A problem if the overlap is known to be off, or hardly anything is hidden; else information: the
    exposed rest may be what no overlap reaches."""
    hidden = hidden_frac(case, dimension)
    return "problem" if switched_off or (hidden or 0.0) < LITTLE_HIDDEN_FRAC else "information"


def surely_saved(case: Case, key: str) -> Gain | None:
    """The predicted gain of a change, if even the lower end of its band is positive."""
    gain = predicted(case, key)
    return gain if gain is not None and gain.is_predicted and (gain.low_ms or 0.0) > 0 else None


def queues(case: Case) -> bool:
    """Whether the replay found TP collectives queued behind kernels launched after them."""
    return surely_saved(case, QUEUES) is not None
