"""When runs were made: sessions, and pairs of neighbours in time.

Runs of one hour share the machine's state, so new runs of one session scatter less among themselves than
against a baseline of several. In a pair of runs made one after the other both meet the same state, which
falls out of their ratio: no stretch of a machine can be taken for a change.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from perfdoc.compare.figures import RunFigures

SESSION = timedelta(hours=1)
MIN_SESSIONS = 3
"""Fewer show no scatter of sessions."""
MIN_PAIRS = 3


def note_one_session(runs: Sequence[RunFigures]) -> list[str]:
    """A note where all runs began within an hour of one another; nothing where a time is not known."""
    times = _known_times(runs)
    if len(times) < 2 or max(times) - min(times) > SESSION:
        return []
    return [
        f"all {len(runs)} baseline runs began within one hour: later runs do not share their conditions, so "
        "false alarms are likelier than 1 %; record runs of other days as well, or make old runs in turn "
        "with the new ones (--beside)"
    ]


def number_sessions(runs: Sequence[RunFigures]) -> list[int]:
    """The session of each run, from 0; empty where a time is not known.

    A session ends where no run began for an hour.
    """
    times = _known_times(runs)
    number, numbers, before = 0, [0] * len(times), None
    for i in sorted(range(len(times)), key=lambda i: times[i]):
        number += before is not None and times[i] - before > SESSION
        numbers[i], before = number, times[i]
    return numbers


def scatter_of_sessions(
    old: Sequence[RunFigures], before: Sequence[float], new: Sequence[RunFigures], after: Sequence[float]
) -> tuple[float, int] | None:
    """Standard deviation and degrees of freedom of a figure of runs, as sessions make it.

    With S sessions of m runs each in the baseline, whose means have variance b, and k new runs of variance w
    in K sessions, the difference of the means has the variance

        max(b - w/m, 0) / K + w/k + b/S

    since what sessions differ by beyond their runs' scatter is shared by the new runs of a session; the
    deviation is that of runs which make as much. None where a time is not known, or the old runs are of fewer
    than MIN_SESSIONS sessions or have one in common with the new ones.

    Worked: baseline runs of five days have s = 1 %, three new ones of one hour 0.2 %. Of the variance of 1
    (per cent squared) 0.96 is the day's; 0.96 + 0.04/3 + 1/5 = 1.173, and 3.747 * sqrt(1.173) % = 4.06 %,
    where independent runs would make 2.74 %.
    """
    n, k = len(old), len(new)
    sessions = number_sessions([*old, *new])
    then, now = set(sessions[:n]), set(sessions[n:])
    if len(then) < MIN_SESSIONS or then & now:
        return None
    means = [
        statistics.fmean(v for v, of in zip(before, sessions[:n], strict=True) if of == session)
        for session in then
    ]
    between = statistics.variance(means)
    within = min(statistics.variance(after), between) if k > 1 else 0.0
    shared = max(between - within * len(then) / n, 0.0)
    variance = shared / len(now) + within / k + between / len(then)
    return math.sqrt(variance / (1 / n + 1 / k)), len(then) - 1


def read_time(run: RunFigures) -> datetime | None:
    """When a run began; None where it does not say, or not in a way that is understood."""
    try:
        time = datetime.fromisoformat(run.utc or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _known_times(runs: Sequence[RunFigures]) -> list[datetime]:
    """When each run began; empty where that is not known of all."""
    times = [time for run in runs if (time := read_time(run)) is not None]
    return times if len(times) == len(runs) else []


def pair_runs(old: Sequence[RunFigures], new: Sequence[RunFigures]) -> list[tuple[RunFigures, RunFigures]]:
    """Pairs of an old and a new run, neighbours in time. Raises ValueError where they are not in turn.

    Runs that do not say when they began (logs) are paired in the order in which they are given.
    """
    if len(old) != len(new) or len(new) < MIN_PAIRS:
        raise ValueError(
            f"{len(new)} new runs against {len(old)}: give equal numbers, {MIN_PAIRS} or more, made in turn."
        )
    sides = [(run, False) for run in old] + [(run, True) for run in new]
    times = _known_times([run for run, _ in sides])
    if not times:
        return list(zip(old, new, strict=True))
    ordered = [sides[i] for i in sorted(range(len(sides)), key=lambda i: times[i])]
    pairs = []
    for (one, one_new), (two, two_new) in zip(ordered[::2], ordered[1::2], strict=True):
        if one_new == two_new:
            raise ValueError(
                f"{one.source} and {two.source} are consecutive runs of one side: for pairs, take turns: "
                "old, new, new, old, and so on."
            )
        pairs.append((two, one) if one_new else (one, two))
    return pairs


def note_same_place(pairs: Sequence[tuple[RunFigures, RunFigures]]) -> list[str]:
    """A note where the old run is the first one of every pair, or the new one is: more than code differs.

    pairs: (old, new). Nothing where it is not known when runs began.
    """
    times = _known_times([run for pair in pairs for run in pair])
    first_is_old = [a < b for a, b in zip(times[::2], times[1::2], strict=True)]
    for first, always in (("old", all(first_is_old)), ("new", not any(first_is_old))):
        if times and always:
            return [
                f"the {first} run comes first in every pair, so effects of the order count as a change; take "
                "turns, old, new, new, old, and so on"
            ]
    return []
