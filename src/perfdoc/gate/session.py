"""Runs of one hour are no independent samples: they share the machine's state of that hour.

Where the baseline's runs are of several sessions and the new ones of one, the new ones scatter less among
themselves than against the baseline, and their mean is not as sure as their number says. With S sessions in
the baseline, whose means have variance b, and k new runs of variance w in K sessions, the variance of the
difference is estimated as

    max(b - w/m, 0) / K + w/k + b/S

where m is the number of runs in a session of the baseline: what sessions differ by beyond their runs'
scatter is shared by the new runs of a session.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from perfdoc.gate.figures import RunFigures
from perfdoc.gate.noise import CONFIDENCE, MIN_SPREAD_FRAC, student_t

SESSION = timedelta(hours=1)
MIN_SESSIONS = 3
"""Fewer show no scatter of sessions."""


def together(runs: Sequence[RunFigures]) -> list[str]:
    """A note where all runs began within an hour of one another; nothing where a time is not known.

    They share the machine's state of that hour, which the next runs do not: their scatter is too small.
    """
    times = _known(runs)
    if len(times) < 2 or max(times) - min(times) > SESSION:
        return []
    return [
        f"all {len(runs)} baseline runs began within an hour of one another: they share conditions that "
        "later runs do not, so false alarms are likelier than 1 %; record runs of other days as well, or "
        "make old runs beside the new ones (--beside)"
    ]


def sessions(runs: Sequence[RunFigures]) -> list[int]:
    """The session of each run, from 0; empty where a time is not known.

    A session ends where no run began for an hour.
    """
    times = _known(runs)
    number, found, before = 0, [0] * len(times), None
    for i in sorted(range(len(times)), key=lambda i: times[i]):
        number += before is not None and times[i] - before > SESSION
        found[i], before = number, times[i]
    return found


def shared_noise_frac(
    baseline: Sequence[RunFigures],
    baseline_ns: Sequence[int],
    new: Sequence[RunFigures],
    new_ns: Sequence[int],
    *,
    of_ns: float | None = None,
    confidence: float = CONFIDENCE,
) -> float:
    """What may be noise where the runs of a session share its state, as a fraction of `of_ns`.

    of_ns: the baseline's mean where it is not given.

    0 where that is not known: times are not, or the baseline is of fewer than MIN_SESSIONS sessions, or has a
    session in common with the new runs.

    Worked: baseline runs of five days have s = 1 %, three new ones of one hour 0.2 %. Of the variance of 1
    (per cent squared) 0.96 is the day's; 0.96 + 0.04/3 + 1/5 = 1.173, and 3.747 * sqrt(1.173) % = 4.06 %,
    where independent runs would make 2.74 %.
    """
    n = len(baseline)
    of = sessions([*baseline, *new])
    old, now = set(of[:n]), set(of[n:])
    if len(old) < MIN_SESSIONS or old & now:
        return 0.0
    whole = of_ns or statistics.fmean(baseline_ns)
    shares: dict[int, list[float]] = {}
    for ns, session in zip(baseline_ns, of[:n], strict=True):
        shares.setdefault(session, []).append(ns / whole)
    means = [statistics.fmean(values) for values in shares.values()]
    between = max(statistics.variance(means), MIN_SPREAD_FRAC**2)
    within = 0.0 if len(new_ns) < 2 else min(statistics.variance(ns / whole for ns in new_ns), between)
    shared = max(between - within * len(old) / n, 0.0)
    variance = shared / len(now) + within / len(new_ns) + between / len(old)
    return student_t(len(old) - 1, confidence) * math.sqrt(variance)


def began(run: RunFigures) -> datetime | None:
    """When a run began; None where it does not say, or not in a way that is understood."""
    try:
        time = datetime.fromisoformat(run.utc or "")
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _known(runs: Sequence[RunFigures]) -> list[datetime]:
    """When each run began; empty where that is not known of all."""
    times = [time for run in runs if (time := began(run)) is not None]
    return times if len(times) == len(runs) else []
