"""New runs against runs made beside them in time, in turn: old, new, new, old, old, new, …

A machine that is quick or slow for minutes or hours makes runs alike that lie side by side. Runs of a
baseline were made at another time, and no figure of theirs says how that time differed. In a pair both runs
meet the same stretch, which falls out of their ratio. Where nothing changed, either run of a pair is as
likely the slower one, so that the ratios scatter evenly about 1 however runs scatter. Two things must hold of
a loss, as in `decision`: the mean of the ratios lies beyond what their scatter explains (Student's t), and
their signs are as clear (`order`), which holds whatever the distribution.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from perfdoc.gate.decision import MOST_RUNS, PRACTICAL_FRAC, Decision, Reasons, judged
from perfdoc.gate.figures import RunFigures
from perfdoc.gate.noise import MIN_SPREAD_FRAC, student_t
from perfdoc.gate.order import slower_in_pairs
from perfdoc.gate.session import began

MIN_PAIRS = 3


def in_turn(old: Sequence[RunFigures], new: Sequence[RunFigures]) -> list[tuple[RunFigures, RunFigures]]:
    """Pairs of an old and a new run, neighbours in time. Raises ValueError where they are not in turn.

    Runs that do not say when they began (logs) are paired in the order in which they are given.
    """
    if len(old) != len(new) or len(new) < MIN_PAIRS:
        raise ValueError(
            f"{len(new)} new runs beside {len(old)}: give as many of both, {MIN_PAIRS} or more, made in turn."
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
                f"{one.source} and {two.source} began one after the other and are of one side: make runs "
                "that are to be compared in pairs in turn, old, new, new, old, and so on."
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
                f"the {first} run is the first one of every pair: what being first does to a run counts as a "
                "change; take turns, old, new, new, old, and so on"
            ]
    return []


def decide_pairs(pairs_ns: Sequence[tuple[int, int]], practical_frac: float = PRACTICAL_FRAC) -> Decision:
    """Compare pairs (old, new) of step times; two pairs or more.

    The mean of the logarithms of n ratios, of standard deviation s, is beyond noise above t(0.99, n - 1) * s
    / sqrt(n); of a ratio no less than sqrt(2) * 0.2 % is believed.

    >>> decide_pairs([(100, 105), (140, 147), (100, 105)]).verdict
    <Verdict.FAIL: 'fail'>
    """
    n = len(pairs_ns)
    ratios = [math.log(new / old) for old, new in pairs_ns]
    spread = statistics.stdev(ratios)
    slower = math.expm1(statistics.fmean(ratios))
    noise = _noise_frac(spread, n)

    def noisy(bearable: float) -> str:
        enough = next((r for r in range(n + 1, MOST_RUNS + 1) if _noise_frac(spread, r) <= bearable), None)
        more = f"{enough} pairs would do" if enough else "make longer runs, or measure on a quieter machine"
        return f"pairs scatter so much that {noise:.1%} may be noise; {more}"

    return judged(
        slower_frac=slower,
        noise_frac=noise,
        practical_frac=practical_frac,
        spread_frac=spread,
        baseline_runs=n,
        new_runs=n,
        in_order=lambda: slower_in_pairs(ratios if slower > 0 else [-r for r in ratios]),
        reasons=Reasons(
            slower="slower in pairs than noise and the practical limit allow",
            faster="faster in pairs than noise explains",
            disagree="too few of the pairs agree on which side is the slower one; add pairs",
            noisy=noisy,
            within="within noise and the practical limit, in pairs",
        ),
    )


def _noise_frac(spread: float, pairs: int) -> float:
    believed = max(spread, math.sqrt(2) * MIN_SPREAD_FRAC)
    return math.expm1(min(student_t(pairs - 1) * believed / math.sqrt(pairs), 100.0))
