"""A pipeline's windows, one for each step: who was idle in them, and the critical path through each.

The path is walked backwards from the end of the last pass. Where a stage stood still until a message came,
the path goes to whoever joined that message last, and from joining to its end it is transfer; everything else
on the path is a stage's own work. The parts telescope: they sum to the window exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.pipeline.layout import Positions
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.analyzers.pipeline.transfers import (
    StageMessages,
    common_steps,
    match_messages,
    messages_by_step,
    pair_messages,
)
from perfdoc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class CriticalPath:
    """Parts of a window in ns; own + transfer + handover + unmatched = window."""

    own_ns: tuple[int, ...]
    """By stage."""
    transfer_ns: int
    handover_ns: int
    """Short gaps on either side of messages."""
    unmatched_ns: int
    """Waiting for messages whose other side was not found, less what the fastest of their size took."""
    messages: int
    """How many are on the path."""


def critical_path(
    stages: Sequence[StageMessages],
    start_ns: int,
    end_ns: int,
    last_stage: int,
    fastest_ns: Mapping[int, int],
) -> CriticalPath:
    """Walk from `end_ns` on `last_stage` back to `start_ns`. fastest_ns: by bytes of a message."""
    own = [0] * len(stages)
    transfer = handover = unmatched = messages = 0
    awaited = [_awaited(m, start_ns) for m in stages]
    stage, at = last_stage, end_ns
    while at > start_ns:
        row = _last_before(awaited[stage], at)
        if row is None:
            break
        messages += 1
        m = stages[stage]
        arrived = m.end_ns[row]
        gap = min(m.gap_after_ns[row], at - arrived)
        own[stage] += at - arrived - gap
        handover += gap
        began = max(m.wait_ns[row], start_ns)
        joined = [(stages[s].start_ns[r], s, r) for s, r in m.partners[row]]
        latest, other, other_row = max(joined, default=(began, stage, row))
        if latest > began:
            at = min(latest, arrived)
            transfer += arrived - at
            stage, row = other, other_row
        else:
            took = arrived - began
            if not joined:
                pure = min(took, fastest_ns.get(m.bytes[row], took))
                unmatched += took - pure
                took = pure
            transfer += took
            at = began
        # The gap before a kernel belongs to it where compute ran dry before, not where it ran on beside it.
        if at == stages[stage].start_ns[row]:
            gap = min(stages[stage].gap_before_ns[row], at - start_ns)
            handover += gap
            at -= gap
    own[stage] += max(0, at - start_ns)
    return CriticalPath(
        own_ns=tuple(own),
        transfer_ns=transfer,
        handover_ns=handover,
        unmatched_ns=unmatched,
        messages=messages,
    )


def _awaited(m: StageMessages, start_ns: int) -> list[tuple[int, int]]:
    """(end, row) of the messages that the stage stood still for, by end."""
    return [(e, i) for i, (w, e) in enumerate(zip(m.wait_ns, m.end_ns, strict=True)) if e > max(w, start_ns)]


def _last_before(awaited: list[tuple[int, int]], at: int) -> int | None:
    """The last message that had ended by then. What is passed is dropped: the path only goes back."""
    while awaited and awaited[-1][0] > at:
        awaited.pop()
    return awaited.pop()[1] if awaited else None


class CommonTime(Protocol):
    """Clocks of all ranks put on one; `clocks.ClockAlignment` is one of these."""

    def resolution_between(self, members: Sequence[int]) -> int | None:
        """Differences between some ranks, by position, up to this are within clock error; None where their
        clocks were not compared."""

    def aligned(self, member: int, time_ns: I64) -> I64:
        """Times of a rank's capture on the common clock; `member` is its position among the ranks."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """One pipeline in one step, from the start of its first pass to the end of its last one."""

    positions: Positions
    step: str
    duration_ns: int
    idle_ns: tuple[int, ...]
    """By stage: no compute, and waiting for a message, or before its first pass, or after its last one."""
    compute_ns: tuple[int, ...]
    step_ns: tuple[int, ...]
    """By stage, the length of the whole step."""
    path: CriticalPath
    messages: int
    impossible_ns: int
    """By how much messages end before they are sent: clocks are at least so far apart."""
    matched: int
    """Messages (rows of both sides) of which the other side was found."""

    def own_ns(self, stage: int) -> int:
        """What is not pipeline idle."""
        return self.duration_ns - self.idle_ns[stage]


