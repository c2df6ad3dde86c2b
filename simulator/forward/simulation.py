"""Simulates the tapes of all ranks and steps with the discrete-event engine: when each operation ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

import numpy as np
from numpy.typing import NDArray

from perfdoc.records import dataclass
from perfdoc.simulator.captures.groups import BACKWARD, Group
from perfdoc.simulator.engine import EdgeKind, GraphBuilder, TaskGraph, TaskKind, schedule
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.engine.schedule import topological_order
from perfdoc.simulator.forward.tape import Tape

LATENCY_NS = 2_203
"""From the return of a launching call to the earliest start of what it launched."""
BEHIND_NS = 911
"""Between two kernels of one stream."""
AWAITED_NS = 1_309
"""From the end of what a stream waits for to what follows the wait."""
RETURN_NS = 3_001
"""From the end of the device's work to the end of a call that waits for it."""
BETWEEN_STEPS_NS = 20_011
_NEVER = np.iinfo(np.int64).min


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Something that the host does beside what the tape says, in one step of one rank."""

    segment: int
    at_ns: int
    """Offset in the segment; what comes at or after it is later by `takes_ns`."""
    takes_ns: int
    name: str
    """Of its range."""


@dataclass(frozen=True, kw_only=True)
class RankWork:
    """What one rank runs, step after step."""

    rank: int
    stage: int
    tape: Tape
    groups: Mapping[str, Group]
    pauses: Sequence[Sequence[Pause]]
    """By step, in order of time."""
    duration_ns: I64
    """(steps, operations): of a communication from the last arrival on."""


@dataclass(frozen=True, kw_only=True)
class SimulatedRank:
    """When everything of a rank ran; true time, (steps, operations) unless said otherwise."""

    work: RankWork
    start_ns: I64
    """Of a communication its own arrival."""
    end_ns: I64
    segment_ns: I64
    """(steps, segments + 1): when each began on the host; the last one is the end of the step."""

    def host_ns(self, step: int, segment: I64, offset_ns: I64) -> I64:
        """True times of places of the host in a step."""
        segment, offset_ns = np.asarray(segment), np.asarray(offset_ns)
        found: I64 = (
            self.segment_ns[step][segment] + offset_ns + shift(self.work.pauses[step], segment, offset_ns)
        )
        return found


def shift(pauses: Sequence[Pause], segment: I64, offset_ns: I64) -> I64:
    """How much later places of the host are because of pauses."""
    later = np.zeros(np.shape(segment), np.int64)
    for p in pauses:
        later += np.where((segment == p.segment) & (offset_ns >= p.at_ns), p.takes_ns, 0)
    return later


@dataclass
class _Lines:
    """Edges and shape of one tape, in local numbers: ready 0..n, work n..2n, host 2n..2n+s."""

    tape: Tape
    source: NDArray[np.int64] = field(init=False)
    target: NDArray[np.int64] = field(init=False)
    lag: NDArray[np.int64] = field(init=False)
    kind: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        ops, n = self.tape.ops, len(self.tape.ops)
        self.count = n
        self.segment = np.array([o.segment for o in ops], np.int64)
        self.call_ns = np.array([o.call_ns for o in ops], np.int64)
        self.returned_ns = np.array([o.returned_ns for o in ops], np.int64)
        self.stream = np.array([o.stream for o in ops], np.int64)
        self.communicates = np.array([bool(o.group) for o in ops], bool)
        self.segments = len(self.tape.segment_ns)
        self.size = 2 * n + self.segments + 1
        rows: list[tuple[int, int, int, int]] = []
        last: dict[int, int] = {}
        for i, op in enumerate(ops):
            if op.stream in last:
                rows.append((n + last[op.stream], i, BEHIND_NS, EdgeKind.STREAM_ORDER))
            last[op.stream] = i
            if not op.group:
                rows.append((i, n + i, 0, EdgeKind.STREAM_ORDER))
        rows += [(n + awaited, i, AWAITED_NS, EdgeKind.EVENT) for i, awaited in self.tape.waits]
        rows += [(n + by, i, 0, EdgeKind.INFERRED) for i, by in self.tape.held]
        rows += [(n + i, 2 * n + self.segments, RETURN_NS, EdgeKind.HOST_SYNC) for i in last.values()]
        self.source, self.target, self.lag, self.kind = np.array(rows, np.int64).T


def simulate_ranks(works: Sequence[RankWork]) -> tuple[list[SimulatedRank], Mapping[str, list[Matched]]]:
    """Times of everything, by rank; and who arrived when at what (by group key)."""
    tapes = {id(w.tape): w.tape for w in works}
    lines = {key: _Lines(tape) for key, tape in tapes.items()}
    steps = len(works[0].pauses)
    base = np.zeros((len(works), steps), np.int64)
    at = 0
    for r, work in enumerate(works):
        for step in range(steps):
            base[r, step] = at
            at += lines[id(work.tape)].size
    members, count = _meetings(works, lines, base, at)
    total = at + count
    parts: list[tuple[I64, I64, I64, I64]] = []
    duration, kind = np.zeros(total, np.int64), np.full(total, int(TaskKind.MEETING), np.int8)
    rank, resource = np.full(total, -1, np.int64), np.full(total, -1, np.int64)
    for r, work in enumerate(works):
        line = lines[id(work.tape)]
        n = line.count
        launches = np.arange(n), 2 * n + line.segment
        for step in range(steps):
            first, pauses = base[r, step], work.pauses[step]
            later = shift(pauses, line.segment, line.call_ns)
            lag = line.returned_ns + later + LATENCY_NS
            parts.append((launches[1] + first, launches[0] + first, lag, np.full(n, EdgeKind.LAUNCH)))
            parts.append((line.source + first, line.target + first, line.lag, line.kind))
            whole = np.array(work.tape.segment_ns, np.int64)
            whole = whole + shift(pauses, np.arange(line.segments), whole) + RETURN_NS
            host = 2 * n + np.arange(line.segments) + first
            parts.append((host, host + 1, whole, np.full(line.segments, EdgeKind.HOST_ORDER)))
            if step:
                before = np.array([base[r, step] - 1])
                own = np.array([first + 2 * n])
                parts.append((before, own, np.array([BETWEEN_STEPS_NS]), np.array([EdgeKind.HOST_ORDER])))
            duration[first + n : first + 2 * n] = work.duration_ns[step]
            kind[first : first + n] = TaskKind.ARRIVAL
            kind[first + n : first + 2 * n] = np.where(
                line.communicates, TaskKind.COMMUNICATION, TaskKind.COMPUTE
            )
            kind[first + 2 * n : first + line.size] = TaskKind.HOST
            rank[first : first + line.size] = r
            resource[first : first + 2 * n] = np.tile(line.stream, 2)
    for ready, communication, meeting in (part[1:] for of in members.values() for part in of):
        zero, together = np.zeros(len(ready), np.int64), np.full(len(ready), EdgeKind.COLLECTIVE)
        parts += [(ready, meeting, zero, together), (meeting, communication, zero, together)]
    start, end = _run(parts, duration, kind, rank, resource)
    simulated = []
    for r, work in enumerate(works):
        line = lines[id(work.tape)]
        n = line.count
        tasks = base[r][:, None] + np.arange(line.size)
        simulated.append(
            SimulatedRank(
                work=work,
                start_ns=start[tasks[:, :n]],
                end_ns=end[tasks[:, n : 2 * n]],
                segment_ns=start[tasks[:, 2 * n :]],
            )
        )
    return simulated, _matched(members, start)


def _run(
    parts: Sequence[tuple[I64, I64, I64, I64]],
    duration: I64,
    kind: NDArray[np.int8],
    rank: I64,
    resource: I64,
) -> tuple[I64, I64]:
    """Number the tasks so that the engine can run them, and run them."""
    source, target, lag, of_kind = (np.concatenate([p[i] for p in parts]) for i in range(4))
    order = topological_order(len(duration), source, target)
    assert order is not None, "dependency cycle between ranks"
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    builder = GraphBuilder()
    builder.add_all(place[source], place[target], lag, of_kind)
    graph = TaskGraph(
        duration_ns=duration[order],
        release_ns=np.full(len(order), _NEVER) if not len(order) else _release(order, source, target),
        kind=kind[order],
        rank=rank[order],
        resource=resource[order],
        row=np.full(len(order), -1, np.int64),
        edges=builder.edges(len(order)),
    )
    times = schedule(graph)
    return times.start_ns[place], times.end_ns[place]


def _release(order: I64, source: I64, target: I64) -> I64:
    """What waits for nothing begins a millisecond after the session does."""
    free = np.bincount(target, minlength=len(order)) == 0
    return np.where(free[order], 1_000_000, _NEVER)


@dataclass(frozen=True, kw_only=True)
class Matched:
    """One collective or message of a group: who arrived when."""

    ranks: tuple[int, ...]
    start_ns: tuple[int, ...]


_Members = dict[str, list[tuple[int, I64, I64, I64]]]
"""By group key, of each rank and step: (rank, its arrivals, its communications, the meetings)."""


def _meetings(
    works: Sequence[RankWork], lines: Mapping[int, _Lines], base: I64, first: int
) -> tuple[_Members, int]:
    """Who meets in which task, numbered from `first` on, and how many meetings there are. Collectives meet by
    their number on the communicator, messages by theirs between two stages."""
    members: _Members = {}
    known: dict[tuple[object, ...], int] = {}
    count = 0
    for r, work in enumerate(works):
        channels: dict[tuple[object, ...], list[int]] = {}
        for i, op in enumerate(work.tape.ops):
            if op.group and op.group not in ("pp", BACKWARD):
                channels.setdefault((op.group, work.groups[op.group].communicator), []).append(i)
        for m in work.tape.messages:
            between = ("pp", work.groups["pp"].ranks, m.sender, m.receiver, m.forward)
            channels.setdefault(between, []).append(m.op)
        for step in range(base.shape[1]):
            for channel, ops in channels.items():
                if (key := (*channel, step)) not in known:
                    known[key] = first + count
                    count += len(ops)
                ready = base[r, step] + np.array(ops, np.int64)
                communication = ready + lines[id(work.tape)].count
                meeting = known[key] + np.arange(len(ops))
                members.setdefault(str(channel[0]), []).append((work.rank, ready, communication, meeting))
    return members, count


def _matched(members: _Members, start: I64) -> dict[str, list[Matched]]:
    """By group key, in no order."""
    found = {}
    for group, parts in members.items():
        arrivals: dict[int, list[tuple[int, int]]] = {}
        for rank, ready, _, meeting in parts:
            for number, at in zip(meeting.tolist(), start[ready].tolist(), strict=True):
                arrivals.setdefault(number, []).append((rank, at))
        found[group] = [
            Matched(ranks=tuple(r for r, _ in some), start_ns=tuple(t for _, t in some))
            for some in arrivals.values()
        ]
    return found
