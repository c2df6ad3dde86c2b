"""The timeline of one device: its typical steps, each track in few enough segments to be drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, owners_by_last_end, union
from perfdoc.analyzers.base.rows import kept, picked
from perfdoc.analyzers.device.activity import DIMENSIONS, Communication
from perfdoc.analyzers.device.idle import IDLE_CAUSES, Gaps, IdleInputs
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import CallKind, kinds_of_calls
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.ledger.steps import distinct_names, exposed_pieces
from perfdoc.analyzers.timeline.segments import (
    NOTHING,
    Layer,
    Pieces,
    Segments,
    drawn,
    layer_of,
    paint,
    pool,
    segments_of,
)
from perfdoc.records import dataclass
from perfdoc.results.ranks import LEAVES
from perfdoc.results.timeline import TYPICAL_FRAC, TimelineTrack, TrackKind, typical_ns

COMPUTE_CODES = (*(k.name.lower() for k in KernelClass), "cuda_graph")
"""Codes of the compute track: the kernel classes, and CUDA graphs traced as a whole."""
HOST_CODES = (*(k.name.lower() for k in CallKind), "data", "gc")
"""Codes of the host track: CUDA calls of the threads that launch, data loading, garbage collection."""


def ledger_pieces(view: DeviceView, start_ns: int, end_ns: int) -> Pieces:
    """[start_ns, end_ns) of the window by ledger leaf; codes are indices into LEAVES.

    The same stretches that the ledger adds up, so the sums by leaf are its leaves exactly.
    """
    activity = view.activity
    compute = activity.compute.clip(start_ns, end_ns)
    layers = [
        *idle_layers(_reaching_into(view.gaps, start_ns, end_ns), view.idle_inputs),
        layer_of(activity.busy.clip(start_ns, end_ns), LEAVES.index("exposed_memcpy")),
    ]
    # Exposed pieces come with the strongest claim first, which is painted last.
    first_leaf = LEAVES.index(f"exposed_comm.{DIMENSIONS[0]}")
    layers += [
        Layer(start_ns=begin, end_ns=finish, code=first_leaf + dimension)
        for begin, finish, dimension, _ in reversed(
            list(exposed_pieces(_running(activity.communication, start_ns, end_ns), compute))
        )
    ]
    layers.append(layer_of(compute, LEAVES.index("compute")))
    return paint(layers, start_ns, end_ns)


def _running(found: Communication, start_ns: int, end_ns: int) -> Communication:
    """What communicates at any time of [start, end): nothing else can own a nanosecond of it."""
    rows = _overlapping(found, start_ns, end_ns)
    columns: dict[str, Any] = {
        name: column[rows]
        for name in Communication.__dataclass_fields__
        if isinstance(column := getattr(found, name), np.ndarray)
    }
    return replace(found, **columns)


def _overlapping(found: Communication, start_ns: int, end_ns: int) -> I64:
    return np.flatnonzero((found.start_ns < end_ns) & (found.end_ns > start_ns))


def idle_layers(gaps: Gaps, inputs: IdleInputs) -> list[Layer]:
    """Idle time by cause, in layers for `paint`; codes are indices into LEAVES."""
    leaf = {cause: LEAVES.index(f"idle.{cause}") for cause in IDLE_CAUSES}
    rest = np.where(gaps.waited, leaf["dependency"], leaf["launch_latency"])
    rest = np.where(gaps.short, rest, leaf["unexplained"])
    kept = gaps.host_end_ns > gaps.start_ns
    host = Intervals(gaps.start_ns[kept], gaps.host_end_ns[kept])
    layers = [Layer(start_ns=gaps.host_end_ns, end_ns=gaps.end_ns, code=rest), layer_of(host, leaf["host"])]
    if len(inputs.gc_or_data):
        layers.append(layer_of(host - (host - inputs.gc_or_data), leaf["data"]))
        layers.append(layer_of(host - (host - inputs.gc), leaf["gc"]))
    return layers


def _reaching_into(gaps: Gaps, start_ns: int, end_ns: int) -> Gaps:
    """The gaps of [start, end): they are disjoint and sorted."""
    first = int(np.searchsorted(gaps.end_ns, start_ns, "right"))
    last = int(np.searchsorted(gaps.start_ns, end_ns, "left"))
    return Gaps(**{name: getattr(gaps, name)[first:last] for name in Gaps.__dataclass_fields__})


def ledger_track(view: DeviceView, start_ns: int, end_ns: int) -> Segments:
    """The ledger of [start_ns, end_ns), and how many activities begin in each stretch."""
    pieces = ledger_pieces(view, start_ns, end_ns)
    first, last = np.searchsorted(view.activity.start_ns, (start_ns, end_ns))
    return _counted(pieces, view.activity.start_ns[first:last])


def compute_track(view: DeviceView, start_ns: int, end_ns: int) -> Segments:
    """Compute by kernel class (COMPUTE_CODES); of kernels that run at once the one that ends last. Items are
    names (Trace.strings). Its time is the ledger's compute. Empty of a rank that computes on the host."""
    trace, activity = view.trace, view.activity
    kernels, graphs = trace.kernels, trace.graph_launches
    k = activity.kernel_rows
    inside = (picked(kernels.start_ns, k) < end_ns) & (picked(kernels.end_ns, k) > start_ns)
    (k,) = kept(inside & ~picked(view.kinds.is_communication, k), k)
    g = np.flatnonzero(
        (graphs.start_ns < end_ns) & (graphs.end_ns > start_ns) & (graphs.device == activity.device)
    )
    code = np.concatenate(
        (view.kinds.class_code[k].astype(np.int64), np.full(len(g), COMPUTE_CODES.index("cuda_graph")))
    )
    name = np.concatenate((kernels.name[k].astype(np.int64), np.full(len(g), NOTHING)))
    start = np.concatenate((kernels.start_ns[k], graphs.start_ns[g]))
    end = np.concatenate((kernels.end_ns[k], graphs.end_ns[g]))
    begin, finish, owner = owners_by_last_end(start, end)
    layer = Layer(start_ns=begin, end_ns=finish, code=code[owner], item=name[owner])
    return _counted(paint([layer], start_ns, end_ns), start)


