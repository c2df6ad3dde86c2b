"""How long rows of a device can have lasted: what their streams allow.

Work on one stream is serial, but for kernels of a CUDA graph, whose branches share a stream in the file, and
for programmatic dependent launch, where a kernel begins while the one before it ends. In no clean capture
seen (10 exports, 30 PyTorch traces, NVIDIA and AMD) does a row outlast the whole next row of its stream; they
overlap by 12 us at most, or by 23 us of 0.3 s. So a length is not believed where it covers a whole later row
of its stream and is longer than any other row of its name; it ends then where the longest of those would
have, or where the next one starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.traces.damage import FEWEST_ROWS, SPANS, Damage, timed_rows
from perfdoc.traces.errors import TraceError
from perfdoc.traces.model import ApiCalls, Copies, GraphLaunches, Kernels
from perfdoc.traces.table import I64, Bool, distinct, in_order
from perfdoc.traces.validate import AGAIN, MAX_TIME_NS, MAX_TOTAL_NS

_NO_LENGTH = -1
_LAST_NS = 500_000_000
_LONGER = 1.5
"""Than every other row of its name: a row that covers a whole later one of its stream."""
_MUCH_LONGER = 10
"""The same of communication, which waits for others, and of a name that has no other row."""
_WAITS = pattern_of(r"(?i)ccl|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|deep_?ep|shmem|sendrecv")


@dataclass(frozen=True, kw_only=True)
class Activity:
    """The device's rows of one file, mended."""

    kernels: Kernels
    copies: Copies
    graphs: GraphLaunches
    kernel_rows: I64
    """Of the file's kernels."""
    untimed: Kernels
    """The file's kernels that are not among them."""


def mended(
    path: Path,
    kernels: Kernels,
    copies: Copies,
    graphs: GraphLaunches,
    calls: ApiCalls,
    names: Sequence[str],
    damage: Damage,
) -> Activity:
    """The rows of the device that can be true, with the lengths that their streams allow.

    A row whose end lies before its start is one whose end is unknown. calls: the host's, those that can be
    true. names: what the kernels' names stand for. Raises TraceError where there are rows and none can be
    true, and where they last more than 2^62 ns together.
    """
    host = (int(calls.start_ns.min()), int(calls.end_ns.max())) if len(calls) else None
    tables = (("kernel", kernels), ("copy", copies), ("CUDA graph", graphs))
    given = kernels
    rows = timed_rows(tables, calls, host, damage)
    if len(rows[0]) < len(kernels):
        kernels = kernels.take(rows[0])
    if len(rows[1]) < len(copies):
        copies = copies.take(rows[1])
    ended = (graphs.end_ns[rows[2]] >= graphs.start_ns[rows[2]]) & (graphs.end_ns[rows[2]] <= MAX_TIME_NS)
    damage.add("CUDA graph", "no end", int(np.count_nonzero(~ended)))
    graphs = graphs.take(rows[2][ended])
    kernels, copies, left = _with_lengths(kernels, copies, names, host, damage)
    found = (kernels, graphs) if len(kernels) + len(graphs) else (copies,)
    few = 0 < sum(map(len, found)) < FEWEST_ROWS  # they may be empty kernels, all of them
    if any(len(t) for _, t in tables) and not few and not any((t.end_ns > t.start_ns).any() for t in found):
        raise TraceError(path, "holds no row of a GPU whose time can be true.", AGAIN)
    empty = int(np.count_nonzero(kernels.end_ns == kernels.start_ns))
    if 2 * empty > len(kernels) >= FEWEST_ROWS:  # of whole microseconds 3 in 100 are 0
        damage.add("kernel", "no length", empty, done="counted as nothing")
    for what, table in (("kernel", kernels), ("memory operation", copies), ("CUDA graph", graphs)):
        if float((table.end_ns - table.start_ns).sum(dtype=np.float64)) > MAX_TOTAL_NS:
            raise TraceError(path, f"{what} rows last more than 2^62 ns together.", AGAIN)
    kept = rows[0][left]
    lost = np.setdiff1d(np.arange(len(given)), kept) if len(kept) < len(given) else kept[:0]
    return Activity(kernels=kernels, copies=copies, graphs=graphs, kernel_rows=kept, untimed=given.take(lost))


@dataclass(kw_only=True)
class _Rows:
    """Kernels, then copies."""

    start: I64
    end: I64
    name: I64
    device: I64
    in_graph: Bool


