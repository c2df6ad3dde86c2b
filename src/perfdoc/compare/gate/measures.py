"""What of a run's steps is compared, and how the chance of a false alarm is shared among all tests.

The 1 % holds for all tests of a check together. It is divided among them by fixed shares (Bonferroni's
correction, with weights): whatever they have to do with one another, together they fail equal runs in no more
cases than their chances sum to. Which tests can be made follows from how many steps and runs there are and
from what the logs hold, never from the times, so the shares of the others are divided among these.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from perfdoc.compare.decision import MIN_HISTORY, Decision, Verdict, decide
from perfdoc.compare.figures import RunFigures, Statistic
from perfdoc.compare.gate.drift import MIN_RUNS
from perfdoc.compare.gate.sessions import decide_pairs, shared_noise_frac
from perfdoc.compare.significance import MOST_BY_CHANCE, slower_by_order

PARTS, DRIFT = "parts", "drift"


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One figure of a run that is compared."""

    name: str
    says: str
    """The words before the figure."""
    of: Callable[[RunFigures], float | None]
    share: int
    """Of the chance of a false alarm; all shares are by their sum."""
    practical_times: float = 1.0
    """Its practical limit, in those of the step."""
    decides: bool = False
    """Whether the gate has no answer where this one is inconclusive."""
    is_ratio: bool = False
    open_by_order: bool = False
    """Whether there is no answer where it is beyond its practical limit and all new runs are the slower ones,
    though scatter explains as much: what scatters by chance events does so by much."""
    least_old: int = MIN_HISTORY
    least_new: int = 1
    """With fewer new runs a loss is reported and fails nothing."""


MEAN = Measure(
    name="mean_step",
    says="The mean step takes",
    of=lambda r: r.mean_step_ns,
    share=3,
    decides=True,
    least_old=1,
)
_BESIDES = (
    # One step of 20 half as long again adds 2.5 % to the mean: a tail counts from a fifth of that on.
    Measure(
        name="p95_step",
        says="The 95th percentile of steps is",
        of=lambda r: r.p95_step_ns,
        share=1,
        practical_times=5,
    ),
    Measure(
        name="p99_step",
        says="The 99th percentile of steps is",
        of=lambda r: r.p99_step_ns,
        share=1,
        practical_times=10,
    ),
    # A step that grows evenly by 4 % until the end has grown by 2 % in the mean.
    Measure(
        name="late_part",
        says="Steps of the last third of a run, by those of the first, take",
        of=lambda r: r.late_ratio,
        share=1,
        practical_times=2,
        is_ratio=True,
    ),
    # A stall comes to a run by chance, and to all of three new runs and no old one rarely.
    Measure(
        name="stalls",
        says="The mean step with stalls takes",
        of=lambda r: r.whole_mean_step_ns,
        share=1,
        least_new=3,
        open_by_order=True,
    ),
)


def measures(statistic: Statistic) -> tuple[Measure, ...]:
    """All measures, the step itself first.

    Who asks for the quickest steps has a machine on which the mean scatters too much to demand an answer.
    """
    first = Measure(
        name="step_time",
        says="A step takes" if statistic == "median" else "A step of the fastest quarter takes",
        of=lambda r: r.step_ns(statistic),
        share=3,
        decides=True,
        least_old=1,
    )
    return (first, replace(MEAN, decides=statistic == "median"), *_BESIDES)


@dataclass(frozen=True, kw_only=True)
class Family:
    """The tests that are made of two sides, and the chance of each to fail equal runs."""

    measures: Sequence[Measure]
    chance: Mapping[str, float]
    """By name, of PARTS and DRIFT as well where they are made."""

    @classmethod
    def of(
        cls, old: Sequence[RunFigures], new: Sequence[RunFigures], statistic: Statistic, *, with_drift: bool
    ) -> Family:
        """with_drift: whether drift is asked for at all."""
        made = [
            m
            for m in measures(statistic)
            if len(old) >= m.least_old and all(m.of(run) is not None for run in (*old, *new))
        ]
        shares = {m.name: m.share for m in made}
        if len(old) >= MIN_HISTORY and (
            all(r.logged_ns or r.logged_mean_ns for r in (*old, *new))
            or all(r.parts_ns for r in (*old, *new))
        ):
            shares[PARTS] = 1
        if with_drift and len(old) >= MIN_RUNS:
            shares[DRIFT] = 2
        whole = sum(shares.values())
        return cls(measures=made, chance={name: MOST_BY_CHANCE * s / whole for name, s in shares.items()})


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One measure, and what came out."""

    measure: Measure
    decision: Decision
    before: float
    """Means over runs."""
    after: float
    within_noise_in_order: bool
    """Beyond the practical limit, all new runs slower, and no more than scatter explains."""

    @property
    def fails(self) -> bool:
        """Whether it is a loss that so many new runs can show."""
        return self.decision.verdict is Verdict.FAIL and self.decision.new_runs >= self.measure.least_new

    @property
    def is_open(self) -> bool:
        """Whether the gate has no answer because of it."""
        if self.decision.verdict is Verdict.FAIL:
            return not self.fails
        if self.measure.open_by_order and self.within_noise_in_order:
            return True
        return self.measure.decides and self.decision.verdict is Verdict.INCONCLUSIVE

    @property
    def improved(self) -> bool:
        """Whether it is a gain that is worth keeping."""
        return self.decision.verdict is Verdict.IMPROVED and self.measure.decides


def compare_runs(
    family: Family, old: Sequence[RunFigures], new: Sequence[RunFigures], practical_frac: float
) -> list[Compared]:
    """Each measure of new runs against a baseline's."""

    def judge(measure: Measure, before: list[float], after: list[float]) -> Decision:
        chance = family.chance[measure.name]
        shared = shared_noise_frac(old, before, new, after, confidence=1 - chance)
        practical = practical_frac * measure.practical_times
        return decide(
            before,
            after,
            practical,
            shared_noise_frac=shared,
            chance=chance,
            one_test_shared_frac=shared_noise_frac(old, before, new, after),
        )

    return _each(family, old, new, judge, practical_frac)


def compare_pairs(
    family: Family, pairs: Sequence[tuple[RunFigures, RunFigures]], practical_frac: float
) -> list[Compared]:
    """Each measure of pairs (old, new)."""

    def judge(measure: Measure, before: list[float], after: list[float]) -> Decision:
        practical = practical_frac * measure.practical_times
        pairs = list(zip(before, after, strict=True))
        return decide_pairs(pairs, practical, chance=family.chance[measure.name])

    return _each(family, [a for a, _ in pairs], [b for _, b in pairs], judge, practical_frac)


def _each(
    family: Family,
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    judge: Callable[[Measure, list[float], list[float]], Decision],
    practical_frac: float,
) -> list[Compared]:
    found = []
    for measure in family.measures:
        before, after = ([v for run in side if (v := measure.of(run)) is not None] for side in (old, new))
        decision = judge(measure, before, after)
        found.append(
            Compared(
                measure=measure,
                decision=decision,
                within_noise_in_order=decision.verdict is not Verdict.FAIL
                and decision.slower_frac > practical_frac * measure.practical_times
                and slower_by_order(before, after, family.chance[measure.name]),
                before=statistics.fmean(before),
                after=statistics.fmean(after),
            )
        )
    return found
