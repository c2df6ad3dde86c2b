"""What is exported of one device: its tracks, from top to bottom of the viewer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.kernel_class.classify import KernelClass
from perfdoc.analyzers.timeline.rank import ledger_pieces
from perfdoc.records import dataclass
from perfdoc.results.ranks import LEAVES
from perfdoc.traces import RangeKind
from perfdoc.traces.model import ApiCalls, Copies, CopyKind, GraphLaunches, Kernels, Operators, Ranges, Thread

MAX_TRACKS_OF_A_KIND = 1_000
"""Streams or threads; a damaged or hostile trace may have one for each row."""
_NAME_CHARACTERS = 400


@dataclass(frozen=True, kw_only=True)
class Names:
    """Texts that rows point at: those of the trace, then our own."""

    of_trace: Sequence[str]
    own: Sequence[str]

    def __len__(self) -> int:
        return len(self.of_trace) + len(self.own)

    def text(self, index: int) -> str:
        """One of them, shortened."""
        at = index - len(self.of_trace)
        return (self.of_trace[index] if at < 0 else self.own[at])[:_NAME_CHARACTERS]


@dataclass(frozen=True, kw_only=True)
class Track:
    """Slices (or instants, where they are empty) in any order."""

    name: str
    kind: Literal["apart", "nested"]
    """apart: they are not meant to overlap. nested: they lie inside one another."""
    start_ns: I64
    end_ns: I64
    text: I64
    """Index of each one's name."""
    category: I64
    """Index into CATEGORIES."""


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """Rows for which there is no track."""

    rows: int


_GROUPS = ("step", "ledger", "idle", "copy", "cuda graph", "range", "mark", "cuda call", "operator")
CATEGORIES = (
    *_GROUPS,
    *(f"kernel:{k.name.lower()}" for k in KernelClass),
    *(f"dimension by {e}" for e in EVIDENCE),
)
_COLLECTIVES_AT_MOST = 1_000


def own_names(view: DeviceView) -> tuple[str, ...]:
    """Names that are not the trace's: leaves, copies, kinds of communication, steps."""
    copies = [k.name.lower().replace("_", " ") for k in CopyKind]
    return (*LEAVES, *copies, "cuda graph", *_collectives(view), *(s.name for s in view.window.step_list))


def _collectives(view: DeviceView) -> list[str]:
    """A name for each kind of communication; of very many the last stands for all that follow."""
    kinds = view.activity.communication.kinds
    names = [
        "copy between GPUs" if k is None else k.collective or k.label for k in kinds[:_COLLECTIVES_AT_MOST]
    ]
    return names if len(kinds) <= _COLLECTIVES_AT_MOST else [*names[:-1], "another collective"]


def tracks_of(view: DeviceView) -> Iterator[Track | LeftOut]:
    """Every track of a device that has something, one at a time."""
    trace = view.trace
    base = len(trace.strings)
    copies = base + len(LEAVES)
    graph = copies + len(CopyKind)
    comm = graph + 1
    steps = comm + len(_collectives(view))
    found: list[Iterator[Track | LeftOut]] = [
        _steps(view, steps),
        _ledger(view, base),
        _dimensions(view, comm),
        _of_streams(
            view,
            "kernels",
            trace.kernels,
            np.maximum(trace.kernels.name.astype(np.int64), 0),
            CATEGORIES.index(f"kernel:{KernelClass(0).name.lower()}")
            + view.kinds.class_code.astype(np.int64),
        ),
        _of_streams(
            view,
            "CUDA graphs",
            trace.graph_launches,
            np.full(len(trace.graph_launches), graph),
            _same("cuda graph", len(trace.graph_launches)),
        ),
        _of_streams(
            view,
            "copies",
            trace.copies,
            copies + trace.copies.kind.astype(np.int64),
            _same("copy", len(trace.copies)),
        ),
        _threads(view),
    ]
    for part in found:
        for track in part:
            if isinstance(track, LeftOut) or len(track.start_ns):
                yield track


def _same(name: str, n: int) -> I64:
    return np.full(n, CATEGORIES.index(name), np.int64)


def _steps(view: DeviceView, first: int) -> Iterator[Track]:
    steps = view.window.step_list
    yield Track(
        name="steps",
        kind="apart",
        start_ns=np.array([s.start_ns for s in steps], np.int64),
        end_ns=np.array([s.end_ns for s in steps], np.int64),
        text=first + np.arange(len(steps)),
        category=_same("step", len(steps)),
    )


