"""Parts of a step: which of them grew, and what they tell where the whole step scatters too much.

What a neighbour does to a machine is not felt by every part of a step alike: computing takes longer, a wait
for data hardly does. So a part can show a loss beyond doubt that drowns in the step. A part is judged as the
step is, by noise and by order, with its change and its scatter as fractions of a step, and with the chance
of a false alarm divided by the number of parts that are looked at.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from perfdoc.compare.decision import MIN_HISTORY, Decision, Verdict
from perfdoc.compare.figures import RunFigures
from perfdoc.compare.gate.sessions import shared_noise_frac
from perfdoc.compare.significance import MOST_BY_CHANCE, noise_frac, slower_by_order, spread_of

MIN_GROWTH_FRAC = 0.002
"""A part that grew by less than this of a step is not named."""


class Grown(msgspec.Struct, frozen=True, kw_only=True):
    """A part of the step that changed; means over runs."""

    part: str
    before_ns: int
    after_ns: int

    @property
    def grew_ns(self) -> int:
        """Positive where the part takes longer than before."""
        return self.after_ns - self.before_ns


def growth(baseline: Sequence[RunFigures], new: Sequence[RunFigures]) -> list[Grown]:
    """Parts that changed by more than half of what the baseline runs differ by among themselves, the one that
    grew most first.

    Empty where either side has neither ledger nor step log: nothing is said of the cause then.
    """
    before: Sequence[Mapping[str, int]]
    after: Sequence[Mapping[str, int]]
    before, after = ([r.parts_ns for r in side if r.parts_ns] for side in (baseline, new))
    steps = [sum(parts.values()) for parts in before]
    for split in (_MEANS, _MEDIANS):
        if not before or not after:
            before, after = ([p for r in side if (p := split.parts(r))] for side in (baseline, new))
            steps = [split.step_ns(r) for r in baseline]
    if not before or not after:
        return []
    step = statistics.fmean(steps)
    parts = []
    for name in sorted({n for run in (*before, *after) for n in run}):
        old = [run.get(name, 0) for run in before]
        part = Grown(
            part=name,
            before_ns=round(statistics.fmean(old)),
            after_ns=round(statistics.fmean(run.get(name, 0) for run in after)),
        )
        if abs(part.grew_ns) > max((max(old) - min(old)) // 2, MIN_GROWTH_FRAC * step):
            parts.append(part)
    return sorted(parts, key=lambda p: (-p.grew_ns, p.part))


@dataclass(frozen=True, kw_only=True)
class PartChange:
    """One part; nanoseconds are means over runs, fractions are of a baseline step."""

    name: str
    before_ns: int
    after_ns: int
    grew_frac: float
    noise_frac: float


@dataclass(frozen=True, kw_only=True)
class PartsCompared:
    """What the parts of a step say."""

    looked_at: int
    grew: Sequence[PartChange]
    """Beyond their noise and the practical limit, most first."""


@dataclass(frozen=True, kw_only=True)
class _Split:
    """One way to split a step: the parts of a run, and the step that they are parts of."""

    parts: Callable[[RunFigures], Mapping[str, int]]
    step_ns: Callable[[RunFigures], int]


_MEDIANS = _Split(parts=lambda r: r.logged_parts_ns, step_ns=lambda r: r.median_step_ns)
_MEANS = _Split(parts=lambda r: r.logged_mean_parts_ns, step_ns=lambda r: r.mean_step_ns or r.median_step_ns)
_SPLITS = (
    _MEDIANS,
    _MEANS,
    _Split(parts=lambda r: r.parts_ns, step_ns=lambda r: sum(r.parts_ns.values())),
)
"""The log of unprofiled steps twice, as a wait in some of the steps is in no median; the ledger of profiled
ones."""


def where_inconclusive(
    decision: Decision,
    baseline: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float,
    chance: float = MOST_BY_CHANCE,
) -> PartsCompared | None:
    """What parts say where the step cannot be told; None where it can, or where it looks quicker.

    Where a step looks quicker by more than half of its noise, the rest of it most likely became quicker: who
    computes faster waits for data longer, and loses nothing.
    """
    if decision.verdict is not Verdict.INCONCLUSIVE:
        return None
    if decision.slower_frac < -(decision.noise_frac or 0.0) / 2:
        return None
    return told_by_parts(baseline, new, practical_frac, chance)


def told_by_parts(
    baseline: Sequence[RunFigures],
    new: Sequence[RunFigures],
    practical_frac: float,
    chance: float = MOST_BY_CHANCE,
) -> PartsCompared | None:
    """None where there are too few baseline runs, or no parts that all runs have.

    chance: of equal runs to fail by any part.

    Parts that shrank beyond their noise are set against those that grew: where the sum is no loss beyond the
    practical limit, time has only moved from one part to another, and nothing is said.

    Worked, for five baseline runs against three: waiting for data took 1.00 ms of a step of 60 ms with s =
    0.06 ms (0.1 %, so 0.2 % is believed), now 4.2 ms: 5.3 % of a step more. Of two parts t(0.995, 4) = 4.604,
    and 4.604 * 0.2 % * 0.730 = 0.67 % may be noise.
    """
    if len(baseline) < MIN_HISTORY:
        return None
    names = [_names(split, [*baseline, *new]) for split in _SPLITS]
    if not (looked_at := sum(map(len, names))):
        return None
    grew: list[PartChange] = []
    for split, of_split in zip(_SPLITS, names, strict=True):
        changed = _changed(split, of_split, baseline, new, chance / looked_at)
        if sum(p.grew_frac for p in changed) > practical_frac:
            grew += [p for p in changed if p.grew_frac > practical_frac]
    return PartsCompared(looked_at=looked_at, grew=sorted(grew, key=lambda p: (-p.grew_frac, p.name)))


def _names(split: _Split, runs: Sequence[RunFigures]) -> list[str]:
    """Parts that any run has; none where a run has no parts at all."""
    found = [split.parts(run) for run in runs]
    return sorted({name for parts in found for name in parts}) if all(found) else []


def _changed(
    split: _Split,
    names: Sequence[str],
    baseline: Sequence[RunFigures],
    new: Sequence[RunFigures],
    chance: float,
) -> list[PartChange]:
    """Parts that changed beyond noise, either way."""
    if not names or (step := statistics.fmean(map(split.step_ns, baseline))) <= 0:
        return []
    n, k, changed = len(baseline), len(new), []
    confidence = 1 - chance
    for name in names:
        old, now = ([split.parts(run).get(name, 0) for run in side] for side in (baseline, new))
        before, after = statistics.fmean(old), statistics.fmean(now)
        spread, new_spread = spread_of(old, step), spread_of(now, step)
        noise = max(
            noise_frac(spread, n - 1, n, k, new_spread_frac=new_spread, confidence=confidence),
            shared_noise_frac(baseline, old, new, now, of_ns=step, confidence=confidence),
        )
        slower, quicker = (now, old) if after > before else (old, now)
        clear = slower_by_order(quicker, slower, chance)
        if clear and abs(after - before) > noise * step:
            changed.append(
                PartChange(
                    name=name,
                    before_ns=round(before),
                    after_ns=round(after),
                    grew_frac=(after - before) / step,
                    noise_frac=noise,
                )
            )
    return changed
