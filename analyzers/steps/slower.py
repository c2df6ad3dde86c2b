"""Is B slower than A? One method for the gate, `diff` and `verify`.

Both sides are samples that do not depend on one another: runs, pairs of runs made in turn, or steps. Two
things must hold of a loss.

Noise: where nothing changed and samples scatter normally, the change stays with probability 1 - c below

    t(1 - c, n + k - 2) * s * sqrt(1/n + 1/k)

(Student's t) for n and k samples whose scatter about their own means is s, of both sides together. Of n pairs
the logarithms of the ratios are the samples: t(1 - c, n - 1) * s / sqrt(n). Against a baseline the scatter of
its runs alone, with t(1 - c, n - 1), and that of its sessions count where they make more noise: new runs that
agree by chance, all of them from one stretch of a machine, can widen the limit and never narrow it.

Order: where nothing changed and samples are exchangeable, every choice of k places among the n + k ranks is
as likely for the new samples, and every choice of signs for the ranked changes of pairs, whatever the
distribution. An order as clear as the one seen must come by chance in a share c of all choices or less (the
tests of Mann and Whitney and of Wilcoxon, counted exactly).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum

import numpy as np

from perfdoc.analyzers.steps.scatter import student_t
from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent

CHANCE = 0.01
"""Of equal samples to be called slower."""
PRACTICAL_FRAC = 0.02
"""A smaller loss is not worth stopping a change for."""
LOW_HISTORY_FRAC = 0.05
"""The limit where the baseline has too few runs for a spread."""
MIN_HISTORY = 3
MOST_RUNS = 20
"""More on a side are not asked for, nor kept."""
MAX_NOISE_FRAC = 0.03
"""More noise of a single test than this, and than the practical limit, hides what the gate is to see."""
MIN_SPREAD_FRAC = 0.002
"""Few runs may agree by chance: no less spread than this is believed of them."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Some values of one figure."""

    mean: float
    deviation: float
    """Standard deviation; 0 of a single value."""
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Sample:
        """Of one value or more."""
        mean = math.fsum(values) / len(values)
        squares = math.fsum((x - mean) ** 2 for x in values)
        return cls(mean=mean, deviation=math.sqrt(squares / max(len(values) - 1, 1)), count=len(values))


@dataclass(frozen=True, kw_only=True)
class Change:
    """How a figure changed. Fractions are of its mean before; positive is more."""

    before: float
    after: float
    slower_frac: float
    scatter: Sequence[tuple[float, int]]
    """Standard deviations, as fractions, and their degrees of freedom: that which makes most noise counts."""
    reach: float
    """What a spread of 1 makes of the change: sqrt(1/n + 1/k)."""
    is_ratio: bool = False
    """Whether the spread is one of logarithms."""

    def noise_frac(self, chance: float = CHANCE, least_spread_frac: float = MIN_SPREAD_FRAC) -> float:
        """What scatter makes of no change in a share `chance` of cases; at least one degree of freedom."""
        least = least_spread_frac * (math.sqrt(2) if self.is_ratio else 1)
        spreads = (student_t(freedom, 1 - chance) * max(spread, least) for spread, freedom in self.scatter)
        noise = max(spreads) * self.reach
        return math.expm1(min(noise, 100.0)) if self.is_ratio else noise

    def bounds_frac(
        self, confidence: float = 1 - CHANCE, least_spread_frac: float = 0.0
    ) -> tuple[float, float]:
        """Where the change lies with so much confidence, by the scatter seen."""
        noise = self.noise_frac((1 - confidence) / 2, least_spread_frac)
        if self.is_ratio:
            return (1 + self.slower_frac) / (1 + noise) - 1, (1 + self.slower_frac) * (1 + noise) - 1
        return self.slower_frac - noise, self.slower_frac + noise