def find_windows(
    ranks: Sequence[PipelineRank],
    members: Positions,
    common: CommonTime | None,
    resolution_ns: int,
    fastest_ns: Mapping[int, int],
) -> list[Window]:
    """The windows of a pipeline in the steps that all its stages have.

    common: None where all of them share a clock. resolution_ns: how far they may be apart on it.
    """
    mine = [ranks[i] for i in members]

    def at(stage: int, time_ns: I64) -> I64:
        return time_ns if common is None else common.aligned(members[stage], time_ns)

    times = [
        (at(s, r.messages.start_ns), at(s, r.messages.end_ns), at(s, r.messages.wait_ns))
        for s, r in enumerate(mine)
    ]
    shared = common_steps(mine)
    pairs = pair_messages(mine, [steps for _, steps in shared])
    by_step = np.array([steps for _, steps in shared], np.int64).reshape(-1, len(mine)).T
    phases = [(r.phase_start_ns[i], r.phase_end_ns[i]) for r, i in zip(mine, by_step, strict=True)]
    begin = np.array([at(s, start) for s, (start, _) in enumerate(phases)])
    end = np.array([at(s, end) for s, (_, end) in enumerate(phases)])
    first, last = begin.min(axis=0), end.max(axis=0)
    idle = np.array(
        [
            r.idle_ns[i]
            + empty_ns(r, phases[s][0] - (begin[s] - first), phases[s][0])
            + empty_ns(r, phases[s][1], phases[s][1] + (last - end[s]))
            for s, (r, i) in enumerate(zip(mine, by_step, strict=True))
        ]
    )
    idle = np.minimum(idle, last - first)
    windows = []
    by_stage = [messages_by_step(*of) for of in zip(mine, by_step.tolist(), times, strict=True)]
    for number, ((name, steps), *messages) in enumerate(zip(shared, *by_stage, strict=True)):
        of_step = pairs.take(pairs.window == number) if len(pairs) else pairs
        impossible = match_messages(messages, of_step, 2 * resolution_ns)
        windows.append(
            Window(
                positions=members,
                step=name,
                duration_ns=int(last[number] - first[number]),
                idle_ns=tuple(idle[:, number].tolist()),
                compute_ns=tuple(int(r.compute_ns[i]) for r, i in zip(mine, steps, strict=True)),
                step_ns=tuple(
                    int(r.step_end_ns[i] - r.step_start_ns[i]) for r, i in zip(mine, steps, strict=True)
                ),
                path=critical_path(
                    *(messages, int(first[number]), int(last[number])),
                    *(int(np.argmax(end[:, number])), fastest_ns),
                ),
                impossible_ns=impossible,
                messages=sum(len(m.row) for m in messages),
                matched=sum(bool(p) for m in messages for p in m.partners),
            )
        )
    return windows


def empty_ns(rank: PipelineRank, start_ns: Any, end_ns: Any) -> I64:
    """Time of each [start, end), which lies outside of the rank's phase, without compute."""
    empty: I64 = end_ns - start_ns - rank.outside.covered_within(start_ns, end_ns)
    return empty


def fastest_by_bytes(ranks: Sequence[PipelineRank]) -> dict[int, int]:
    """The shortest duration of a message of each size over all ranks, zero lengths aside: what a transfer
    takes if neither side waits for the other."""
    size = np.concatenate([r.messages.bytes for r in ranks])
    duration = np.concatenate([r.messages.end_ns - r.messages.start_ns for r in ranks])
    sizes, code = np.unique(size[duration > 0], return_inverse=True)
    least = np.full(len(sizes), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(least, code.ravel(), duration[duration > 0])
    return dict(zip(sizes.tolist(), least.tolist(), strict=True))
