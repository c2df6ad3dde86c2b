"""What a profiler wrote wrong: rows that cannot be true are set aside, mended or clipped, counted, told.

Profilers write rows without a time (CUPTI gives 0 where it could not take one), rows twice, ends before
starts, durations that run past the next start on their stream. One such row is no reason to refuse a file,
and none may move a figure unseen. Lengths on the device's streams are in `traces/lengths.py`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TypeVar

import numpy as np

from perfdoc.records import dataclass
from perfdoc.traces.model import (
    UNKNOWN,
    ApiCalls,
    Copies,
    EventRecords,
    GraphLaunches,
    Kernels,
    Note,
    Operators,
    Ranges,
    Syncs,
)
from perfdoc.traces.table import I64, Bool, among, unique
from perfdoc.traces.validate import MAX_TIME_NS, times_fit

_Host = TypeVar("_Host", ApiCalls, Operators, Ranges, Syncs)
_Linked = TypeVar("_Linked", ApiCalls, Kernels, Copies, GraphLaunches, Syncs, EventRecords)

CODE = "damaged-rows"
IMPOSSIBLE_MEMORY = "no time or size that can be true"
AS_INSTANT = "taken for an instant"
"""What becomes of a call whose length cannot be true: its start is when it launched."""
_S = 1_000_000_000
_FAR_NS = _S
"""Between device rows that precede every host row, and what follows."""
_FAR_AFTER_NS = 60 * _S
_FAR_ALONE_NS = 3600 * _S
"""Where nothing of the host is in the file, which pauses may have."""
_EARLY_NS = 1_000_000
"""No kernel starts before its own launch (at least 4.8 us later in 40 captures); clocks differ by less."""
SPANS = 10
"""Of what all starts span: a row that lasts so much longer beyond it, alone, was not measured."""
_LAST_HOST_NS = 60 * _S
_WAITED_NS = _S
"""A call that waited for the device returns so soon after it."""
FEWEST_ROWS = 20
_ODD_FRAC = 0.1
"""Of the rows: where more of them seem out of time, it is the two clocks that differ."""


class Damage:
    """What was found damaged in one file: rows by what they are, what is wrong and what became of them."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], tuple[int, int]] = {}

    def add(self, what: str, why: str, rows: int = 1, ns: int = 0, done: str = "set aside") -> None:
        """Count rows. what: one of them, in words; ns: what was taken off them."""
        if rows:
            before = self._found.get((what, why, done), (0, 0))
            self._found[what, why, done] = before[0] + rows, before[1] + ns

    def notes(self) -> list[Note]:
        """What a reader of the figures must know; nothing of a file without damage."""
        if not self._found:
            return []
        # What became of the device's rows changes figures most.
        ordered = sorted(self._found.items(), key=lambda item: (item[0][0] not in _ON_DEVICE, -item[1][0]))
        said = [
            f"{_counted(rows, what)} {done}{f' by {_length(ns)}' if ns else ''}: {why}"
            for (what, why, done), (rows, ns) in ordered
        ]
        remedy = (
            "The figures are of the other rows. Where many are damaged, capture again with a newer profiler."
        )
        counts = {f"{what}, {done}: {why}": rows for (what, why, done), (rows, _) in ordered}
        return [Note(code=CODE, message=f"{'; '.join(said)}.", remedy=remedy, rows=counts)]


_ON_DEVICE = ("kernel", "copy", "CUDA graph")


def _counted(rows: int, what: str) -> str:
    if rows == 1:
        return f"1 {what}"
    return f"{rows:,} {what[:-1]}ies" if what.endswith("y") else f"{rows:,} {what}s"


def _length(ns: int) -> str:
    unit, of = next(((u, n) for u, n in (("s", _S), ("ms", 10**6), ("us", 10**3)) if ns >= n), ("ns", 1))
    return f"{ns // of:,} {unit}" if ns >= 1000 * of else f"{ns / of:.3g} {unit}"


