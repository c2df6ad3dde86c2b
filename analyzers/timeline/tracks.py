"""The tracks of one device: what each moment of a stretch was, by ledger leaf, by kernel class, by dimension
of communication, and on the host."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, owners_by_last_end, union
from perfdoc.analyzers.base.rows import kept
from perfdoc.analyzers.device.activity import DIMENSIONS, Communication
from perfdoc.analyzers.device.idle import IDLE_CAUSES, Gaps, IdleInputs
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import CallKind, kinds_of_calls
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.ledger.window import exposed_pieces
from perfdoc.analyzers.timeline.segments import NOTHING, Layer, Pieces, Segments, layer_of, paint, segments_of
from perfdoc.results.ranks import LEAVES

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
        *_idle_layers(view, start_ns, end_ns),
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


def _idle_layers(view: DeviceView, start_ns: int, end_ns: int) -> list[Layer]:
    return idle_layers(_reaching_into(view.gaps, start_ns, end_ns), view.idle_inputs)


def idle_layers(gaps: Gaps, inputs: IdleInputs) -> list[Layer]:
    """Idle time by cause, in layers for `paint`; codes are indices into LEAVES."""
    leaf = {cause: LEAVES.index(f"idle.{cause}") for cause in IDLE_CAUSES}
    rest = np.where(gaps.waited, leaf["dependency"], leaf["launch_latency"])
    rest = np.where(gaps.short, rest, leaf["unexplained"])
    kept = gaps.host_end_ns > gaps.start_ns
    host = Intervals(gaps.start_ns[kept], gaps.host_end_ns[kept])
    layers = [
        Layer(start_ns=gaps.host_end_ns, end_ns=gaps.end_ns, code=rest),
        layer_of(host, leaf["host"]),
    ]
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


def compute_track(view: DeviceView, start_ns: int, end_ns: int, among: I64 | None = None) -> Segments:
    """Compute by kernel class (COMPUTE_CODES); of kernels that run at once the one that ends last. Items are
    names (Trace.strings). Its time is the ledger's compute. Empty of a rank that computes on the host.

    among: rows of the device's kernels that may run then, where that is known.
    """
    trace, activity = view.trace, view.activity
    kernels, graphs = trace.kernels, trace.graph_launches
    k = activity.kernel_rows if among is None else among
    inside = (kernels.start_ns[k] < end_ns) & (kernels.end_ns[k] > start_ns)
    (k,) = kept(inside & ~view.kinds.is_communication[k], k)
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


def communication_track(
    view: DeviceView, start_ns: int, end_ns: int, dimension: int | None = None
) -> Segments:
    """Communication, hidden and exposed, by dimension (DIMENSIONS); of several at once the one that ends
    last. Items are indices into Communication.kinds. dimension: of this one alone."""
    found = view.activity.communication
    rows = _overlapping(found, start_ns, end_ns)
    if dimension is not None:
        rows = rows[found.dimension[rows] == dimension]
    begin, finish, owner = owners_by_last_end(found.start_ns[rows], found.end_ns[rows])
    layer = Layer(
        start_ns=begin,
        end_ns=finish,
        code=found.dimension[rows[owner]],
        item=found.kind[rows[owner]].astype(np.int64),
    )
    return _counted(paint([layer], start_ns, end_ns), found.start_ns[rows])


def host_track(view: DeviceView, start_ns: int, end_ns: int, among: I64 | None = None) -> Segments:
    """What the host was in on the threads that launch (HOST_CODES); nothing is Python and the framework, or a
    capture without CUDA calls. Where calls nest or threads differ, in the order of CallKind; collection and
    data loading go before all of them. among: rows of their calls that may run then, where that is known."""
    trace = view.trace
    api = trace.api_calls
    threads = view.activity.launching_threads
    rows = trace.calls_of(threads) if among is None else among
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
