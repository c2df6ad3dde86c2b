"""A device's window in rough strokes, and what is drawn from them of a rank whose trace is closed.

What is drawn of the other ranks around an instance comes from it, and from their communication and passes,
which are kept anyway: their traces are closed by the time it is known which moment matters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64, owners_by_last_end
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.device.idle import Gaps
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.pipeline.rank import PipelineRank
from perfdoc.analyzers.timeline.rank import idle_layers, track_of
from perfdoc.analyzers.timeline.segments import NOTHING, Layer, paint, pool, segments_of
from perfdoc.results.ranks import LEAVES
from perfdoc.results.timeline import TimelineTrack
from perfdoc.traces.table import I8

MOST_STRETCHES = 2_000
"""Of compute."""
_STROKES_NS = (0, 2_000, 10_000, 50_000, 250_000, 1_000_000, 5_000_000, 25_000_000, 10**9, 10**12)
_EMPTY = np.empty(0, np.int64)


@dataclass(frozen=True, kw_only=True)
class Outline:
    """Stretches by start, on the capture's clock."""

    start_ns: I64
    end_ns: I64
    code: I8
    """Index into LEAVES: compute, or an idle cause; communication and copies are left out."""


NO_OUTLINE = Outline(start_ns=_EMPTY, end_ns=_EMPTY, code=_EMPTY.astype(np.int8))


def outline(view: DeviceView) -> Outline:
    """The outline of a device that communicates; empty of any other, since no rank waits for it."""
    window = view.window
    if window.duration_ns <= 0 or not len(view.activity.communication.start_ns):
        return NO_OUTLINE
    compute = view.activity.compute.clip(window.start_ns, window.end_ns)
    apart = compute.start_ns[1:] - compute.end_ns[:-1]
    closed = next(ns for ns in _STROKES_NS if np.count_nonzero(apart > ns) < MOST_STRETCHES or ns == 10**12)
    breaks = np.flatnonzero(apart > closed)
    some = len(compute) > 0
    drawn = Layer(
        start_ns=compute.start_ns[np.append(0, breaks + 1)] if some else _EMPTY,
        end_ns=compute.end_ns[np.append(breaks, len(compute) - 1)] if some else _EMPTY,
        code=np.full((len(breaks) + 1) if some else 0, LEAVES.index("compute"), np.int64),
    )
    gaps = view.gaps
    if closed:
        kept = gaps.end_ns - gaps.start_ns > closed
        gaps = replace(gaps, **{name: getattr(gaps, name)[kept] for name in Gaps.__dataclass_fields__})
    found = paint([*idle_layers(gaps, view.idle_inputs), drawn], window.start_ns, window.end_ns)
    known = found.code >= 0
    return Outline(
        start_ns=found.start_ns[known],
        end_ns=found.end_ns[known],
        code=found.code[known].astype(np.int8),
    )


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

    def track(kind: str, layer: Layer, names: Sequence[str]) -> TimelineTrack:
        return track_of(kind, pool(segments_of(paint([layer], low, high)), bars), names, low)

    rough = part.outline
    first = int(np.searchsorted(rough.end_ns, low, "right"))
    some = slice(first, int(np.searchsorted(rough.start_ns, high)))
    layer = Layer(
        start_ns=rough.start_ns[some], end_ns=rough.end_ns[some], code=rough.code[some].astype(np.int64)
    )
    tracks = [track("ledger", layer, [])]
    passes = part.pipeline.passes
    rows = np.flatnonzero((passes.start_ns < high) & (passes.end_ns > low))
    batches = np.unique(passes.micro_batch[rows])
    layer = _owned(
        passes.start_ns[rows],
        passes.end_ns[rows],
        np.where(passes.is_forward[rows], _FORWARD, _BACKWARD),
        np.where(passes.micro_batch[rows] >= 0, np.searchsorted(batches, passes.micro_batch[rows]), NOTHING),
    )
    tracks.append(track("passes", layer, [str(b) for b in batches.tolist()]))
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
        tracks.append(track("communication", layer, calls.operations))
    return [t for t in tracks if t.start_ns]


def _owned(start: I64, end: I64, code: I64, item: I64) -> Layer:
    begin, finish, owner = owners_by_last_end(start, end)
    return Layer(start_ns=begin, end_ns=finish, code=code[owner], item=item[owner])
