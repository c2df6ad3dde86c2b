"""Runs in time: those of one hour share the machine's state, those made in turn are told by their pairs.

Where the baseline's runs are of several sessions and the new ones of one, the new ones scatter less among
themselves than against the baseline, and their mean is not as sure as their number says. With S sessions in
the baseline, whose means have variance b, and k new runs of variance w in K sessions, the variance of the
difference is estimated as

    max(b - w/m, 0) / K + w/k + b/S

where m is the number of runs in a session of the baseline: what sessions differ by beyond their runs'
scatter is shared by the new runs of a session.

A machine that is quick or slow for minutes or hours makes runs alike that lie side by side. Runs of a
baseline were made at another time, and no figure of theirs says how that time differed. In a pair both runs
meet the same stretch, which falls out of their ratio. Where nothing changed, either run of a pair is as
likely the slower one, so that the ratios scatter evenly about 1 however runs scatter. Two things must hold of
a loss, as in `decision`: the mean of the ratios lies beyond what their scatter explains (Student's t), and
their signs are as clear (`significance`), which holds whatever the distribution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from perfdoc.compare.decision import MOST_RUNS, PRACTICAL_FRAC, Decision, Reasons, judged
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.significance import (
    CONFIDENCE,
    MIN_SPREAD_FRAC,
    MOST_BY_CHANCE,
    slower_in_pairs,
)
from perfdoc.compare.student import student_t
from perfdoc.results.figures import per_cent

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
        f"all {len(runs)} baseline runs began within one hour: later runs do not share their conditions, so "
        "false alarms are likelier than 1 %; record runs of other days as well, or make old runs in turn "
        "with the new ones (--beside)"
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
    baseline_ns: Sequence[float],
    new: Sequence[RunFigures],
    new_ns: Sequence[float],
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


MIN_PAIRS = 3


def in_turn(old: Sequence[RunFigures], new: Sequence[RunFigures]) -> list[tuple[RunFigures, RunFigures]]:
    """Pairs of an old and a new run, neighbours in time. Raises ValueError where they are not in turn.

    Runs that do not say when they began (logs) are paired in the order in which they are given.
    """
    if len(old) != len(new) or len(new) < MIN_PAIRS:
        raise ValueError(
            f"{len(new)} new runs against {len(old)}: give equal numbers, {MIN_PAIRS} or more, made in turn."
        )
    times = [began(run) for run in (*old, *new)]
    known = [time for time in times if time is not None]
    if len(known) < len(times):
        return list(zip(old, new, strict=True))
    sides = [(run, False) for run in old] + [(run, True) for run in new]
    ordered = [side for _, side in sorted(zip(known, sides, strict=True), key=lambda timed: timed[0])]
    pairs = []
    for (one, one_new), (two, two_new) in zip(ordered[::2], ordered[1::2], strict=True):
        if one_new == two_new:
            raise ValueError(
                f"{one.source} and {two.source} are consecutive runs of one side: for pairs, take turns: "
                "old, new, new, old, and so on."
            )
        pairs.append((two, one) if one_new else (one, two))
    return pairs


def same_place(pairs: Sequence[tuple[RunFigures, RunFigures]]) -> list[str]:
    """A note where the old run is the first one of every pair, or the new one is: more than code differs.

    pairs: (old, new). Nothing where it is not known when runs began.
    """
    known = [(a, b) for old, new in pairs if (a := began(old)) is not None and (b := began(new)) is not None]
    if len(known) < len(pairs):
        return []
    for first, earlier in (("old", [a < b for a, b in known]), ("new", [b < a for a, b in known])):
        if all(earlier):
            return [
                f"the {first} run comes first in every pair, so effects of the order count as a change; take "
                "turns, old, new, new, old, and so on"
            ]
    return []


def decide_pairs(
    pairs_ns: Sequence[tuple[float, float]],
    practical_frac: float = PRACTICAL_FRAC,
    *,
    chance: float = MOST_BY_CHANCE,
) -> Decision:
    """Compare pairs (old, new) of step times; two pairs or more. chance: of equal runs to fail.

    The mean of the logarithms of n ratios, of standard deviation s, is beyond noise above t(0.99, n - 1) * s
    / sqrt(n); of a ratio no less than sqrt(2) * 0.2 % is believed.

    >>> decide_pairs([(100, 105), (140, 147), (100, 105)]).verdict
    <Verdict.FAIL: 'fail'>
    """
    n = len(pairs_ns)
    ratios = [math.log(new / old) for old, new in pairs_ns]
    spread = statistics.stdev(ratios)
    slower = math.expm1(statistics.fmean(ratios))
    noise = _noise_frac(spread, n, chance)

    def noisy(bearable: float) -> str:
        enough = next(
            (r for r in range(n + 1, MOST_RUNS + 1) if _noise_frac(spread, r, MOST_BY_CHANCE) <= bearable),
            None,
        )
        more = f"{enough} pairs would do" if enough else "make longer runs, or measure on a quieter machine"
        return f"scatter of pairs: {per_cent(noise)} may be noise; {more}"

    return judged(
        slower_frac=slower,
        noise_frac=noise,
        one_test_noise_frac=_noise_frac(spread, n, MOST_BY_CHANCE),
        practical_frac=practical_frac,
        spread_frac=spread,
        baseline_runs=n,
        new_runs=n,
        in_order=lambda: slower_in_pairs(ratios if slower > 0 else [-r for r in ratios], chance),
        reasons=Reasons(
            slower="slower in pairs by more than noise and the practical limit",
            faster="faster in pairs by more than noise",
            disagree="too few pairs agree on the slower side; add pairs",
            noisy=noisy,
            within="within noise and the practical limit, in pairs",
        ),
    )


def _noise_frac(spread: float, pairs: int, chance: float) -> float:
    believed = max(spread, math.sqrt(2) * MIN_SPREAD_FRAC)
    return math.expm1(min(student_t(pairs - 1, 1 - chance) * believed / math.sqrt(pairs), 100.0))
