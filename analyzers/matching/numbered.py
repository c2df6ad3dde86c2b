"""Calls of one group to collectives: by a number that rows share, and by their order on every rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import occurrence, row_keys
from perfdoc.analyzers.clocks.alignment import ClockGuess
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.matches import MatchedBy, Matches, MatchGroup, Member
from perfdoc.analyzers.device.activity import UNKNOWN_DIMENSION
from perfdoc.analyzers.matching.shifts import CallList, find_shift, same_step_calls
from perfdoc.records import dataclass
from perfdoc.results.names import listed
from perfdoc.traces.table import Table


@dataclass(frozen=True, kw_only=True, eq=False)
class CalledRows(Table):
    """Rows of members; those of one group with one number are one collective."""

    group: I64
    number: I64
    member: I64
    row: I64


def by_sequence(rows: CalledRows) -> CalledRows:
    """From sequence numbers (in `number`) to collectives.

    One call may run several kernels (a coalesced one): the n-th of them on every member is one collective,
    unless members differ in how many they ran.
    """
    nth = occurrence(rows.group, rows.number, rows.member)
    _, call = row_keys(rows.group, rows.number, rows.member)
    kernels = np.bincount(call, minlength=int(call.max(initial=-1)) + 1)[call]
    _, number = row_keys(rows.group, rows.number, nth)
    order = np.argsort(number, kind="stable")
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    if not len(first):
        return rows
    same = np.minimum.reduceat(kernels[order], first) == np.maximum.reduceat(kernels[order], first)
    return replace(rows, number=number).take(same[number])


def assemble(
    called: CalledRows,
    *,
    members: tuple[Member, ...],
    groups: tuple[MatchGroup, ...],
    operations: tuple[str, ...],
    operation: I64,
    kind: I64,
    dimension: I64,
    rows_total: int,
) -> Matches:
    """Sort rows into collectives; those with one member, or whose members did different things, are left out.

    operation, kind, dimension: of each row of `called`; members of a collective must agree in the kind, and
    the collective is the first operation that any of them says.
    """
    order = np.lexsort((called.member, called.number, called.group))
    group, number = called.group[order], called.number[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (group[1:] != group[:-1]) | (number[1:] != number[:-1])
    first = np.flatnonzero(fresh)
    count = np.diff(np.append(first, len(order)))

    def extreme(values: I64, *, largest: bool) -> I64:
        reduce = np.maximum.reduceat if largest else np.minimum.reduceat
        result: I64 = reduce(values[order], first) if len(first) else np.empty(0, np.int64)
        return result

    keep = (count >= 2) & (extreme(kind, largest=True) == extreme(kind, largest=False))
    known = np.where(dimension == UNKNOWN_DIMENSION, -1, dimension)
    top, bottom = extreme(known, largest=True), extreme(dimension, largest=False)
    agreed = np.where((top >= 0) & (top == bottom), top, UNKNOWN_DIMENSION)
    callers = np.array([len(g.members) for g in groups], np.int64)
    kept = np.repeat(keep, count)
    return Matches(
        state="measured" if keep.any() else "not_measured",
        reason="",
        remedy="",
        members=members,
        groups=groups,
        operations=operations,
        first=np.concatenate(([0], np.cumsum(count[keep]))),
        member=called.member[order][kept].astype(np.int32),
        row=called.row[order][kept],
        group=group[first][keep].astype(np.int32),
        operation=extreme(operation, largest=False)[keep].astype(np.int32),
        dimension=agreed[keep].astype(np.int8),
        is_complete=(count == callers[group[first]])[keep] if len(first) else np.empty(0, bool),
        rows_total=rows_total,
    )


_PART_FRAC = 0.25
_WHOLE_FRAC = 0.75
"""Share of the shorter list that must agree with the other: captures may begin and end at different calls. It
is larger where that two ranks list the same is all that speaks for one group."""


@dataclass(frozen=True, kw_only=True)
class InOrder:
    """What could be matched of one group."""

    calls: Sequence[tuple[int, I64, I64]]
    """(member, number, row): rows of one number are one collective."""
    matched_by: MatchedBy | None
    failed: Mapping[int, str]
    """Why a member's calls could not be matched."""

    def reason(self, members: Sequence[Member]) -> str:
        """Why some ranks are not matched; empty where all are."""
        by_reason: dict[str, list[int]] = {}
        for member, reason in self.failed.items():
            by_reason.setdefault(reason, []).append(member)
        return "; ".join(
            f"{listed([members[m].name for m in at], 4)}: {reason}" for reason, at in by_reason.items()
        )


def in_order(
    ranks: Sequence[CollectiveCalls],
    rows: Mapping[int, I64],
    token: Sequence[I64],
    guess: ClockGuess,
    *,
    all_or_none: bool,
) -> InOrder:
    """Align every member's calls with those of the member that has the most.

    rows: of each member, two at least. all_or_none: where one cannot be aligned, none is.
    """
    lists = {
        m: CallList(token=token[m][r], end_ns=guess.end_ns[m][r], step=ranks[m].step[r])
        for m, r in rows.items()
    }
    reference = max(rows, key=lambda m: (len(rows[m]), -m))
    calls = [(reference, np.arange(len(rows[reference])), rows[reference])]
    failed: dict[int, str] = {}
    by_steps = False
    for member, own in rows.items():
        if member == reference:
            continue
        error_ns = guess.error_ns(reference, member)
        found = find_shift(
            lists[reference], lists[member], error_ns, _WHOLE_FRAC if all_or_none else _PART_FRAC
        )
        if found.shift is not None:
            calls.append((member, np.arange(len(own)) + found.shift, own))
            continue
        a, b, agreed = same_step_calls(lists[reference], lists[member])
        if agreed.any() and not all_or_none:
            by_steps = True
            calls.append((member, a, own[b]))
            if not agreed.all():
                failed[member] = f"{int((~agreed).sum())} of {len(agreed)} steps do not hold the same calls"
            continue
        failed[member] = found.reason
    if all_or_none and failed:
        calls = []
    if len(calls) < 2:
        return InOrder(calls=(), matched_by=None, failed=failed)
    return InOrder(calls=calls, matched_by="step" if by_steps else "order", failed=failed)
