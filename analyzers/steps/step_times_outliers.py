"""Steps that took much longer than the others, and the leaf of the ledger that grew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from perfdoc.analyzers.steps.step_ledgers import LEAVES, StepLedgers, distinct_names
from perfdoc.analyzers.steps.step_times_figures import outliers
from perfdoc.analyzers.steps.step_times_log import LoggedSteps

MAX_OUTLIERS = 20
EXPLAINS_FRAC = 0.5
"""A leaf explains an outlier if it grew by at least this part of the excess."""
NOT_PROFILED = "The step was not profiled: only data loading and garbage collection are logged."


@dataclass(frozen=True, kw_only=True)
class RankSteps:
    """The steps of one device in the analysed window."""

    rank: int | None
    label: str
    """How reports name it."""
    ledgers: StepLedgers


@dataclass(frozen=True, kw_only=True)
class LeafGrowth:
    """A leaf of the ledger and by how much it exceeds its median over the other steps."""

    leaf: str
    growth_ns: int


@dataclass(frozen=True, kw_only=True)
class OutlierStep:
    """A step above the median of its series by more than 5 scaled MADs and 2 %."""

    source: Literal["analysed", "logged"]
    step: str
    duration_ns: int
    """On the rank that explains it; of a logged step, the median over ranks."""
    excess_ns: int
    """Above the median."""
    ranks: int
    """Devices on which the step is an outlier; of a logged step the ranks that logged it."""
    label: str | None
    """The device that explains it: of those where the step is an outlier, the one whose own leaves (all but
    exposed communication, which is waiting for others) grew most. None for a logged step."""
    leaf: str | None
    """The leaf that grew most there; None with the reason where none grew by half of the excess."""
    leaf_growth_ns: int | None
    growth: Sequence[LeafGrowth]
    """Every leaf that grew by more than a tenth of the excess, the largest first."""
    reason: str


def analysed_outliers(ranks: Sequence[RankSteps]) -> list[OutlierStep]:
    """Outliers among the analysed steps, each step once, the largest excess first."""
    found: dict[str, list[OutlierStep]] = {}
    for rank in ranks:
        times = rank.ledgers.duration_ns
        rows = outliers(times)
        if not len(rows):
            continue
        normal = np.setdiff1d(np.arange(len(times)), rows)
        usual = {leaf: round(float(np.median(rank.ledgers.leaf_ns[leaf][normal]))) for leaf in LEAVES}
        median = round(float(np.median(times)))
        names = distinct_names(rank.ledgers.names)
        for row in rows.tolist():
            name = names[row]
            growth = {leaf: int(rank.ledgers.leaf_ns[leaf][row]) - usual[leaf] for leaf in LEAVES}
            found.setdefault(name, []).append(
                _explained("analysed", name, int(times[row]), int(times[row]) - median, growth, rank.label)
            )
    merged = [_merged(same) for same in found.values()]
    return sorted(merged, key=lambda o: (-o.excess_ns, o.step))


def logged_outliers(steps: LoggedSteps, ranks: int) -> list[OutlierStep]:
    """Outliers among logged steps (give the steady ones that were not profiled)."""
    found = []
    rows = outliers(steps.duration_ns)
    normal = np.setdiff1d(np.arange(len(steps.step)), rows)
    median = round(float(np.median(steps.duration_ns))) if len(rows) else 0
    for row in rows.tolist():
        growth = {}
        for leaf, part in (("idle.data", steps.data_ns), ("idle.gc", steps.garbage_ns)):
            if part[row] >= 0 and (part[normal] >= 0).all():
                growth[leaf] = int(part[row]) - round(float(np.median(part[normal])))
        time = int(steps.duration_ns[row])
        step = _explained("logged", str(steps.step[row]), time, time - median, growth, None, NOT_PROFILED)
        found.append(replace(step, ranks=ranks))
    return sorted(found, key=lambda o: (-o.excess_ns, o.step))


def _explained(
    source: Literal["analysed", "logged"],
    step: str,
    duration_ns: int,
    excess_ns: int,
    growth: dict[str, int],
    label: str | None,
    unexplained: str = "No single leaf grew by half of the excess.",
) -> OutlierStep:
    ranked = sorted(growth.items(), key=lambda item: -item[1])
    leaf, grown = ranked[0] if ranked else ("", 0)
    clear = grown >= EXPLAINS_FRAC * excess_ns
    return OutlierStep(
        source=source,
        step=step,
        duration_ns=duration_ns,
        excess_ns=excess_ns,
        ranks=1,
        label=label,
        leaf=leaf if clear else None,
        leaf_growth_ns=grown if clear else None,
        growth=[LeafGrowth(leaf=name, growth_ns=ns) for name, ns in ranked if ns * 10 > excess_ns],
        reason="" if clear else unexplained,
    )


def _merged(same: Sequence[OutlierStep]) -> OutlierStep:
    """One outlier of a step that is one on several devices: the device that did not only wait explains it."""

    def own_growth(step: OutlierStep) -> int:
        return max((g.growth_ns for g in step.growth if not g.leaf.startswith("exposed_comm")), default=0)

    return replace(max(same, key=lambda s: (own_growth(s), s.excess_ns)), ranks=len(same))