def change_between(
    before: Sample,
    after: Sample,
    *,
    of: float | None = None,
    scatter_of: Sample | None = None,
    also_alone: bool = False,
) -> Change:
    """Of two sides. of: what fractions are of, the mean before unless given. scatter_of: by whose scatter
    `before` is judged, where not by its own. also_alone: of a baseline, whose scatter alone counts as well;
    else that of each side for its own mean does, as the side of fewer samples may scatter more."""
    whole, scatter = before.mean if of is None else of, scatter_of or before
    freedom = scatter.count + after.count - 2
    squares = sum((s.count - 1) * s.deviation**2 for s in (scatter, after))
    reach = math.sqrt(1 / before.count + 1 / after.count)
    if also_alone:
        other = scatter.deviation, scatter.count - 1
    else:
        own = sum(s.deviation**2 / s.count for s in (before, after))
        other = math.sqrt(own) / reach, freedom
    scatters = [(math.sqrt(squares / max(freedom, 1)), freedom), other]
    return Change(
        before=before.mean,
        after=after.mean,
        slower_frac=(after.mean - before.mean) / whole,
        scatter=[(spread / whole, freedom) for spread, freedom in scatters],
        reach=reach,
    )


def change_in_pairs(before: Sequence[float], after: Sequence[float]) -> Change:
    """Of pairs, which stand at the same places of both sides; two or more."""
    ratios = Sample.of([math.log(b / a) for a, b in zip(before, after, strict=True)])
    return Change(
        before=statistics.fmean(before),
        after=statistics.fmean(after),
        slower_frac=math.expm1(ratios.mean),
        scatter=[(ratios.deviation, ratios.count - 1)],
        reach=1 / math.sqrt(ratios.count),
        is_ratio=True,
    )


def slower_by_order(
    before: Sequence[float], after: Sequence[float], chance: float = CHANCE, *, in_pairs: bool = False
) -> bool:
    """Whether an order as clear as this comes by chance in a share `chance` of choices or less.

    Few samples have no such order (5 and 3 have 56): then the clearest one is asked for, every sample after
    slower than every one before, or than that of its pair. Equal figures count against it.

    >>> slower_by_order([1, 2, 3, 4, 5], [6, 7, 8]), slower_by_order([1, 2, 3, 4, 6], [5, 7, 8])
    (True, False)
    """
    if in_pairs:
        changes = np.log(np.asarray(after, float) / np.asarray(before, float))
        sizes, chosen = np.abs(changes), changes > 0
    else:
        sizes = np.concatenate((np.asarray(before, float), np.asarray(after, float)))
        chosen = np.arange(len(sizes)) >= len(before)
    # Twice the mean of the places that equal sizes share, so that it is whole.
    ranks = [int(np.sum(sizes < size) + np.sum(sizes <= size)) + 1 for size in sizes]
    ways = np.zeros((len(ranks) + 1, sum(ranks) + 1))
    ways[0, 0] = 1
    for rank in ranks:
        ways[1:, rank:] += ways[:-1, :-rank]
    choices = ways.sum(axis=0) if in_pairs else ways[chosen.sum()]
    as_clear = choices[int(np.dot(ranks, chosen)) :].sum()
    return bool(as_clear <= max(chance * choices.sum(), 1))