def _with_lengths(
    kernels: Kernels, copies: Copies, names: Sequence[str], host: tuple[int, int] | None, damage: Damage
) -> tuple[Kernels, Copies, I64]:
    """Both with believable ends, and which kernels are left. Cheap where nothing on a stream overlaps."""
    start = np.concatenate((kernels.start_ns, copies.start_ns))
    end = np.concatenate((kernels.end_ns, copies.end_ns))
    every = np.arange(len(kernels))
    if not len(start):
        return kernels, copies, every
    device = np.concatenate((kernels.device, copies.device)).astype(np.int64)
    _, code = distinct(np.concatenate((kernels.stream, copies.stream)))
    if (device != device[0]).any():
        _, code = distinct(code * (int(device.max()) + 2) + device)
    following, covers = _on_streams(start, end, code)
    unknown = (end < start) | (end > MAX_TIME_NS)
    last = _last_lengths(start, end, unknown, host)
    if not (len(covers) or unknown.any() or len(last)):
        return kernels, copies, every
    node = np.concatenate((kernels.graph_node, copies.graph_node))
    rows = _Rows(
        start=start,
        end=end,
        name=np.concatenate((kernels.full_name.astype(np.int64), -1 - copies.kind.astype(np.int64))),
        device=device,
        in_graph=(node >= 0) | _shared(np.concatenate((kernels.correlation, copies.correlation))),
    )
    covers = covers[~rows.in_graph[covers] & ~unknown[covers]]
    longest, of_any = _longest(rows, np.concatenate((covers, np.flatnonzero(unknown), last)))
    own = longest[covers]
    waits = np.array([i >= 0 and bool(_WAITS.search(names[i])) for i in rows.name[covers]], bool)
    least = np.where(own >= 0, own * np.where(waits, _MUCH_LONGER, _LONGER), of_any * _MUCH_LONGER)
    long = covers[(end[covers] - start[covers] > least) & ((own >= 0) | ~waits)]
    mend = np.unique(np.concatenate((long, np.flatnonzero(unknown), last))).astype(np.int64)
    known = longest[mend] >= 0
    allowed = np.where(known, start[mend] + np.maximum(longest[mend], 0), MAX_TIME_NS)
    allowed = np.minimum(allowed, following[mend])
    # The end of the capture bounds what nothing else does.
    if host is not None:
        bound = max(host[1], int(start.max()))
        allowed = np.where((allowed >= MAX_TIME_NS) & ~unknown[mend], np.maximum(bound, start[mend]), allowed)
    lost = mend[(unknown[mend] & ~known) | (allowed >= MAX_TIME_NS)]
    new = end.copy()
    new[mend] = allowed
    keep = np.ones(len(start), bool)
    keep[lost] = False
    n = len(kernels)
    for what, first, after in (("kernel", 0, n), ("copy", n, len(start))):
        of = mend[(mend >= first) & (mend < after) & keep[mend]]
        cut = of[~unknown[of]]
        damage.add(what, _OVERRUN, len(cut), int((end[cut] - new[cut]).sum()), "clipped")
        damage.add(what, "without an end, given that of its stream or name", len(of) - len(cut), 0, "mended")
        damage.add(what, "no end", int(np.count_nonzero(~keep[first:after])))
    kernels = replace(kernels, end_ns=new[:n]).take(keep[:n])
    copies = replace(copies, end_ns=new[n:]).take(keep[n:])
    return kernels, copies, every[keep[:n]]


_OVERRUN = "longer than its stream allows"


def _on_streams(start: I64, end: I64, code: I64) -> tuple[I64, I64]:
    """The next later start on each row's stream (MAX_TIME_NS without one), and the rows that end no sooner
    than a whole later row of it does. Only rows of streams with an overlap or a bad end have a next start."""
    following = np.full(len(start), MAX_TIME_NS, np.int64)
    covering = []
    for rows in np.split(in_order(code), np.cumsum(np.bincount(code))[:-1]):
        s = start.take(rows)
        if (s[1:] < s[:-1]).any():
            rows = rows[np.argsort(s, kind="stable")]
            s = start[rows]
        e = end.take(rows)
        if (e[:-1] <= s[1:]).all() and e[-1] >= s[-1] and e[-1] <= MAX_TIME_NS and (e >= s).all():
            continue
        later = np.searchsorted(s, s, "right")
        following[rows] = np.append(s, MAX_TIME_NS)[later]
        # The first later row that has a length, whole inside this one.
        length = np.where((e > s) & (e <= MAX_TIME_NS), e, MAX_TIME_NS)
        soonest = np.append(np.minimum.accumulate(length[::-1])[::-1], MAX_TIME_NS)
        covering.append(rows[(e >= soonest[later]) & (soonest[later] < MAX_TIME_NS)])
    return following, np.concatenate([np.empty(0, np.int64), *covering])


def _shared(correlation: I64) -> Bool:
    """Rows of one launch: of a graph, whose branches may overlap."""
    _, code = distinct(correlation)
    return np.asarray((np.bincount(code)[code] > 1) & (correlation >= 0))


def _longest(rows: _Rows, apart: I64) -> tuple[I64, int]:
    """By row the longest of the same name on its device, -1 none, and the longest of all; but for `apart`."""
    length = rows.end - rows.start
    length[apart] = _NO_LENGTH
    _, name = distinct(rows.name)
    _, code = distinct(name * (int(rows.device.max()) + 2) + rows.device)
    most = np.full(int(code.max()) + 1, _NO_LENGTH, np.int64)
    np.maximum.at(most, code, length)
    return most[code], int(length.max())


def _last_lengths(start: I64, end: I64, unknown: Bool, host: tuple[int, int] | None) -> I64:
    """Rows that last far beyond all that begins in the capture, and no call of the host waits for them."""
    if len(start) < FEWEST_ROWS or host is None:
        return np.empty(0, np.int64)
    first, last = min(int(start.min()), host[0]), int(start.max())
    beyond = last + max(SPANS * (last - first), _LAST_NS)
    return np.flatnonzero(~unknown & (end > max(beyond, host[1] + _LAST_NS)))
