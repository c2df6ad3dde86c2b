"""What is drawn of a rank whose trace is closed: its outline, its passes and its communication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64, owners_by_last_end
from perfdoc.analyzers.calls.collective_calls import CollectiveCalls
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.instances.excerpt import LIMITS
from perfdoc.analyzers.instances.outline import Outline
from perfdoc.analyzers.pipeline.pipeline_rank import PipelineRank
from perfdoc.analyzers.steps.step_ledgers import LEAVES
from perfdoc.analyzers.timeline.job_timeline import TimelineTrack
from perfdoc.analyzers.timeline.paint import NOTHING, Layer, paint
from perfdoc.analyzers.timeline.pool import Segments, drawn, pool, segments_of
from perfdoc.analyzers.timeline.rank_timeline import CODES

_FORWARD, _BACKWARD = 0, 1


@dataclass(frozen=True, kw_only=True)
class RankParts:
    """What is kept of one rank that others' instances can be drawn with."""

    rank: int | None
    label: str
    outline: Outline
    calls: CollectiveCalls
    pipeline: PipelineRank


def rough_tracks(part: RankParts, low: int, high: int, bars: int) -> list[TimelineTrack]:
    """[low, high) of the rank's clock in at most so many bars a track; tracks that hold nothing left out."""
    found = []
    rough = part.outline
    first = int(np.searchsorted(rough.end_ns, low, "right"))
    some = slice(first, int(np.searchsorted(rough.start_ns, high)))
    layer = Layer(start_ns=rough.start_ns[some], end_ns=rough.end_ns[some], code=rough.code[some])
    found.append(_pooled("ledger", segments_of(paint([layer], low, high)), [], low, bars))
    passes = part.pipeline.passes
    rows = np.flatnonzero((passes.start_ns < high) & (passes.end_ns > low))
    batches = np.unique(passes.micro_batch[rows])
    layer = _owned(
        passes.start_ns[rows],
        passes.end_ns[rows],
        np.where(passes.is_forward[rows], _FORWARD, _BACKWARD),
        np.where(passes.micro_batch[rows] >= 0, np.searchsorted(batches, passes.micro_batch[rows]), NOTHING),
    )
    names = [str(b) for b in batches.tolist()]
    found.append(_pooled("passes", segments_of(paint([layer], low, high)), names, low, bars))
    calls = part.calls
    running = np.flatnonzero((calls.start_ns < high) & (calls.end_ns > low))
    for dimension in np.unique(calls.dimension[running]).tolist():
        rows = running[calls.dimension[running] == dimension]
        layer = _owned(
            calls.start_ns[rows],
            calls.end_ns[rows],
            np.full(len(rows), dimension, np.int64),
            calls.operation[rows].astype(np.int64),
        )
        segments = segments_of(paint([layer], low, high))
        found.append(_pooled("communication", segments, list(calls.operations), low, bars))
    return [track for track in found if track.start_ns]


def _owned(start: I64, end: I64, code: I64, item: I64) -> Layer:
    begin, finish, owner = owners_by_last_end(start, end)
    return Layer(start_ns=begin, end_ns=finish, code=code[owner], item=item[owner])


def _pooled(kind: str, segments: Segments, names: list[str], begin_ns: int, bars: int) -> TimelineTrack:
    return track_of(kind, pool(segments, bars), names, begin_ns)


def track_of(kind: str, segments: Segments, names: list[str], begin_ns: int) -> TimelineTrack:
    """Segments as a track of an excerpt that begins then."""
    found = drawn(segments)
    return TimelineTrack(
        kind=kind,  # type: ignore[arg-type]
        codes=list(EXCERPT_CODES[kind]),
        names=names,
        start_ns=(found.start_ns - begin_ns).tolist(),
        duration_ns=found.duration_ns.tolist(),
        code=found.code.tolist(),
        name=found.item.tolist(),
        stretches=found.stretches.tolist(),
        count=found.count.tolist(),
    )


EXCERPT_CODES: dict[str, Sequence[str]] = {
    **CODES,
    "ledger": LEAVES,
    "communication": DIMENSIONS,
    "passes": ("forward", "backward"),
    "ranges": ("range",),
}
"""What the codes of each kind of track stand for."""
assert set(LIMITS) <= set(EXCERPT_CODES)
