"""The critical path of a pipeline through one step: what its length is made of.

Walked backwards from the end of the last pass. Where a stage stood still until a message came, the path goes
to whoever joined that message last, and from joining to its end it is transfer; everything else on the path
is a stage's own work. The parts telescope: they sum to the window exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfdoc.analyzers.pipeline.pipeline_match import StageMessages


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