def communication_track(view: DeviceView, start_ns: int, end_ns: int) -> Segments:
    """Communication, hidden and exposed, by dimension (DIMENSIONS); of several at once the one that ends
    last. Items are indices into Communication.kinds."""
    found = view.activity.communication
    rows = _overlapping(found, start_ns, end_ns)
    begin, finish, owner = owners_by_last_end(found.start_ns[rows], found.end_ns[rows])
    layer = Layer(
        start_ns=begin,
        end_ns=finish,
        code=found.dimension[rows[owner]],
        item=found.kind[rows[owner]].astype(np.int64),
    )
    return _counted(paint([layer], start_ns, end_ns), found.start_ns[rows])


def host_track(view: DeviceView, start_ns: int, end_ns: int) -> Segments:
    """What the host was in on the threads that launch (HOST_CODES); nothing is Python and the framework, or a
    capture without CUDA calls. Where calls nest or threads differ, in the order of CallKind; collection and
    data loading go before all of them."""
    trace = view.trace
    api = trace.api_calls
    threads = view.activity.launching_threads
    rows = trace.calls_of(threads)
    (rows,) = kept((api.start_ns[rows] < end_ns) & (api.end_ns[rows] > start_ns), rows)
    kind = kinds_of_calls(trace)[api.name[rows]]
    layers = []
    for of_kind in reversed(range(len(CallKind))):
        mine = rows[kind == of_kind]
        layers.append(layer_of(union(api.start_ns[mine], api.end_ns[mine]), of_kind))
    layers += [
        layer_of(view.idle_inputs.gc_or_data, HOST_CODES.index("data")),
        layer_of(view.idle_inputs.gc, HOST_CODES.index("gc")),
    ]
    return _counted(paint(layers, start_ns, end_ns), api.start_ns[rows])


def _counted(pieces: Pieces, began_ns: I64) -> Segments:
    """Pieces with how many of these began in each."""
    began = began_ns[(began_ns >= pieces.start_ns[0]) & (began_ns < pieces.end_ns[-1])]
    at = np.searchsorted(pieces.start_ns, began, "right") - 1
    return segments_of(pieces, np.bincount(at, minlength=len(pieces)))


LIMITS = {"ledger": 800, "compute": 500, "communication": 300, "host": 400}
"""Segments of each track at most; together 2,000 a device."""
CODES: dict[str, Sequence[str]] = {
    "ledger": LEAVES,
    "compute": COMPUTE_CODES,
    "communication": DIMENSIONS,
    "host": HOST_CODES,
    "passes": ("forward", "backward"),
}
"""What the codes of each track's segments stand for."""
_TRACKS: dict[TrackKind, Callable[[DeviceView, int, int], Segments]] = {
    "ledger": ledger_track,
    "compute": compute_track,
    "communication": communication_track,
    "host": host_track,
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
    """Indices of steps: those as long as `typical_ns` within TYPICAL_FRAC, from the middle of the window
    outwards, then the others by their distance from it; where that is the mean, shorter ones last.

    The median itself would be another step on every rank, since which of a hundred equal steps is the median
    is noise; the one in the middle of those is the same on nearly all.

    >>> typical_first(np.array([1000, 1500, 1200, 1201, 2000])).tolist()
    [2, 3, 0, 1, 4]
    """
    middle, of = typical_ns(length_ns.tolist())
    away = np.abs(length_ns - middle)
    typical = away <= TYPICAL_FRAC * middle
    from_middle = np.abs(2 * np.arange(len(length_ns)) - (len(length_ns) - 1))
    shows_less = (length_ns < middle) & (of == "mean")
    return np.lexsort((np.where(typical, from_middle, away), ~typical, shows_less & ~typical))


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
