"""What changes are predicted from: a replay, its tasks, and how often the run does what the window holds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from perfdoc.analyzers.ledger.window import Ledger
from perfdoc.simulator.replay.occasional import NO_GAIN, Occasional, as_often
from perfdoc.simulator.replay.predict import Gain, predict
from perfdoc.simulator.replay.proposals import Proposal
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.simulator.replay.replay import Replay


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
        collections as often as the run makes them."""
        length = self.replay.measured_ns or 0 if self.unprofiled_ns is None else self.unprofiled_ns
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
