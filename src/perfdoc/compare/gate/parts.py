"""Parts of a step: which of them grew, and what they tell where the whole step scatters too much.

What a neighbour does to a machine is not felt by every part of a step alike: computing takes longer, a wait
for data hardly does. So a part can show a loss beyond doubt that drowns in the step. A part is compared as
the step is, with its change and its scatter as fractions of a step, and with the chance of a false alarm
divided by the number of parts that are looked at.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence

import msgspec

from perfdoc.analyzers.steps.slower import Comparison, Verdict
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.measures import PARTS, Compared, Family

MIN_GROWTH_FRAC = 0.002
"""A part that grew by less than this of a step is not named."""

_MEDIANS, _MEANS, _LEDGER = 0, 1, 2
_SPLITS: tuple[
    tuple[Callable[[RunFigures], Mapping[str, int]], Callable[[RunFigures], int]],
    ...,
] = (
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
