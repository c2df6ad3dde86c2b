"""The worst instance of the whole job: where it lies, and who came last to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfdoc.analyzers.base.spot import Spot
from perfdoc.analyzers.clocks.alignment import ClockAlignment
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import Matches
from perfdoc.analyzers.instances.spots import Instance
from perfdoc.analyzers.ledger.steps import distinct_names
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.records import dataclass
from perfdoc.results.figures import brief
from perfdoc.results.names import opening
from perfdoc.results.rules import WorstInstance


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
        f"{opening(label)} joined this {collective} {brief(behind_ns)} after all other ranks; the first had "
        f"waited {brief(waited_ns)} by then."
    )


def of_pass_gap(label: str, between: str, length_ns: int) -> str:
    """The longest gap between passes."""
    ran = f"{opening(label)} ran no pass for {brief(length_ns)} between {between}"
    return f"{ran}: the longest gap of this step."


@dataclass(frozen=True, kw_only=True)
class _Late:
    """The rank that came last to a collective."""

    member: int
    behind_ns: int
    """After the rank that is looked at."""


@dataclass(frozen=True, kw_only=True)
class RankParts:
    """What is known of one rank when all are compared."""

    rank: int | None
    label: str
    calls: CollectiveCalls
    pipeline: PipelineRank


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """All ranks of a job, by position, and how their clocks are."""

    parts: Sequence[RankParts]
    matches: Matches
    clocks: ClockAlignment

    def of_device(self, position: int, instance: Instance) -> WorstInstance:
        """An instance of one rank."""
        part, spot = self.parts[position], instance.spot
        late = self._last_to_come(position, spot) if spot.key.startswith("exposed.") else None
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
        return _Late(member=last, behind_ns=behind)

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
        start, end = self._own(late, first), self._own(late, came)
        part = self.parts[late]
        operation = self.matches.operations[int(self.matches.operation[collective])]
        return WorstInstance(
            rank=part.rank,
            label=part.label,
            step=_step_of(part.pipeline, start),
            name=operation,
            says=of_late_rank(part.label, operation, waited_ns=end - start, behind_ns=came - second),
            start_ns=start,
            end_ns=end,
            cost_ns=came - second,
        )

    def pass_gap(self, pipelines: Sequence[Sequence[int]], step: str = "") -> WorstInstance | None:
        """The longest stretch in which a stage ran no pass between two passes of one step. step: name of the
        one to look at; empty: all of them."""
        best: tuple[int, int, int] | None = None
        for position in (p for members in pipelines for p in members):
            gap = _longest_gap(self.parts[position].pipeline, step)
            if gap is not None and (best is None or gap[0] > best[0]):
                best = (gap[0], position, gap[1])
        if best is None:
            return None
        length, position, row = best
        part, passes = self.parts[position], self.parts[position].pipeline.passes
        between = f"{_pass_words(part.pipeline, row)} and {_pass_words(part.pipeline, row + 1)}"
        return WorstInstance(
            rank=part.rank,
            label=part.label,
            step=part.pipeline.step_names[int(passes.step[row])],
            name=between,
            says=of_pass_gap(part.label, between, length),
            start_ns=int(passes.end_ns[row]),
            end_ns=int(passes.start_ns[row + 1]),
            cost_ns=length,
        )

    def _common(self, position: int, time_ns: int) -> int:
        return int(self.clocks.aligned(position, np.array([time_ns], np.int64))[0])

    def _own(self, position: int, common_ns: int) -> int:
        """The inverse: by steps, since clocks run apart by millionths."""
        time = common_ns
        for _ in range(4):
            time += common_ns - self._common(position, time)
        return time


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
