"""What changes are predicted from: a replay, its tasks, and how often the run collects garbage.

A run that collects at every 12th step is profiled for three steps, and one of them collects: that window
holds four times what a step of the run does. So a window stands for two: unedited, and calm, without
collections. A step of the run is so much of the one and the rest of the other as its step log says: 1 in 12
against 1 in 3 is a quarter. What a change gains is that mean of what it gains in either, alone and in sets
alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from perfdoc.analyzers.steps.figures import warmup_steps
from perfdoc.analyzers.steps.log import LoggedSteps, of_the_job
from perfdoc.records import dataclass
from perfdoc.results.ranks import Ledger
from perfdoc.results.replay import Gain, Replay
from perfdoc.simulator.engine import schedule
from perfdoc.simulator.replay.edits.edit import Proposal
from perfdoc.simulator.replay.edits.host import without_host_time
from perfdoc.simulator.replay.predict import mean_over_replayed, predict
from perfdoc.simulator.replay.rebuilt import Rebuilt

FREE_STEPS_MIN = 3
"""Fewer unprofiled steps are not used."""
RARE_STEPS = 100
"""Between collections that all ranks make at the same step: what settings leave of them."""
NO_GAIN = Gain(low_ms=0.0, mid_ms=0.0, high_ms=0.0, method="replay", assumptions=[])


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Of so many steps so many collect, on any rank that is looked at."""

    collect: int
    steps: int


@dataclass(frozen=True, kw_only=True)
class AsOften:
    """How much of the collections that a step of the window holds a step of the run does."""

    factor: float
    said: str
    """What it is based on."""


@dataclass(frozen=True, kw_only=True)
class Occasional:
    """The window without collections, and how it is weighed."""

    calm: Rebuilt
    calm_ns: int
    """Length of its replay."""
    least: float
    """Weight of the window as it is, had one collection fewer been seen: where a stretch of steps begins
    decides of one."""
    usual: float
    """Its weight. Over 1 where the window holds fewer than the run does."""
    stays: float
    """Weight of what RARE_STEPS leave; 0 where no log tells how often the run collects."""
    often: AsOften | None
    """None where there is no log."""
    assumptions: tuple[str, ...]

    def mean(self, whole: Gain, others: Gain, calm: Gain) -> Gain:
        """Of a set of changes, what it gains where collections are as frequent as in the run.

        whole: of all of them in the window as it is. others, calm: of those but for collections, in the
        window as it is and in the calm one; of a set that leaves collections alone `others` is `whole`.

        1.2 and 0 without collections, 1 in 12 steps, and 1 in 3 of the window: 1.2 x (1/4 - 3/100) = 0.264.
        """
        at = {weight: self._weighed(weight, whole, others, calm) for weight in (self.least, self.usual)}
        return replace(
            whole,
            low_ms=round(min(low for low, _, _ in at.values()), 6),
            mid_ms=round(at[self.usual][1], 6),
            high_ms=round(max(high for _, _, high in at.values()), 6),
        )

    def _weighed(self, weight: float, whole: Gain, others: Gain, calm: Gain) -> tuple[float, float, float]:
        stays = min(self.stays, weight)
        parts = ((weight - stays, whole), (stays, others), (1 - weight, calm))
        low = sum(w * ((g.low_ms if w >= 0 else g.high_ms) or 0.0) for w, g in parts)
        high = sum(w * ((g.high_ms if w >= 0 else g.low_ms) or 0.0) for w, g in parts)
        return low, sum(w * (g.mid_ms or 0.0) for w, g in parts), high


def collections_of(logs: Mapping[int, LoggedSteps]) -> tuple[Counted | None, Counted | None]:
    """(steps of the job in which any rank collects, the same of one rank, over all ranks), of all steps that
    the logs hold after warm-up. Those of the profiler count as well: left out, the one collection that
    the window happens to hold would be missing in what it is held against. None, None without collections or
    steps that the profiler left alone."""
    job = of_the_job(logs)
    if job is None:
        return None, None
    free = job.take(job.unprofiled)
    if len(free.step) < FREE_STEPS_MIN:
        return None, None
    first = int(free.step[warmup_steps(free.duration_ns) or 0])
    each = [log.garbage_ns[(log.step >= first) & (log.garbage_ns >= 0)] for log in logs.values()]
    whole = job.garbage_ns[(job.step >= first) & (job.garbage_ns >= 0)]
    if not whole.any():
        return None, None
    ranks = np.concatenate(each)
    return (
        Counted(collect=int((whole > 0).sum()), steps=len(whole)),
        Counted(collect=int((ranks > 0).sum()), steps=len(ranks)),
    )


def in_window(rebuilt: Rebuilt) -> Counted:
    """Steps of the window in which any of its ranks collects: a collection belongs to where it begins."""
    seen = np.zeros(rebuilt.steps, bool)
    for frame, first in zip(rebuilt.ranks, rebuilt.first_steps.tolist(), strict=True):
        begin = frame.host["gc"].start_ns
        begin = begin[(begin >= frame.window_start_ns) & (begin < frame.window_end_ns)]
        at = np.searchsorted(np.array(frame.step_starts_ns, np.int64), begin, "right") - 1
        at = at[at >= 0] + first
        seen[at[at < len(seen)]] = True
    return Counted(collect=int(seen.sum()), steps=len(seen))


