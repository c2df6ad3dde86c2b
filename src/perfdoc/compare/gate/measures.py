"""What of a run's steps is compared, and how the chance of a false alarm is shared among all tests.

The 1 % holds for all tests of a check together. It is divided among them by fixed shares (Bonferroni's
correction, with weights): whatever they have to do with one another, together they fail equal runs in no more
cases than their chances sum to. Which tests can be made follows from how many steps and runs there are and
from what the logs hold, never from the times, so the shares of the others are divided among these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from perfdoc.analyzers.steps.slower import CHANCE, MIN_HISTORY, Comparison, Verdict, compare, slower_by_order
from perfdoc.compare.baseline_files import ANCHOR_RUNS
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.sessions import scatter_of_sessions
from perfdoc.records import dataclass

PARTS, DRIFT = "parts", "drift"
DRIFT_RUNS = ANCHOR_RUNS + MIN_HISTORY
"""Fewer are the level's first runs, against which the check itself is made."""


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


STEP = Measure(
    name="step_time",
    says="A step takes",
    of=lambda r: r.median_step_ns,
    share=3,
    decides=True,
    least_old=1,
)
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


MEASURES = (STEP, MEAN, *_BESIDES)
"""All of them, the step itself first."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """The tests that are made of two sides."""

    old: Sequence[RunFigures]
    new: Sequence[RunFigures]
    practical_frac: float
    in_pairs: bool
    """Whether runs at the same places of both sides are pairs, made in turn."""
    measures: Sequence[Measure]
    chance: dict[str, float]
    """Of each test to fail equal runs, by name; of PARTS and DRIFT as well where they are made."""

    @classmethod
    def of(
        cls,
        old: Sequence[RunFigures],
        new: Sequence[RunFigures],
        practical_frac: float,
        *,
        in_pairs: bool = False,
        with_drift: bool = False,
    ) -> Family:
        """with_drift: whether drift is asked for at all."""
        runs = [*old, *new]
        measures = [
            m for m in MEASURES if len(old) >= m.least_old and all(m.of(run) is not None for run in runs)
        ]
        shares = {m.name: m.share for m in measures}
        has_parts = all(r.logged_ns or r.logged_mean_ns for r in runs) or all(r.parts_ns for r in runs)
        if len(old) >= MIN_HISTORY and has_parts:
            shares[PARTS] = 1
        if with_drift and len(old) >= DRIFT_RUNS:
            shares[DRIFT] = 2
        chance = {name: CHANCE * share / sum(shares.values()) for name, share in shares.items()}
        return cls(
            old=old,
            new=new,
            practical_frac=practical_frac,
            in_pairs=in_pairs,
            measures=measures,
            chance=chance,
        )

    @property
    def first(self) -> Sequence[RunFigures]:
        """The first runs of the level."""
        return self.old[:ANCHOR_RUNS]

    def compare(self) -> list[Compared]:
        """Each measure."""
        return [self._compare(m, self.chance[m.name]) for m in self.measures]

    def compare_with_first(self) -> Compared | None:
        """Many small losses: the new runs against the first ones of their level, which stay in the baseline.

        Runs that passed join the baseline and move its mean, so the next small loss passes too; against the
        first runs the losses add up. The scatter is that of all runs of the level: one that drifts scatters
        more. Of the mean step. None where the level is young.
        """
        if DRIFT not in self.chance:
            return None
        return self._compare(MEAN, self.chance[DRIFT], with_first=True)

    def _compare(self, measure: Measure, chance: float, *, with_first: bool = False) -> Compared:
        old = self.first if with_first else self.old
        whole, before, after = (
            [v for run in side if (v := measure.of(run)) is not None] for side in (self.old, old, self.new)
        )
        practical = self.practical_frac * measure.practical_times
        if self.in_pairs:
            result = compare(before, after, practical, chance=chance, in_pairs=True)
        else:
            sessions = scatter_of_sessions(old, before, self.new, after)
            scatter_of = whole if with_first else None
            result = compare(
                before, after, practical, chance=chance, scatter_of=scatter_of, sessions=sessions
            )
        by_order = slower_by_order(before, after, chance) if measure.open_by_order else False
        return Compared(
            measure=measure,
            result=result,
            new_runs=len(self.new),
            is_slower_in_order=result.slower_frac > practical and by_order,
        )

    def compare_part(
        self, before: Sequence[float], after: Sequence[float], step: float, chance: float
    ) -> Comparison:
        """A part of every run's step, of which fractions are; it may take no time, so pairs have no ratio."""
        sessions = scatter_of_sessions(self.old, before, self.new, after)
        return compare(before, after, 0.0, chance=chance, of=step, sessions=sessions)


@dataclass(frozen=True, kw_only=True)
class Compared:
    """One measure, and what came out."""

    measure: Measure
    result: Comparison
    new_runs: int
    is_slower_in_order: bool
    """Beyond the practical limit, and all new runs slower."""

    @property
    def fails(self) -> bool:
        """Whether it is a loss that so many new runs can show."""
        return self.result.verdict is Verdict.FAIL and self.new_runs >= self.measure.least_new

    @property
    def is_open(self) -> bool:
        """Whether the gate has no answer because of it."""
        if self.result.verdict is Verdict.FAIL:
            return not self.fails
        if self.measure.open_by_order and self.is_slower_in_order:
            return True
        return self.measure.decides and self.result.verdict is Verdict.INCONCLUSIVE

    @property
    def improved(self) -> bool:
        """Whether it is a gain that is worth keeping."""
        return self.result.verdict is Verdict.IMPROVED and self.measure.decides