def timed_rows(
    tables: tuple[tuple[str, Kernels | Copies | GraphLaunches], ...],
    calls: ApiCalls,
    host: tuple[int, int] | None,
    damage: Damage,
) -> list[I64]:
    """Of each table of the device, by its rows' name: the rows that have a time in this capture, each once.

    calls: those that can be true; host: between which times they lie.
    """
    keep = [_timed(what, table, damage) for what, table in tables]
    starts = np.concatenate([table.start_ns[mask] for (_, table), mask in zip(tables, keep, strict=True)])
    early, late = _bounds(starts, host)
    for (what, table), mask in zip(tables, keep, strict=True):
        far = mask & ((table.start_ns < early) | (table.start_ns > late))
        if host is not None:
            far |= _before_launch(table, mask, host[0], calls)
        damage.add(what, "far from all others in time", int(np.count_nonzero(far)))
        mask &= ~far
        twice = _again(table, mask)
        damage.add(what, "in the file twice", len(twice))
        mask[twice] = False
    return [np.flatnonzero(mask) for mask in keep]


def _timed(what: str, table: Kernels | Copies | GraphLaunches, damage: Damage) -> Bool:
    """Which rows have a start. CUPTI writes 0 for both ends where it could not take the time; Kineto then
    takes the file's base time from it."""
    start, end = table.start_ns, table.end_ns
    mask: Bool = (start >= 0) & (start <= MAX_TIME_NS) & ((start > 0) | (end > 0))
    damage.add(what, "no time", len(mask) - int(np.count_nonzero(mask)))
    return mask


def _bounds(starts: I64, host: tuple[int, int] | None) -> tuple[int, int]:
    """Between which starts rows can be of this capture: not far before all that follows, with nothing of the
    host near, and not far behind it."""
    low, high = 0, MAX_TIME_NS
    if not len(starts):
        return low, high
    first, last = host or (int(np.median(starts)),) * 2
    far, most = (_FAR_NS if host else _FAR_ALONE_NS), _ODD_FRAC * len(starts)
    if int(starts.min()) < first - far:
        before = np.append(np.sort(starts[starts < first]), first)
        gaps = np.flatnonzero(np.diff(before) > far)
        if len(gaps) and gaps[-1] + 1 <= most:
            low = int(before[gaps[-1] + 1])
    after = max(_FAR_AFTER_NS if host else _FAR_ALONE_NS, SPANS * (last - first))
    if 0 < np.count_nonzero(starts > last + after) <= most:
        high = last + after
    return low, high


def _before_launch(table: Kernels | Copies | GraphLaunches, mask: Bool, first: int, calls: ApiCalls) -> Bool:
    """Rows whose launch is in the file, and that start before any call does."""
    early: Bool = mask & (table.start_ns < first - _EARLY_NS) & (table.correlation >= 0)
    if early.any():
        early &= among(table.correlation, calls.correlation)
        if np.count_nonzero(early) > _ODD_FRAC * len(table):
            early[:] = False
    return early


def _again(table: Kernels | Copies | GraphLaunches | _Host, mask: Bool) -> I64:
    """Rows equal in every column to an earlier one. Rows of no length are not: times may be whole us."""
    start = table.start_ns
    rows = np.arange(len(start)) if mask.all() else np.flatnonzero(mask)
    at = start[rows]
    if (at[1:] < at[:-1]).any():
        order = np.argsort(at, kind="stable")
        rows, at = rows[order], at[order]
    same = np.flatnonzero(at[1:] == at[:-1])
    if not len(same):
        return same
    near = rows[unique(np.concatenate((same, same + 1)))]
    near = near[table.end_ns[near] > start[near]]
    columns = [np.asarray(getattr(table, name)[near], np.int64) for name in table.column_names()]
    order = np.lexsort(columns)  # stable: of equal rows the first stays
    equal = np.ones(max(len(near) - 1, 0), bool)
    for column in columns:
        equal &= column[order][1:] == column[order][:-1]
    return np.sort(near[order][1:][equal])


_SHARED_CALLS = 8
"""Of one thread may have one id: a runtime call and what it calls inside have, two or three."""
_FIRST_CALLS = 65_536


def without_shared(calls: ApiCalls, damage: Damage) -> tuple[ApiCalls, I64]:
    """The calls without ids that link nothing, and these: many calls of one thread carry each, as where ids
    were lost and all rows got the same."""
    lost = _ids_of_many(calls)
    damage.add("correlation id", "many calls of one thread have it", len(lost), done="not used")
    return forget(lost, calls), lost