def occasional(rebuilt: Rebuilt, logged: Counted | None) -> Occasional | None:
    """How the window is to be weighed; None where it holds no collection, is not made of steps, or where
    every one of its steps collects and no log says that others do not."""
    window = in_window(rebuilt)
    if not window.collect or all(not r.host_left_frac.get("gc", 1.0) for r in rebuilt.ranks):
        return None
    if logged is None and window.collect == window.steps:
        return None
    calm = without_host_time("gc").apply(rebuilt)
    shown = window if logged is None else logged
    usual = shown.collect / shown.steps * window.steps / window.collect
    fewer = 1.0 if shown.collect == shown.steps else 1 - 1 / shown.collect
    ours = f"{window.collect} of {window.steps} steps of the window"
    if logged is None:
        said = f"garbage collection in {ours}; no step log gives its frequency: "
        said += "the lower end of the band assumes one collection fewer"
    else:
        said = f"collected in {logged.collect} of {logged.steps} logged steps, in {window.collect} of "
        said += f"{window.steps} captured"
    return Occasional(
        calm=calm,
        calm_ns=calm.span(schedule(calm.graph).end_ns),
        least=usual * fewer,
        usual=usual,
        stays=0.0 if logged is None else window.steps / window.collect / RARE_STEPS,
        often=None if logged is None else AsOften(factor=usual, said=said),
        assumptions=(said if logged is None else f"garbage {said}: the log's frequency is used",),
    )


STAYS = f"one collection every {RARE_STEPS} steps remains"


def as_often(found: Occasional, gain_of: Callable[[bool, bool], Gain], *, collects_less: bool) -> Gain:
    """The gain of a set of changes. gain_of(calm, without those of collections) replays it; collects_less:
    whether it has any of collections."""
    whole = gain_of(False, False)
    if whole.method == "ceiling" and collects_less and whole.high_ms is not None:
        whole = replace(whole, high_ms=whole.high_ms * max(found.usual, found.least))
    if whole.method != "replay":
        return whole
    others = gain_of(False, True) if collects_less else whole
    calm = gain_of(True, True)
    # What does not apply to a window without collections gains nothing in it.
    gain = found.mean(whole, *(g if g.method == "replay" else NO_GAIN for g in (others, calm)))
    stays = [STAYS] if collects_less and found.stays else []
    return replace(gain, assumptions=[*gain.assumptions, *found.assumptions, *stays])


@dataclass(frozen=True, kw_only=True)
class Basis:
    """One replay that changes are predicted from, and its tasks."""

    rebuilt: Rebuilt
    replay: Replay
    ledgers: Sequence[Ledger]
    """Of its ranks."""
    length_ns: int | None = None
    """Of the replay of `rebuilt`, where that is not the window as it was measured."""
    assumptions: Sequence[str] = ()
    """Of all predictions from it."""
    occasional: Occasional | None = None
    """Where the window holds more or fewer collections than the run does."""
    unprofiled_ns: int | None = None
    """Length of the window without the profiler, where the step log tells."""
    known: dict[tuple[bool, tuple[str, ...]], Gain] = field(default_factory=dict, compare=False)
    """What was replayed already, by window and keys."""

    @property
    def window_ns(self) -> int:
        """What gains are a part of: the window as it was measured, or would be without the profiler, with
        collections as often as the run makes them. Of a part, as many mean steps."""
        length = self.replay.measured_ns or 0 if self.unprofiled_ns is None else self.unprofiled_ns
        length = round(length * mean_over_replayed(self.ledgers))
        if self.occasional is None:
            return length
        before = (self.replay.replayed_ns or 0) if self.length_ns is None else self.length_ns
        return round(length - (1 - self.occasional.usual) * (before - self.occasional.calm_ns))

    def of(self, chosen: Iterable[Proposal]) -> Gain:
        """The gain of these together."""
        every = list(chosen)
        if self.occasional is None:
            return self._replayed(every, calm=False)
        others = [p for p in every if p.family != "gc"]
        return as_often(
            self.occasional,
            lambda calm, without: self._replayed(others if without else every, calm=calm),
            collects_less=len(others) < len(every),
        )

    def _replayed(self, chosen: Sequence[Proposal], *, calm: bool) -> Gain:
        """In the window as it is, or in the one without collections."""
        key = calm, tuple(p.key for p in chosen)
        if key not in self.known:
            rebuilt, before_ns = self.rebuilt, self.length_ns
            if calm and self.occasional is not None:
                rebuilt, before_ns = self.occasional.calm, self.occasional.calm_ns
            edits = [p.edit for p in chosen if p.edit is not None]
            gain = (
                predict(rebuilt, self.replay, edits, self.ledgers, before_ns=before_ns) if edits else NO_GAIN
            )
            self.known[key] = replace(gain, assumptions=[*gain.assumptions, *self.assumptions])
        return self.known[key]