class Verdict(StrEnum):
    """What came out."""

    PASS = "pass"
    IMPROVED = "improved"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A verdict with the figures that it rests on. Fractions are of the mean before."""

    verdict: Verdict
    before: float
    after: float
    slower_frac: float
    limit_frac: float
    noise_frac: float | None
    """None with too few baseline runs."""
    reason: str


def compare(
    before: Sequence[float],
    after: Sequence[float],
    practical_frac: float = PRACTICAL_FRAC,
    *,
    in_pairs: bool = False,
    chance: float = CHANCE,
    of: float | None = None,
    scatter_of: Sequence[float] | None = None,
    sessions: tuple[float, int] | None = None,
) -> Comparison:
    """Compare a figure of runs, such as their medians; of pairs there are two or more.

    chance: of equal runs to fail. of: what fractions are of, the mean before unless given. scatter_of:
    more values, by whose scatter `before` is judged. sessions: deviation and degrees of
    freedom of one more scatter, that of sessions.

    >>> compare([100, 101, 99, 100, 100], [104]).verdict
    <Verdict.FAIL: 'fail'>
    """
    if in_pairs:
        change = change_in_pairs(before, after)
    else:
        change = change_between(
            Sample.of(before),
            Sample.of(after),
            of=of,
            scatter_of=Sample.of(scatter_of or before),
            also_alone=len(before) > 1,
        )
    shared = None
    if sessions is not None:
        shared = replace(change, scatter=[(sessions[0] / (of or change.before), sessions[1])])
        change = replace(change, scatter=[*change.scatter, *shared.scatter])
    slower = change.slower_frac
    noise: float | None
    if len(before) < MIN_HISTORY and not in_pairs:
        limit, noise = max(practical_frac, LOW_HISTORY_FRAC), None
        verdict = Verdict.FAIL if slower > limit else Verdict.IMPROVED if slower < -limit else Verdict.PASS
        runs = "1 baseline run shows" if len(before) == 1 else f"{len(before)} baseline runs show"
        reason = f"low history: {runs} no spread, so the limit is {per_cent(limit, 0)}; "
        reason += f"record {MIN_HISTORY} or more"
    else:
        noise = change.noise_frac(chance)
        limit, bearable = max(practical_frac, noise), max(MAX_NOISE_FRAC, practical_frac)
        if abs(slower) > limit:
            sides = (before, after) if slower > 0 else (after, before)
            if not slower_by_order(*sides, chance, in_pairs=in_pairs):
                verdict = Verdict.INCONCLUSIVE
                reason = "runs of both sides overlap, as when some met a slow period; add new runs"
                if in_pairs:
                    reason = "too few pairs agree on the slower side; add pairs"
            else:
                verdict = Verdict.FAIL if slower > 0 else Verdict.IMPROVED
                word = "slower" if slower > 0 else "faster"
                reason = f"{word} by more than noise and the practical limit"
        elif change.noise_frac() > bearable:
            verdict = Verdict.INCONCLUSIVE
            remedy = _remedy(change, len(before), len(after), bearable)
            if shared is not None and shared.noise_frac(chance) == noise:
                remedy = "make new runs in other hours too, or old ones in turn with them (--beside)"
            reason = f"scatter hides {per_cent(practical_frac)}: {per_cent(noise)} may be noise; {remedy}"
        else:
            verdict, reason = Verdict.PASS, "within noise and the practical limit"
    return Comparison(
        verdict=verdict,
        before=change.before,
        after=change.after,
        slower_frac=slower,
        limit_frac=limit,
        noise_frac=noise,
        reason=reason,
    )


def _remedy(change: Change, before: int, after: int, bearable: float) -> str:
    """How many samples would do at this spread, up to MOST_RUNS."""
    spread = max(spread for spread, _ in change.scatter)
    rows = range(1, MOST_RUNS + 1)
    designs = {
        "new runs": [(r, before - 1, math.sqrt(1 / before + 1 / r)) for r in rows if r > after],
        "runs on either side": [(r, r - 1, math.sqrt(2 / r)) for r in rows if r > max(before, after)],
    }
    if change.is_ratio:
        designs = {"pairs": [(r, r - 1, 1 / math.sqrt(r)) for r in rows if r > before]}
    ways = []
    for what, design in designs.items():
        for runs, freedom, reach in design:
            if replace(change, scatter=[(spread, freedom)], reach=reach).noise_frac() <= bearable:
                ways.append(f"{runs} {what}")
                break
    return f"{' or '.join(ways)} would do, or a quieter machine" if ways else "measure on a quieter machine"


def few_orders(before: int, after: int, chances: Sequence[float], *, in_pairs: bool = False) -> list[str]:
    """A note where the orders of so few runs allow more than 1 % of false alarms, of all tests together.

    chances: of each test. Of each its clearest order is allowed at least.

    >>> few_orders(7, 3, [0.01])
    []
    """

    def allowed(runs: int) -> float:
        ways = 2**runs if in_pairs else math.comb(before + runs, runs)
        return sum(max(math.floor(chance * ways), 1) for chance in chances) / ways

    if (most := allowed(after)) <= CHANCE:
        return []
    enough = next((runs for runs in range(after, 100) if allowed(runs) <= CHANCE), None)
    what = "pairs" if in_pairs else "new runs"
    return [
        f"false alarms in up to {per_cent(most)} of cases if scatter is not normal: so often all {after} "
        f"{what} of equal code may be slower" + (f"; at most 1 % with {enough} {what}" if enough else "")
    ]