def _ids_of_many(calls: ApiCalls) -> I64:
    ids = calls.correlation[calls.correlation >= 0]
    if len(ids) <= _SHARED_CALLS:
        return ids[:0]
    # Ids that are lost are lost from the start: a look at the first calls spares the look at all of them.
    found, count = np.unique(ids[:_FIRST_CALLS], return_counts=True)
    many = found[count > _SHARED_CALLS]
    if not len(many):
        return many
    # Processes that were merged into one file have ids of their own.
    rows = np.flatnonzero(among(calls.correlation, many))
    pairs = np.stack((calls.correlation[rows], calls.thread[rows].astype(np.int64)))
    of_thread, count = np.unique(pairs, axis=1, return_counts=True)
    return unique(of_thread[0][count > _SHARED_CALLS])


def forget(ids: I64, table: _Linked) -> _Linked:
    """The table without these correlation ids."""
    if not len(ids) or not len(table):
        return table
    return replace(table, correlation=np.where(among(table.correlation, ids), UNKNOWN, table.correlation))


@dataclass(frozen=True, kw_only=True)
class Span:
    """What can vouch for the length of a host row."""

    first_ns: int
    last_ns: int
    """Of the starts of all host rows."""
    device: tuple[Kernels, Copies]

    @cached_property
    def device_ends_ns(self) -> I64:
        """Ascending; hardly any file asks for them."""
        return np.sort(np.concatenate([t.end_ns for t in self.device]))

    @classmethod
    def of(
        cls, hosts: tuple[ApiCalls | Operators | Ranges, ...], device: tuple[Kernels, Copies]
    ) -> Span | None:
        """None where nothing of the host is in the file."""
        starts = [t.start_ns[times_fit(t.start_ns, t.start_ns) & (t.start_ns != 0)] for t in hosts]
        if not any(len(s) for s in starts):
            return None
        return cls(
            first_ns=min(int(s.min()) for s in starts if len(s)),
            last_ns=max(int(s.max()) for s in starts if len(s)),
            device=device,
        )


def host_rows(table: _Host, what: str, span: Span | None, damage: Damage) -> tuple[_Host, I64]:
    """The host's rows that can be true, and which of the table's they are.

    A row that lasts ten times as long as the capture beyond it was not measured, unless the device worked as
    long.
    """
    start, end = table.start_ns, table.end_ns
    keep = times_fit(start, end)
    damage.add(what, "a time or length beyond 2^61 ns", int(np.count_nonzero(~keep)))
    bad = keep & (end < start)
    if isinstance(table, ApiCalls) and bad.any():
        damage.add(what, "it ends before it starts", int(np.count_nonzero(bad)), done=AS_INSTANT)
        end = np.where(bad, start, end)
        table = replace(table, end_ns=end)
    else:
        damage.add(what, "it ends before it starts", int(np.count_nonzero(bad)))
        keep &= ~bad
    if span is not None and span.first_ns > _FAR_NS:  # else the clock may begin with the capture
        damage.add(what, "no time", int(np.count_nonzero(keep & (start == 0))))
        keep &= start != 0
    if span is not None and len(start) >= FEWEST_ROWS:
        beyond = span.last_ns + max(SPANS * (span.last_ns - span.first_ns), _LAST_HOST_NS)
        over = np.flatnonzero(keep & (end > beyond))
        ends = span.device_ends_ns if len(over) else over
        found = np.searchsorted(ends, end[over], "right") > np.searchsorted(ends, end[over] - _WAITED_NS)
        damage.add(what, "it lasts far longer than the capture", int(np.count_nonzero(~found)))
        keep[over[~found]] = False
    twice = _again(table, keep)
    if isinstance(table, ApiCalls) or len(twice) > _ODD_FRAC * len(start):  # operators that call their like
        damage.add(what, "in the file twice", len(twice))
        keep[twice] = False
    rows = np.flatnonzero(keep)
    return (table if len(rows) == len(table) else table.take(rows)), rows
