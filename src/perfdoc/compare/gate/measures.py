"""What of a run's steps is compared, and how the chance of a false alarm is shared among all tests.

The 1 % holds for all tests of a check together. It is divided among them by fixed shares (Bonferroni's
correction, with weights): whatever they have to do with one another, together they fail equal runs in no more
cases than their chances sum to. Which tests can be made follows from how many steps and runs there are and
from what the logs hold, never from the times, so the shares of the others are divided among these.

Parts of a step: which of them grew, and what they tell where the whole step scatters too much.

What a neighbour does to a machine is not felt by every part of a step alike: computing takes longer, a wait
for data hardly does. So a part can show a loss beyond doubt that drowns in the step. A part is compared as
the step is, with its change and its scatter as fractions of a step, and with the chance of a false alarm
divided by the number of parts that are looked at.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

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
    name="step_time", says="A step takes", of=lambda r: r.median_step_ns, share=3, decides=True, least_old=1
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


MIN_GROWTH_FRAC = 0.002
"""A part that grew by less than this of a step is not named."""

_MEDIANS, _MEANS, _LEDGER = 0, 1, 2
_SPLITS: tuple[tuple[Callable[[RunFigures], Mapping[str, int]], Callable[[RunFigures], int]], ...] = (
    (lambda r: r.logged_parts_ns, lambda r: r.median_step_ns),
    (lambda r: r.logged_mean_parts_ns, lambda r: r.mean_step_ns),
    (lambda r: r.parts_ns, lambda r: sum(r.parts_ns.values())),
)
"""The parts of a run, and the step that they are parts of: the log of unprofiled steps twice, as a wait in
some of the steps is in no median; the ledger of profiled ones."""


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the step that changed; means over runs."""

    part: str
    before_ns: int
    after_ns: int

    @property
    def grew_ns(self) -> int:
        """Positive where the part takes longer than before."""
        return self.after_ns - self.before_ns


def find_growth(baseline: Sequence[RunFigures], new: Sequence[RunFigures]) -> list[Grown]:
    """Parts that changed by more than half of what the baseline runs differ by among themselves, the one that
    grew most first.

    Empty where either side has neither ledger nor step log: nothing is said of the cause then.
    """
    for at in (_LEDGER, _MEANS, _MEDIANS):
        parts, step_ns = _SPLITS[at]
        split = [r for r in baseline if parts(r)]
        before, after = [parts(r) for r in split], [p for r in new if (p := parts(r))]
        if before and after:
            break
    else:
        return []
    step = statistics.fmean(map(step_ns, split))
    grown = []
    for name in sorted({n for run in (*before, *after) for n in run}):
        old = [run.get(name, 0) for run in before]
        part = Grown(
            part=name,
            before_ns=round(statistics.fmean(old)),
            after_ns=round(statistics.fmean(run.get(name, 0) for run in after)),
        )
        if abs(part.grew_ns) > max((max(old) - min(old)) // 2, MIN_GROWTH_FRAC * step):
            grown.append(part)
    return sorted(grown, key=lambda p: (-p.grew_ns, p.part))


def find_part_losses(
    family: Family, compared: Sequence[Compared]
) -> tuple[int, list[tuple[str, Comparison]]] | None:
    """How many parts were looked at, and those that grew beyond noise and the practical limit, most first.

    Asked where the step as a whole, or its mean, is inconclusive; else None. Where a step looks quicker by
    more than half of its noise, the rest of it most likely became quicker: who computes faster waits for data
    longer, and loses nothing.
    """
    undecided = [c.result for c in compared if c.measure.decides and c.result.verdict is Verdict.INCONCLUSIVE]
    if PARTS not in family.chance or any(c.fails for c in compared):
        return None
    if not any(result.slower_frac >= -(result.noise_frac or 0.0) / 2 for result in undecided):
        return None
    runs = [*family.old, *family.new]
    names = [
        sorted({n for run in runs for n in parts(run)}) if all(map(parts, runs)) else []
        for parts, _ in _SPLITS
    ]
    looked_at = sum(map(len, names))
    losses: list[tuple[str, Comparison]] = []
    for (parts, step_ns), of_split in zip(_SPLITS, names, strict=True):
        step = statistics.fmean(map(step_ns, family.old))
        changed = []
        for name in of_split if step > 0 else ():
            old, new = ([parts(run).get(name, 0) for run in side] for side in (family.old, family.new))
            result = family.compare_part(old, new, step, family.chance[PARTS] / looked_at)
            if result.verdict in (Verdict.FAIL, Verdict.IMPROVED):
                changed.append((name, result))
        # Where parts shrank by as much, time has only moved from one to another.
        if sum(result.slower_frac for _, result in changed) > family.practical_frac:
            losses += [row for row in changed if row[1].slower_frac > family.practical_frac]
    return looked_at, sorted(losses, key=lambda row: (-row[1].slower_frac, row[0]))
