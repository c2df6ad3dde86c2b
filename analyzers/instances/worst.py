"""An instance of the whole job: where it lies, and what its own rank and the others did around it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.instances.device import Instance
from perfdoc.analyzers.instances.rough import RankParts, rough_tracks
from perfdoc.analyzers.ledger.steps import distinct_names
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.analyzers.timeline.rank import track_of
from perfdoc.results.figures import brief
from perfdoc.results.rules import WorstInstance
from perfdoc.results.timeline import TimelineRank


def of_spot(spot: Spot, late: str = "", behind_ns: int = 0) -> str:
    """An instance on one device. late: label of the last rank to join the collective, behind_ns after this
    one."""
    took, cost = brief(spot.end_ns - spot.start_ns), brief(spot.cost_ns)
    part = "all" if cost == took else cost
    match spot.key.partition("."):
        case ("exposed", _, _):
            waited = f"; {late} joined {brief(behind_ns)} after this rank" if late else ""
            return f"{spot.name} took {took}, {part} of it exposed{waited}."
        case ("exposed_memcpy", _, _):
            return f"Copies took {took}, {part} of it with no compute or communication running."
        case ("contention", _, _):
            during = f"This run took {took} during communication"
            return f"{during}, {cost} longer than the median of the same kernel alone."
        case (_, _, cause):
            return f"Idle for {cost if cost == took else f'{cost} of {took}'}{_idle(cause, spot.name)}"


def _idle(cause: str, name: str) -> str:
    if cause == "host":
        return f": the next kernel was not launched yet{f' ({name})' if name else ''}."
    if cause == "gc":
        return " during garbage collection on the host."
    if cause == "data":
        return f" in a data-loader stall ({name})." if name else " between two steps: no CUDA call is made."
    return ": the next kernel was queued, or its launch is unknown."


def of_late_rank(label: str, collective: str, *, waited_ns: int, behind_ns: int) -> str:
    """A collective that one rank joined last. waited_ns: wait of the first rank by then."""
    return (
        f"{_opening(label)} joined this {collective} {brief(behind_ns)} after all other ranks; the first had "
        f"waited {brief(waited_ns)} by then."
    )


def of_pass_gap(label: str, between: str, length_ns: int) -> str:
    """The longest gap between passes."""
    ran = f"{_opening(label)} ran no pass for {brief(length_ns)} between {between}"
    return f"{ran}: the longest gap of this step."


def _opening(label: str) -> str:
    return label[:1].upper() + label[1:]


MAX_PEERS = 5
"""Other ranks that are drawn beside an instance's own."""
_ALL_BARS = 200
_TRACKS = 3
"""Of a rank, about: the ledger, passes, and communication of one dimension."""