def _ledger(view: DeviceView, first: int) -> Iterator[Track]:
    """The leaves that tile the window, and idle causes by themselves."""
    pieces = ledger_pieces(view, view.window.start_ns, view.window.end_ns)
    idle = pieces.code >= LEAVES.index("idle.host")
    everything = np.ones(len(pieces), bool)
    for name, category, rows in (("ledger", "ledger", everything), ("idle causes", "idle", idle)):
        yield Track(
            name=name,
            kind="apart",
            start_ns=pieces.start_ns[rows],
            end_ns=pieces.end_ns[rows],
            text=first + pieces.code[rows],
            category=_same(category, int(np.count_nonzero(rows))),
        )


def _dimensions(view: DeviceView, first: int) -> Iterator[Track]:
    found = view.activity.communication
    for i, dimension in enumerate(DIMENSIONS):
        rows = np.flatnonzero(found.dimension == i)
        kind = np.minimum(found.kind[rows], min(len(found.kinds), _COLLECTIVES_AT_MOST) - 1)
        yield Track(
            name=f"communication {dimension}",
            kind="apart",
            start_ns=found.start_ns[rows],
            end_ns=found.end_ns[rows],
            text=first + kind.astype(np.int64),
            category=CATEGORIES.index(f"dimension by {EVIDENCE[0]}") + found.evidence[rows],
        )


def _by(column: I64, rows: I64) -> tuple[list[tuple[int, I64]], list[LeftOut]]:
    """Rows by the value of a column, at most MAX_TRACKS_OF_A_KIND values, and what is beyond them."""
    if not len(rows):
        return [], []
    order = rows[np.argsort(column[rows], kind="stable")]
    values, first = np.unique(column[order], return_index=True)
    ends = np.append(first[1:], len(order))
    found = [
        (value, np.sort(order[a:b]))
        for value, a, b in zip(
            values[:MAX_TRACKS_OF_A_KIND].tolist(), first.tolist(), ends.tolist(), strict=False
        )
    ]
    beyond = len(rows) - sum(len(part) for _, part in found)
    return found, [LeftOut(rows=beyond)] if beyond else []


def _of_streams(
    view: DeviceView, what: str, table: Kernels | Copies | GraphLaunches, text: I64, category: I64
) -> Iterator[Track | LeftOut]:
    """The rows of this device, stream by stream. text, category: of every row of the table."""
    by_stream, beyond = _by(table.stream, np.flatnonzero(table.device == view.activity.device))
    yield from beyond
    for stream, rows in by_stream:
        yield Track(
            name=f"stream {stream}: {what}",
            kind="apart",
            start_ns=table.start_ns[rows],
            end_ns=table.end_ns[rows],
            text=text[rows],
            category=category[rows],
        )


def _threads(view: DeviceView) -> Iterator[Track | LeftOut]:
    """Ranges, operators and CUDA calls of every thread of the device's process, thread by thread, those that
    launch first."""
    trace = view.trace
    mine = np.zeros(len(trace.threads) + 1, bool)
    mine[trace.threads_of(view.device.process)] = True
    crosses = trace.ranges.kind == RangeKind.START_END
    tables = (
        ("ranges", "range", trace.ranges, np.flatnonzero(~crosses & mine[trace.ranges.thread])),
        ("ranges that may cross", "range", trace.ranges, np.flatnonzero(crosses & mine[trace.ranges.thread])),
        ("operators", "operator", trace.operators, np.flatnonzero(mine[trace.operators.thread])),
        ("CUDA calls", "cuda call", trace.api_calls, np.flatnonzero(mine[trace.api_calls.thread])),
    )
    parts: dict[int, list[tuple[str, str, Ranges | Operators | ApiCalls, I64]]] = {}
    for title, category, table, rows in tables:
        by_thread, beyond = _by(table.thread.astype(np.int64), rows)
        yield from beyond
        for thread, of_thread in by_thread:
            parts.setdefault(thread, []).append((title, category, table, of_thread))
    launching = set(view.activity.launching_threads.tolist())
    for thread in sorted(parts, key=lambda t: (t not in launching, trace.threads[t].tid)):
        for title, category, table, rows in parts[thread]:
            start, end = table.start_ns[rows], table.end_ns[rows]
            empty = "mark" if category == "range" else category
            yield Track(
                name=f"{_thread(trace.threads[thread])}: {title}",
                kind="nested",
                start_ns=start,
                end_ns=end,
                text=np.maximum(table.name[rows].astype(np.int64), 0),
                category=np.where(end > start, CATEGORIES.index(category), CATEGORIES.index(empty)),
            )


def _thread(thread: Thread) -> str:
    """Some captures put the number into the name."""
    number = str(thread.tid)
    return thread.name[:80] if number in thread.name else f"thread {number} {thread.name[:80]}".rstrip()
