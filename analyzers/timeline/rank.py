"""The timeline of one device: its typical steps, each track in few enough segments to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.ledger.steps import distinct_names
from perfdoc.analyzers.timeline import tracks
from perfdoc.analyzers.timeline.segments import Segments, drawn, pool
from perfdoc.results.ranks import LEAVES
from perfdoc.results.timeline import TYPICAL_FRAC, TimelineTrack, TrackKind

LIMITS = {"ledger": 800, "compute": 500, "communication": 300, "host": 400}
"""Segments of each track at most; together 2,000 a device."""
CODES: dict[str, Sequence[str]] = {
    "ledger": LEAVES,
    "compute": tracks.COMPUTE_CODES,
    "communication": DIMENSIONS,
    "host": tracks.HOST_CODES,
    "passes": ("forward", "backward"),
    "ranges": ("range",),
}
"""What the codes of each track's segments stand for."""
_TRACKS: dict[TrackKind, Callable[[DeviceView, int, int], Segments]] = {
    "ledger": tracks.ledger_track,
    "compute": tracks.compute_track,
    "communication": tracks.communication_track,
    "host": tracks.host_track,
}
MOST_ACTIVITIES = 200_000
"""Of a window without steps that holds more, a part is drawn."""
_CANDIDATES = 3
_ROWS = 3_000_000
"""With more kernels and calls in the trace than this, fewer candidates: each costs a pass over the tables."""
_NAME_CHARACTERS = 160
_NAMES = 200


@dataclass(frozen=True, kw_only=True)
class Track:
    """One row of the picture."""

    segments: Segments
    """They tile the step; NOTHING among them."""
    names: Sequence[str]
    """What `segments.item` counts."""


@dataclass(frozen=True, kw_only=True)
class StepTimeline:
    """One step of one device, or its window (of a very full one the middle) where that is not made of
    steps."""

    name: str
    """As the step ledgers have it; empty for a window without steps."""
    start_ns: int
    """On the capture's clock."""
    end_ns: int
    tracks: dict[TrackKind, Track]
    """By the keys of LIMITS; those that have nothing are left out, the ledger never."""


def rank_timeline(view: DeviceView) -> tuple[StepTimeline, ...]:
    """Typical steps of a device, the most typical first.

    Several, so that all ranks of a job can show the same one. None of a window that is empty.
    """
    window = view.window
    if window.duration_ns <= 0:
        return ()
    if not window.steps:
        return (_step(view, "", *_middle(view)),)
    names = distinct_names([s.name for s in window.step_list])
    length = np.array([s.duration_ns for s in window.step_list], np.int64)
    rows = len(view.trace.kernels.start_ns) + len(view.trace.api_calls.start_ns)
    most = min(_CANDIDATES, max(1, _ROWS // max(rows, 1)))
    return tuple(
        _step(view, names[i], window.step_list[i].start_ns, window.step_list[i].end_ns)
        for i in typical_first(length)[:most].tolist()
    )


def _middle(view: DeviceView) -> tuple[int, int]:
    """The window, or of one with more than MOST_ACTIVITIES the part in its middle that holds so many."""
    start, end = view.window.start_ns, view.window.end_ns
    first, last = np.searchsorted(view.activity.start_ns, (start, end))
    spare = int(last - first) - MOST_ACTIVITIES
    if spare <= 0:
        return start, end
    at = int(first) + spare // 2
    begin, finish = (int(view.activity.start_ns[i]) for i in (at, at + MOST_ACTIVITIES))
    return (begin, finish) if finish > begin else (start, end)  # all at one moment


def typical_first(length_ns: I64) -> I64:
    """Indices of steps: those as long as the lower median within TYPICAL_FRAC, from the middle of the window
    outwards, then the others by their distance from it.

    The median itself would be another step on every rank, since which of a hundred equal steps is the median
    is noise; the one in the middle of those is the same on nearly all.

    >>> typical_first(np.array([1000, 5000, 1200, 1201, 9000])).tolist()
    [2, 3, 0, 1, 4]
    """
    median = np.sort(length_ns)[(len(length_ns) - 1) // 2]
    away = np.abs(length_ns - median)
    typical = away <= TYPICAL_FRAC * median
    from_middle = np.abs(2 * np.arange(len(length_ns)) - (len(length_ns) - 1))
    return np.lexsort((np.where(typical, from_middle, away), ~typical))


def _step(view: DeviceView, name: str, start_ns: int, end_ns: int) -> StepTimeline:
    found = {}
    for key, track in _TRACKS.items():
        segments = pool(track(view, start_ns, end_ns), LIMITS[key])
        if key == "ledger" or (segments.code >= 0).any():
            found[key] = named(view, key, segments)
    return StepTimeline(name=name, start_ns=start_ns, end_ns=end_ns, tracks=found)


def named(view: DeviceView, key: str, segments: Segments) -> Track:
    """Items as indices into the names that occur, the commonest of them where they are too many."""
    items, item, count = np.unique(segments.item, return_inverse=True, return_counts=True)
    kept = [i for i in np.argsort(-count, kind="stable").tolist() if items[i] >= 0][:_NAMES]
    new = np.full(len(items), -1, np.int64)
    new[kept] = np.arange(len(kept))
    names = [_name(view, key, int(items[i]))[:_NAME_CHARACTERS] for i in kept]
    return Track(segments=replace(segments, item=new[item.ravel()].astype(np.int32)), names=names)


def _name(view: DeviceView, key: str, item: int) -> str:
    if key != "communication":
        return view.trace.strings[item]
    kind = view.activity.communication.kinds[item]
    return "copy between GPUs" if kind is None else kind.collective or kind.label


def track_of(kind: str, segments: Segments, names: Sequence[str], begin_ns: int) -> TimelineTrack:
    """Segments as they are published, of a stretch that begins then. Items beyond the names have none."""
    shown = drawn(segments)
    return TimelineTrack(
        kind=kind,  # type: ignore[arg-type]  # one of its words
        codes=list(CODES[kind]),
        names=list(names),
        start_ns=(shown.start_ns - begin_ns).tolist(),
        duration_ns=shown.duration_ns.tolist(),
        code=shown.code.tolist(),
        name=np.where(shown.item < len(names), shown.item, -1).tolist(),
        stretches=shown.stretches.tolist(),
        count=shown.count.tolist(),
    )