@dataclass(frozen=True, kw_only=True)
class _Late:
    """The rank that came last to a collective."""

    member: int
    behind_ns: int
    """After the rank that is looked at."""
    resolution_ns: int
    """Of these two ranks' clocks."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """All ranks of a job, by position, and how their clocks are."""

    parts: Sequence[RankParts]
    matches: Matches
    clocks: ClockAlignment

    def of_device(self, position: int, instance: Instance) -> WorstInstance:
        """An instance of one rank; of a matched collective, with the ranks that it was waiting with."""
        part, spot = self.parts[position], instance.spot
        own = TimelineRank(
            rank=part.rank,
            label=part.label,
            step=instance.step,
            start_ns=instance.first_ns,
            duration_ns=instance.last_ns - instance.first_ns,
            offset_ns=0,
            aligned=True,
            tracks=[
                track_of(key.partition(" ")[0], track.segments, track.names, instance.first_ns)
                for key, track in instance.tracks.items()
            ],
        )
        late = self._last_to_come(position, spot) if spot.key.startswith("exposed.") else None
        last = () if late is None else (late.member,)
        others = self.beside(position, instance.first_ns, instance.last_ns, last)
        return WorstInstance(
            rank=part.rank,
            label=part.label,
            step=instance.step,
            name=spot.name,
            says=of_spot(
                spot, "" if late is None else self.parts[late.member].label, late.behind_ns if late else 0
            ),
            start_ns=spot.start_ns,
            end_ns=spot.end_ns,
            cost_ns=spot.cost_ns,
            ranks=[own, *others],
            resolution_ns=late.resolution_ns if late is not None and others else None,
        )

    def _last_to_come(self, position: int, spot: Spot) -> _Late | None:
        """Who came last to this collective, where the clocks tell that it came after this rank."""
        collective = self._collective_at(position, spot.start_ns, spot.end_ns)
        if collective is None or not bool(self.matches.is_synchronising[collective]):
            return None
        arrivals = self._arrivals(collective)
        last = max(arrivals, key=lambda m: (arrivals[m], -m))
        behind = arrivals[last] - arrivals[position]
        open_ns = self.clocks.resolution_between([position, last]) if last != position else None
        if open_ns is None or behind <= open_ns:
            return None
        return _Late(member=last, behind_ns=behind, resolution_ns=open_ns)

    def _collective_at(self, position: int, start_ns: int, end_ns: int) -> int | None:
        """The matched collective that is this communication of a rank."""
        calls = self.parts[position].calls
        rows = np.flatnonzero((calls.start_ns == start_ns) & (calls.end_ns == end_ns))
        if len(rows) != 1 or position >= len(self.matches.of_member):
            return None
        mine = self.matches.of_member[position]
        at = mine[self.matches.row[mine] == rows[0]]
        return int(self.matches.collective[at[0]]) if len(at) else None

    def _arrivals(self, collective: int) -> dict[int, int]:
        """When each member came, on the common clock."""
        rows = range(int(self.matches.first[collective]), int(self.matches.first[collective + 1]))
        return {
            (m := int(self.matches.member[row])): self._common(
                m, int(self.parts[m].calls.start_ns[self.matches.row[row]])
            )
            for row in rows
        }

    def late_arrival(self, collective: int, late: int) -> WorstInstance | None:
        """One collective to which one member came late, over the members that waited longest for it.

        From when the first of them came to when the late one did, on the late one's clock. None where no
        other member's clock was compared with it.
        """
        component = self.clocks.clocks[late].component
        arrivals = {
            m: at
            for m, at in self._arrivals(collective).items()
            if self.clocks.clocks[m].component == component
        }
        came = arrivals.get(late)
        if came is None or len(arrivals) < 2:
            return None
        waiting = sorted((m for m in arrivals if m != late), key=lambda m: (arrivals[m], m))
        first, second = arrivals[waiting[0]], arrivals[waiting[-1]]
        rows = range(int(self.matches.first[collective]), int(self.matches.first[collective + 1]))
        ends = [
            self._common(m, int(self.parts[m].calls.end_ns[self.matches.row[row]]))
            for row in rows
            if (m := int(self.matches.member[row])) in (late, waiting[0])
        ]
        pad = max(50_000, min(came - first, 5_000_000))
        start, end = self._own(late, first), self._own(late, came)
        low, high = start - pad, self._own(late, max(came, *ends)) + pad // 2
        part = self.parts[late]
        operation = self.matches.operations[int(self.matches.operation[collective])]
        others = self.beside(late, low, high, waiting)
        return WorstInstance(
            rank=part.rank,
            label=part.label,
            step=_step_of(part.pipeline, start),
            name=operation,
            says=of_late_rank(part.label, operation, waited_ns=end - start, behind_ns=came - second),
            start_ns=start,
            end_ns=end,
            cost_ns=came - second,
            ranks=[self._rank(late, low, high, _bars(1 + len(others))), *others],
            resolution_ns=self.clocks.resolution_between([late, *waiting[:MAX_PEERS]]),
        )

    def pass_gap(self, pipelines: Sequence[Sequence[int]], step: str = "") -> WorstInstance | None:
        """The longest stretch in which a stage ran no pass between two passes of one step, with the other
        stages of its pipeline. step: name of the one to look at; empty: all of them."""
        best: tuple[int, int, int, int] | None = None
        for at, members in enumerate(pipelines):
            for position in members:
                gap = _longest_gap(self.parts[position].pipeline, step)
                if gap is not None and (best is None or gap[0] > best[0]):
                    best = (gap[0], at, position, gap[1])
        if best is None:
            return None
        length, at, position, row = best
        part, passes = self.parts[position], self.parts[position].pipeline.passes
        start, end = int(passes.end_ns[row]), int(passes.start_ns[row + 1])
        pad = max(50_000, min(length, 20_000_000))
        low, high = start - pad, end + pad
        others = [p for p in pipelines[at] if p != position]
        near = sorted(
            others, key=lambda p: abs(list(pipelines[at]).index(p) - list(pipelines[at]).index(position))
        )
        kept = sorted(near[:MAX_PEERS], key=list(pipelines[at]).index)
        between = f"{_pass_words(part.pipeline, row)} and {_pass_words(part.pipeline, row + 1)}"
        return WorstInstance(
            rank=part.rank,
            label=part.label,
            step=part.pipeline.step_names[int(passes.step[row])],
            name=between,
            says=of_pass_gap(part.label, between, length),
            start_ns=start,
            end_ns=end,
            cost_ns=length,
            ranks=[
                self._rank(position, low, high, _bars(1 + len(kept))),
                *self.beside(position, low, high, kept),
            ],
            resolution_ns=self.clocks.resolution_between([position, *kept]) if kept else None,
        )

    def beside(self, position: int, low_ns: int, high_ns: int, others: Sequence[int]) -> list[TimelineRank]:
        """Other ranks in [low, high) of the clock of `position`; those on clocks that were not compared with
        it are left out."""
        component = self.clocks.clocks[position].component
        kept = [p for p in others if self.clocks.clocks[p].component == component][:MAX_PEERS]
        begin = self._common(position, low_ns)
        bars = _bars(1 + len(kept))
        return [self._rank(p, at := self._own(p, begin), at + high_ns - low_ns, bars) for p in kept]

    def _rank(self, position: int, low_ns: int, high_ns: int, bars: int) -> TimelineRank:
        part = self.parts[position]
        return TimelineRank(
            rank=part.rank,
            label=part.label,
            step=_step_of(part.pipeline, low_ns),
            start_ns=low_ns,
            duration_ns=high_ns - low_ns,
            offset_ns=0,
            aligned=True,
            tracks=rough_tracks(part, low_ns, high_ns, bars),
        )

    def _common(self, position: int, time_ns: int) -> int:
        return int(self.clocks.aligned(position, np.array([time_ns], np.int64))[0])

    def _own(self, position: int, common_ns: int) -> int:
        """The inverse: by steps, since clocks run apart by millionths."""
        time = common_ns
        for _ in range(4):
            time += common_ns - self._common(position, time)
        return time


def _bars(ranks: int) -> int:
    """Of each track, where so many ranks are drawn."""
    return max(8, _ALL_BARS // (_TRACKS * ranks))


def _longest_gap(pipeline: PipelineRank, step: str) -> tuple[int, int] | None:
    """(length, row of the pass before it)."""
    passes = pipeline.passes
    if len(passes) < 2:
        return None
    looked = passes.step[1:] == passes.step[:-1]
    if step:
        looked &= np.array([name == step for name in distinct_names(pipeline.step_names)])[passes.step[1:]]
    length = np.where(looked, passes.start_ns[1:] - passes.end_ns[:-1], 0)
    at = int(length.argmax())
    return (int(length[at]), at) if length[at] > 0 else None


def _pass_words(pipeline: PipelineRank, row: int) -> str:
    passes = pipeline.passes
    way = "forward" if passes.is_forward[row] else "backward"
    number = int(passes.micro_batch[row])
    return f"the {way} pass of micro-batch {number}" if number >= 0 else f"a {way} pass"


def _step_of(pipeline: PipelineRank, time_ns: int) -> str:
    at = int(np.searchsorted(pipeline.step_start_ns, time_ns, "right")) - 1
    return pipeline.step_names[at] if at >= 0 and time_ns < pipeline.step_end_ns[at] else ""
