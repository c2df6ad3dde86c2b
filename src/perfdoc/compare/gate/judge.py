"""All checks of new runs against old ones that are made of their figures: steps, parts and drift."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfdoc.compare.decision import PRACTICAL_FRAC
from perfdoc.compare.figures import RunFigures, Statistic
from perfdoc.compare.floors import Level
from perfdoc.compare.gate.drift import Drift, drift
from perfdoc.compare.gate.measures import DRIFT, MEAN, PARTS, Compared, Family, compare_pairs, compare_runs
from perfdoc.compare.gate.parts import Grown, growth, where_inconclusive
from perfdoc.compare.gate.result import Check, drift_check, parts_check
from perfdoc.compare.gate.sessions import shared_noise_frac
from perfdoc.compare.gate.step_checks import left_out_notes, step_checks
from perfdoc.compare.significance import few_orders, few_pairs


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What came out, the check of the step first."""

    checks: Sequence[Check]
    grown: Sequence[Grown]
    improved: bool
    notes: Sequence[str]


def against_baseline(
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float = PRACTICAL_FRAC,
    statistic: Statistic = "median",
    drift_level: Level | None = "error",
) -> Judgement:
    """New runs against those of a baseline. drift_level: None where drift does not matter."""
    family = Family.of(old, new, statistic, with_drift=drift_level is not None)
    found = compare_runs(family, old, new, practical_frac)
    drifted = drifted_mean(family, old, new, practical_frac)
    return _judgement(
        found, family, old, new, practical_frac, statistic,
        whose="the baseline's",
        drift=[drift_check(drifted, drift_level, old)] if drifted and drift_level else [],
        few=few_orders(len(old), len(new), list(family.chance.values())),
    )  # fmt: skip


def in_pairs(
    pairs: Sequence[tuple[RunFigures, RunFigures]],
    practical_frac: float = PRACTICAL_FRAC,
    statistic: Statistic = "median",
) -> Judgement:
    """Pairs (old, new) of runs that were made in turn."""
    old, new = [a for a, _ in pairs], [b for _, b in pairs]
    family = Family.of(old, new, statistic, with_drift=False)
    return _judgement(
        compare_pairs(family, pairs, practical_frac), family, old, new, practical_frac, statistic,
        whose="the old runs'",
        drift=[],
        few=few_pairs(len(pairs), list(family.chance.values())),
    )  # fmt: skip


def _judgement(
    found: Sequence[Compared],
    family: Family,
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float,
    statistic: Statistic,
    *,
    whose: str,
    drift: Sequence[Check],
    few: Sequence[str],
) -> Judgement:
    """few: what to say of so few runs, where they fail."""
    grown = growth(old, new)
    return Judgement(
        checks=[
            *step_checks(found, old, new, grown, whose=whose, statistic=statistic),
            *_by_parts(found, family, old, new, practical_frac),
            *drift,
        ],
        grown=grown,
        improved=any(c.improved for c in found),
        notes=[*(few if any(c.fails for c in found) else []), *left_out_notes(new)],
    )


def drifted_mean(
    family: Family, old: Sequence[RunFigures], new: Sequence[RunFigures], practical_frac: float
) -> Drift | None:
    """The mean step against the first runs of the level; the step itself where the mean does not decide."""
    if DRIFT not in family.chance:
        return None
    measure = next(m for m in reversed(family.measures) if m.decides)
    before, after = ([v for run in side if (v := measure.of(run)) is not None] for side in (old, new))
    chance = family.chance[DRIFT]
    shared = shared_noise_frac(old, before, new, after, confidence=1 - chance)
    says = "The mean step" if measure.name == MEAN.name else "A step"
    return drift(before, after, practical_frac, shared_noise_frac=shared, chance=chance, says=says)


def _by_parts(
    found: Sequence[Compared],
    family: Family,
    old: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float,
) -> list[Check]:
    """What parts say where the step as a whole, or its mean, is inconclusive."""
    if PARTS not in family.chance or any(c.fails for c in found):
        return []
    for judged in found:
        if not judged.measure.decides:
            continue
        parts = where_inconclusive(judged.decision, old, new, practical_frac, family.chance[PARTS])
        if parts is not None:
            return [parts_check(parts, practical_frac)]
    return []
