"""Is a set of runs slower than a baseline? The run is the unit, not the step.

Steps of one run share its clocks, its temperature and its place, so they say little about the next run. Two
things must hold of a loss: the mean of the new runs lies beyond what their scatter explains (`noise`), and
the new runs are the slower ones by their order as well (`order`), which holds however runs scatter.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from perfdoc.compare.significance import MOST_BY_CHANCE, noise_frac, slower_by_order, spread_of
from perfdoc.results.figures import per_cent

PRACTICAL_FRAC = 0.02
"""A smaller loss is not worth stopping a change for."""
LOW_HISTORY_FRAC = 0.05
"""The limit where the baseline has too few runs for a spread."""
MIN_HISTORY = 3
MOST_RUNS = 20
"""More on a side are not asked for, nor kept."""
MAX_NOISE_FRAC = 0.03
"""More noise than this, and than the practical limit, hides what the gate is there to see. It is that of one
test: sharing the chance of a false alarm among several makes the limit wider, not the machine noisier."""


class Verdict(StrEnum):
    """What came out."""

    PASS = "pass"
    IMPROVED = "improved"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A verdict with the figures that it rests on. Fractions are of the baseline's mean step time."""

    verdict: Verdict
    slower_frac: float
    """Mean of the new runs by that of the baseline, less 1: positive is slower."""
    limit_frac: float
    noise_frac: float | None
    """What noise alone makes in 1 of 100 cases; None with too few baseline runs."""
    spread_frac: float | None
    """Standard deviation between baseline runs, as seen."""
    baseline_runs: int
    new_runs: int
    reason: str


def decide(
    baseline_ns: Sequence[float],
    new_ns: Sequence[float],
    practical_frac: float = PRACTICAL_FRAC,
    *,
    shared_noise_frac: float = 0.0,
    chance: float = MOST_BY_CHANCE,
    one_test_shared_frac: float | None = None,
) -> Decision:
    """Compare a figure of runs, such as their medians; both sequences are non-empty.

    shared_noise_frac: no less noise than this, which runs that share a session make (`session`). chance: of
    equal runs to fail. one_test_shared_frac: shared_noise_frac with the chance of a single test, by which
    too much noise is told (MAX_NOISE_FRAC), where that is another.

    >>> decide([100, 101, 99, 100, 100], [104]).verdict
    <Verdict.FAIL: 'fail'>
    """
    n, k = len(baseline_ns), len(new_ns)
    base = statistics.fmean(baseline_ns)
    slower = (statistics.fmean(new_ns) - base) / base
    if n < MIN_HISTORY:
        limit = max(practical_frac, LOW_HISTORY_FRAC)
        verdict = Verdict.FAIL if slower > limit else Verdict.IMPROVED if slower < -limit else Verdict.PASS
        runs = "1 baseline run shows" if n == 1 else f"{n} baseline runs show"
        return Decision(
            verdict=verdict,
            slower_frac=slower,
            limit_frac=limit,
            noise_frac=None,
            spread_frac=None,
            baseline_runs=n,
            new_runs=k,
            reason=f"low history: {runs} no spread, so the limit is {per_cent(limit, 0)}; "
            f"record {MIN_HISTORY} or more",
        )
    spread, new_spread = spread_of(baseline_ns, base), spread_of(new_ns, base)
    own_noise = noise_frac(spread, n - 1, n, k, new_spread_frac=new_spread, confidence=1 - chance)
    noise = max(own_noise, shared_noise_frac)
    one_test = max(
        noise_frac(spread, n - 1, n, k, new_spread_frac=new_spread),
        shared_noise_frac if one_test_shared_frac is None else one_test_shared_frac,
    )

    def noisy(bearable: float) -> str:
        remedy = "make new runs in other hours too, or old ones in turn with them (--beside)"
        if shared_noise_frac <= own_noise:
            remedy = _remedy(n, max(spread, new_spread), k, bearable)
        return f"scatter hides {per_cent(practical_frac)}: {per_cent(noise)} may be noise; {remedy}"

    return judged(
        slower_frac=slower,
        noise_frac=noise,
        one_test_noise_frac=one_test,
        practical_frac=practical_frac,
        spread_frac=spread,
        baseline_runs=n,
        new_runs=k,
        in_order=lambda: (
            slower_by_order(baseline_ns, new_ns, chance)
            if slower > 0
            else slower_by_order(new_ns, baseline_ns, chance)
        ),
        reasons=Reasons(
            slower="slower by more than noise and the practical limit",
            faster="faster by more than noise",
            disagree="runs of both sides overlap, as when some met a slow period; add new runs",
            noisy=noisy,
            within="within noise and the practical limit",
        ),
    )


@dataclass(frozen=True, kw_only=True)
class Reasons:
    """What is said of each way that a comparison may come out."""

    slower: str
    faster: str
    disagree: str
    """The mean is beyond the limit, and the order of the runs does not agree."""
    noisy: Callable[[float], str]
    """Given the noise that would be bearable."""
    within: str


def judged(
    *,
    slower_frac: float,
    noise_frac: float,
    one_test_noise_frac: float,
    practical_frac: float,
    spread_frac: float,
    baseline_runs: int,
    new_runs: int,
    in_order: Callable[[], bool],
    reasons: Reasons,
) -> Decision:
    """The verdict on a difference: beyond noise and the practical limit, and by the order of the runs too.

    one_test_noise_frac: the noise with the chance of a single test, which says whether the machine is quiet
    enough; how many tests are made says nothing of that.
    in_order: whether the order agrees with the sign of slower_frac; asked only where the difference is beyond
    the limit.
    """
    limit, bearable = max(practical_frac, noise_frac), max(MAX_NOISE_FRAC, practical_frac)
    if abs(slower_frac) > limit:
        if not in_order():
            verdict, reason = Verdict.INCONCLUSIVE, reasons.disagree
        elif slower_frac > 0:
            verdict, reason = Verdict.FAIL, reasons.slower
        else:
            verdict, reason = Verdict.IMPROVED, reasons.faster
    elif one_test_noise_frac > bearable:
        verdict, reason = Verdict.INCONCLUSIVE, reasons.noisy(bearable)
    else:
        verdict, reason = Verdict.PASS, reasons.within
    return Decision(
        verdict=verdict,
        slower_frac=slower_frac,
        limit_frac=limit,
        noise_frac=noise_frac,
        spread_frac=spread_frac,
        baseline_runs=baseline_runs,
        new_runs=new_runs,
        reason=reason,
    )


def _remedy(n: int, spread: float, k: int, bearable: float) -> str:
    """How many new runs would do at this spread, or how many on both sides; up to MOST_RUNS."""

    def noise(baseline_runs: int, new_runs: int) -> float:
        return noise_frac(spread, baseline_runs - 1, baseline_runs, new_runs)

    ways = (
        ("new runs", ((r, noise(n, r)) for r in range(k + 1, MOST_RUNS + 1))),
        ("runs on either side", ((r, noise(r, r)) for r in range(max(n, k) + 1, MOST_RUNS + 1))),
    )
    enough = [(next((r for r, of in tried if of <= bearable), None), what) for what, tried in ways]
    said = [f"{runs} {what}" for runs, what in enough if runs is not None]
    return f"{' or '.join(said)} would do, or a quieter machine" if said else "measure on a quieter machine"
