"""Kernels of unknown class that look like communication.

Three things together, none of which proves it: they run on a stream on which hardly anything known computes,
while another stream computes; they occupy few blocks, as what waits for a network does; and equal launches of
one of them take very different times (what computes takes as long as its grid asks), or its name says that it
moves something. Whoever shares its stream and its few blocks is suspected with it.

On a stream that computes, as where collectives have none of their own, a kernel must show more: more equal
launches that differ more. It is suspected alone.
"""

from __future__ import annotations

import re

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, exact_sum, union
from perfdoc.analyzers.base.rows import kept, picked, row_keys
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.kernel_class.names import qualified_name
from perfdoc.records import dataclass
from perfdoc.results.kernels import SuspectedCommunication, SuspectedKernel
from perfdoc.traces.table import unique

OWN_STREAM_FRAC = 0.10
"""Of a stream's kernel time: with more known compute on it, it is no stream of communication. Casts before a
dispatch share its stream."""
FEW_BLOCKS = 48
"""Where the number of SMs is not known; else half of them. DeepEP takes 20 to 24 blocks, NCCL up to 32."""
SPREAD = 2.0
"""Ninth over first decile of the durations of equal launches."""
MIN_LAUNCHES = 5
"""Of one name with one grid, for its spread to say anything."""
SHARED_SPREAD, SHARED_LAUNCHES = 3.0, 10
"""The same on a stream that computes: NCCL's kernels on one differ three-fold and more."""
SHARED_MEAN_NS = 50_000
"""Of its duration there: small kernels of one block differ as much, and cost nothing."""
MIN_SHARE = 0.05
"""Of the suspects' time on a stream: a kernel with less does not make the others suspected."""
MAX_NAMES = 16
"""Kernels that are named, those of most time."""

_MOVES = (
    r"(?i)dispatch|combine|notify|(?<![a-z])(?:send|recv|comm|put|get|signal|exchange|broadcast)(?![a-z])"
    r"|p2p|rdma|ibgda|nvlink|peer|(?:intra|inter)_?node|barrier|a2a|all_?(?:to|gather|reduce)|collective"
)


@dataclass(frozen=True, kw_only=True)
class _Launches:
    """Kernels of unknown class in the window that occupy few blocks."""

    rows: I64
    """Of Trace.kernels."""
    start_ns: I64
    end_ns: I64
    stream: I64
    own: frozenset[int]
    """Streams on which hardly anything known computes, while another does."""
    name: I64
    blocks: I64
    threads: I64


def suspected_communication(view: DeviceView) -> SuspectedCommunication:
    """What of the unknown kernels of one device may be communication, inside the window."""
    a, b = view.window.start_ns, view.window.end_ns
    found = _candidates(view)
    kernels: list[SuspectedKernel] = []
    chosen: list[I64] = []
    for stream in unique(found.stream).tolist():
        named = _by_name(view, found, np.flatnonzero(found.stream == stream), stream)
        time = sum(k.total_ns for k, _ in named)
        if stream not in found.own:
            named = [(k, at) for k, at in named if _tells_on_compute(k)]
        elif not any(_tells(k) and k.total_ns >= MIN_SHARE * time for k, _ in named):
            named = []
        kernels += [k for k, _ in named]
        chosen += [at for _, at in named]
    if not chosen:
        return SuspectedCommunication(kernels=[], total_ns=0, alone_ns=0)
    at = np.concatenate(chosen)
    covered = union(found.start_ns[at], found.end_ns[at]).clip(a, b)
    return SuspectedCommunication(
        kernels=sorted(kernels, key=lambda k: (-k.total_ns, k.name))[:MAX_NAMES],
        total_ns=covered.total_ns,
        alone_ns=covered.total_ns - _other_compute(view, found.rows[at]).clip(a, b).overlap_ns(covered),
    )


def _candidates(view: DeviceView) -> _Launches:
    trace, window = view.trace, view.window
    rows = view.activity.kernel_rows
    k = trace.kernels
    inside = (picked(k.start_ns, rows) < window.end_ns) & (picked(k.end_ns, rows) > window.start_ns)
    (rows,) = kept(inside, rows)
    code = picked(view.kinds.class_code, rows)
    unknown = code == KernelClass.OTHER
    computes = ~unknown & (code != KernelClass.COMMUNICATION)
    stream = picked(k.stream, rows)
    duration = picked(k.end_ns, rows) - picked(k.start_ns, rows)
    own = frozenset(
        s
        for s in unique(stream[unknown]).tolist()
        if (computes & (stream != s)).any()
        and exact_sum(duration[(stream == s) & computes])
        <= OWN_STREAM_FRAC * max(1, exact_sum(duration[stream == s]))
    )
    blocks = k.grid_blocks[rows]
    sms = view.device.sm_count
    few = sms // 2 if sms else FEW_BLOCKS
    rows = rows[unknown & computes.any() & (blocks > 0) & (blocks <= few)]
    return _Launches(
        rows=rows,
        start_ns=k.start_ns[rows],
        end_ns=k.end_ns[rows],
        stream=k.stream[rows],
        own=own,
        name=k.full_name[rows].astype(np.int64),
        blocks=k.grid_blocks[rows],
        threads=k.block_threads[rows],
    )


def _by_name(view: DeviceView, found: _Launches, mine: I64, stream: int) -> list[tuple[SuspectedKernel, I64]]:
    """Kernels of one stream by name, with their launches."""
    a, b = view.window.start_ns, view.window.end_ns
    strings = view.trace.strings
    kernels = []
    for name in unique(found.name[mine]).tolist():
        at = mine[found.name[mine] == name]
        clipped = np.minimum(found.end_ns[at], b) - np.maximum(found.start_ns[at], a)
        text = strings[name] if name >= 0 else ""
        kernel = SuspectedKernel(
            name=text,
            short_name=qualified_name(text, text),
            stream=stream,
            own_stream=stream in found.own,
            count=len(at),
            total_ns=exact_sum(clipped),
            blocks=int(np.median(found.blocks[at])),
            spread=_spread(found, at),
        )
        kernels.append((kernel, at))
    return kernels


def _spread(found: _Launches, at: I64) -> float | None:
    """Ninth over first decile of durations within the launch shape of most time; None with few launches."""
    duration = found.end_ns[at] - found.start_ns[at]
    _, shape = row_keys(found.blocks[at], found.threads[at])
    time = np.bincount(shape, weights=duration)
    equal = np.sort(duration[shape == int(np.argmax(time))])
    if len(equal) < MIN_LAUNCHES:
        return None
    low, high = np.quantile(equal, (0.1, 0.9)).tolist()
    return float(high / max(low, 1.0))


def _tells(kernel: SuspectedKernel) -> bool:
    return (kernel.spread or 0.0) >= SPREAD or re.search(_MOVES, kernel.short_name) is not None


def _tells_on_compute(kernel: SuspectedKernel) -> bool:
    long = kernel.total_ns >= SHARED_MEAN_NS * kernel.count
    return long and kernel.count >= SHARED_LAUNCHES and (kernel.spread or 0.0) >= SHARED_SPREAD


def _other_compute(view: DeviceView, suspects: I64) -> Intervals:
    """Everything that computes on the device but these rows of Trace.kernels."""
    trace, activity = view.trace, view.activity
    rows = activity.kernel_rows[~activity.kernel_is_comm]
    rows = rows[~np.isin(rows, suspects)]
    graphs = trace.graph_launches
    mine = graphs.device == activity.device
    kernels = union(trace.kernels.start_ns[rows], trace.kernels.end_ns[rows])
    return kernels | union(graphs.start_ns[mine], graphs.end_ns[mine])
