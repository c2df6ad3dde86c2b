"""What every change would gain, alone, and those worth it together."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

from perfdoc.profiling.copies import beside
from perfdoc.records import dataclass
from perfdoc.results.ranking import is_trifle
from perfdoc.results.replay import Combined, Gain, GainOfSet, GainsAnalysis, Prediction, Replay
from perfdoc.simulator.engine.schedule import is_to_compile
from perfdoc.simulator.replay.basis import AsOften, Basis
from perfdoc.simulator.replay.edits.edit import Proposal, Value
from perfdoc.simulator.replay.proposals import proposals

_MS = 1e6
_EACH_ALONE = "each rank was replayed alone: waits for other ranks stay as measured; the band spans the ranks"

_BY_CHANCE = (
    "the rank is late within noise, or not because it computes longer: not part of any set of changes"
)
_NO_SETTING = "no setting makes just this change: an upper bound for those that come near it"

WhyNot = Callable[[str, Sequence[Mapping[str, Value]]], str]
"""(key, ways to set it) -> why the job cannot have a change; empty where nothing is known against it."""

_SET_CHANGES = 4
"""Of so many changes every set is simulated: 2^4 - 1 sets, of which those of one change are known already."""
_SET_TASKS_MAX = 8_000_000
"""Tasks replayed for all sets together: about a second."""
_TURN_BYTES = 4
_MANY_TASKS = 6_000_000
"""Tasks replayed for all changes: of fewer a copy of this process takes longer than it saves."""


@dataclass(frozen=True, kw_only=True)
class Gains:
    """All predictions of a set of captures."""

    analysis: GainsAnalysis
    """Each change alone."""
    combined: Combined
    """None of those that no setting makes (stages of exactly the same work) is among its changes."""
    collections: AsOften | None = None
    """How often the run collects garbage, where a log says so: what `without_gc` gains is of that already."""

    @property
    def predictions(self) -> list[Prediction]:
        """Of each change alone."""
        return self.analysis.predictions


def predict_all(
    bases: Sequence[Basis],
    stragglers: Collection[tuple[str, str]] = (),
    why_not: WhyNot = lambda _key, _ways: "",
) -> Gains:
    """Every proposal on the basis of a job, or on each of several ranks where they could not be joined.

    stragglers: (name, dimension) of ranks that others wait for beyond chance, since they compute longer. That
    another rank computes as fast as its peers is predicted as well, and is in no set: the next run may have
    another one late. why_not: asked of every change; one that the job cannot have is predicted and in no set.
    """
    tried = [{p.key: p for p in proposals(b.rebuilt)} for b in bases]
    keys = list(dict.fromkeys(key for some in tried for key in some))
    _replay_each(bases, tried, keys)
    found = {
        key: [
            basis.of([some[key]]) if some[key].edit is not None else _nothing(some[key].reason)
            for basis, some in zip(bases, tried, strict=True)
            if key in some
        ]
        for key in keys
    }
    said = {key: next(some[key] for some in tried if key in some) for key in keys}
    predictions = [_prediction(said[key], found[key], bases) for key in keys]
    edits = {key: proposal.edit for key, proposal in said.items() if proposal.edit is not None}
    by_chance = {key for key, edit in edits.items() if edit.late and edit.late not in stragglers}
    bounds = {key for key, edit in edits.items() if edit.bound}
    predictions = [_by_chance(p) if p.key in by_chance else p for p in predictions]
    reasons = {
        key: _NO_SETTING if key in bounds else _BY_CHANCE if key in by_chance else why_not(key, p.ways)
        for key, p in said.items()
    }
    predictions = [replace(p, left_out=reasons[p.key]) for p in predictions]
    promised = [p for p in predictions if not p.left_out]
    return Gains(
        analysis=GainsAnalysis(state="measured", reason="", remedy="", predictions=predictions),
        combined=_combined(promised, said, bases, tried),
        collections=next((b.occasional.often for b in bases if b.occasional is not None), None),
    )


def _replay_each(bases: Sequence[Basis], tried: Sequence[dict[str, Proposal]], keys: Sequence[str]) -> None:
    """Of many tasks: what each change alone gains, which the bases keep, some here and the others in a copy
    of this process. Who is done with one takes the next from a pipe."""
    if sum(len(b.rebuilt.start_ns) for b in bases) * len(keys) <= _MANY_TASKS or is_to_compile():
        return
    left, given = os.pipe()
    os.write(given, b"".join(number.to_bytes(_TURN_BYTES, "big") for number in range(len(keys))))
    os.close(given)
    with os.fdopen(left, "rb", buffering=0) as turns:

        def some() -> list[dict[tuple[bool, tuple[str, ...]], Gain]]:
            while turn := turns.read(_TURN_BYTES):
                key = keys[int.from_bytes(turn, "big")]
                for basis, mine in zip(bases, tried, strict=True):
                    if (found := mine.get(key)) is not None and found.edit is not None:
                        basis.of([found])
            return [basis.known for basis in bases]

        with beside(some) as others:
            some()
            for basis, known in zip(bases, others(), strict=True):
                basis.known.update(known)


def no_gains(reason: str, remedy: str) -> Gains:
    """A result without predictions."""
    combined = Combined(accepted=[], gain=None, replay_error_frac=None, reason=reason)
    analysis = GainsAnalysis(state="not_measured", reason=reason, remedy=remedy, predictions=[])
    return Gains(analysis=analysis, combined=combined)


def prediction_of(gain: Gain, step_ns: int | None, **others: Any) -> Prediction:
    """A gain with its figures in ns and as shares of the step. others: what else a Prediction has."""
    figures: dict[str, Any] = {}
    for name, value in (("low", gain.low_ms), ("mid", gain.mid_ms), ("high", gain.high_ms)):
        figures[f"{name}_ns"] = None if value is None else round(value * _MS)
        figures[f"{name}_frac"] = _share(figures[f"{name}_ns"], step_ns)
    return Prediction(key=gain.key, gain=gain, step_ns=step_ns, **figures, **others)


def _prediction(proposal: Proposal, gains: Sequence[Gain], bases: Sequence[Basis]) -> Prediction:
    gain = replace(_over_ranks(gains), key=proposal.key)
    return prediction_of(
        gain,
        _step_ns(bases),
        change=proposal.change,
        scope=bases[0].replay.scope,
        ranks=sum(len(b.rebuilt.ranks) for b in bases),
        replay_error_frac=_worst(bases),
        exact=proposal.of.exact,
        reason="" if gain.method == "replay" else gain.assumptions[0],
        settings=dict(proposal.ways[0]) if proposal.ways else {},
    )


def _by_chance(prediction: Prediction) -> Prediction:
    if prediction.gain.method != "replay":
        return prediction
    gain = prediction.gain
    return replace(prediction, gain=replace(gain, assumptions=[*gain.assumptions, _BY_CHANCE]))


def _over_ranks(gains: Sequence[Gain]) -> Gain:
    """One gain of those of ranks that were replayed apart: the least low, the middle one, the greatest high;
    where it does not apply to a rank, that rank gains nothing."""
    if len(gains) == 1:
        return gains[0]
    usable = [g for g in gains if g.method != "none"]
    if not usable:
        return gains[0]
    if any(g.method == "ceiling" for g in gains):
        bounds = [g for g in gains if g.method == "ceiling"]
        highs = [g.high_ms for g in usable if g.high_ms is not None]
        return Gain(
            low_ms=0.0, mid_ms=None, high_ms=max(highs), method="ceiling", assumptions=bounds[0].assumptions
        )
    lows, mids, highs = ([getattr(g, name) or 0.0 for g in gains] for name in ("low_ms", "mid_ms", "high_ms"))
    return Gain(
        low_ms=min(lows),
        mid_ms=statistics.median_low(mids),
        high_ms=max(highs),
        method="replay",
        assumptions=[*usable[0].assumptions, _EACH_ALONE],
    )


def _combined(
    predictions: Sequence[Prediction],
    said: dict[str, Proposal],
    bases: Sequence[Basis],
    tried: Sequence[dict[str, Proposal]],
) -> Combined:
    best: dict[str, Prediction] = {}
    for p in predictions:
        usable = p.exact and p.gain.method == "replay" and (p.low_ns or 0) > 0
        if usable and not is_trifle(p.mid_ns or 0, p.step_ns, p.replay_error_frac):
            family = said[p.key].family
            if family not in best or (p.mid_ns or 0) > (best[family].mid_ns or 0):
                best[family] = p
    accepted = [p.key for p in predictions if p in best.values()]
    if not accepted:
        withheld = [b.replay.withheld for b in bases if not b.replay.predicts]
        none = "no change gains at the lower end of its band, more than a trifle"
        reason = f"predictions are withheld: {withheld[0]}" if withheld else none
        return Combined(accepted=[], gain=None, replay_error_frac=_worst(bases), reason=reason)

    def together(keys: Sequence[str]) -> Gain:
        return _over_ranks([_of_rank(b, s, keys, len(bases)) for b, s in zip(bases, tried, strict=True)])

    gain = together(accepted)
    failed = gain.method != "replay"
    tasks = sum(len(b.rebuilt.start_ns) * (1 if b.occasional is None else 2) for b in bases)
    sets, sets_reason = _sets(predictions, accepted, together, tasks)
    return Combined(
        accepted=accepted,
        gain=None if failed else gain,
        replay_error_frac=_worst(bases),
        reason=gain.assumptions[0] if failed else "",
        sets=sets,
        sets_reason=sets_reason,
    )


def _of_rank(basis: Basis, some: dict[str, Proposal], keys: Sequence[str], bases: int) -> Gain:
    """These together; where ranks stand alone, a change that does not apply to one is left out of it."""
    mine = [some[key] for key in keys if key in some]
    return basis.of([p for p in mine if bases == 1 or basis.of([p]).method == "replay"])


def _sets(
    predictions: Sequence[Prediction],
    accepted: Sequence[str],
    together: Callable[[Sequence[str]], Gain],
    tasks: int,
) -> tuple[list[GainOfSet], str]:
    """Every set of the changes that gain most, as many as the work allows; and why not of all accepted."""
    alone = {p.key: p for p in predictions if p.key in accepted}
    best = sorted(alone, key=lambda key: -(alone[key].mid_ns or 0))
    most = min(_SET_CHANGES, len(best))
    taken = next(n for n in range(most, -1, -1) if n < 2 or (2**n - 1 - n) * tasks <= _SET_TASKS_MAX)
    reason = ""
    if taken < most:
        reason = f"one replay has {tasks:,} tasks; all sets together are limited to {_SET_TASKS_MAX:,}"
    elif most < len(best):
        reason = f"sets were simulated for the {most} changes that gain most, out of {len(best)}"
    chosen = [key for key in accepted if key in best[:taken]]
    found = []
    for size in range(1, taken + 1):
        for keys in combinations(chosen, size):
            gain = alone[keys[0]].gain if size == 1 else together(keys)
            if gain.method == "replay":
                found.append(GainOfSet(keys=list(keys), gain=gain))
    return found, reason


def _nothing(reason: str) -> Gain:
    return Gain(low_ms=None, mid_ms=None, high_ms=None, method="none", assumptions=[reason])


def _step_ns(bases: Sequence[Basis]) -> int | None:
    steps = [b.window_ns // max(b.replay.steps, 1) for b in bases]
    return max(steps) or None


def _share(part_ns: int | None, step_ns: int | None) -> float | None:
    return None if part_ns is None or not step_ns else part_ns / step_ns


def _worst(bases: Sequence[Basis]) -> float | None:
    of: Callable[[Replay], float] = lambda r: max((r.error_frac or 0.0, r.worst_error_frac or 0.0), key=abs)  # noqa: E731
    return max((of(b.replay) for b in bases), key=abs)
