"""From rows that were given the same number to collectives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.row_keys import occurrence, row_keys
from perfdoc.analyzers.calls.matches import Matches, MatchGroup, Member
from perfdoc.analyzers.device.activity import UNKNOWN_DIMENSION
from perfdoc.traces.table import Bool


@dataclass(frozen=True, kw_only=True)
class Found:
    """Rows of members; those of one group with one number are one collective."""

    group: I64
    number: I64
    member: I64
    row: I64

    def take(self, keep: Bool | I64) -> Found:
        """Some of the rows."""
        return Found(
            group=self.group[keep], number=self.number[keep], member=self.member[keep], row=self.row[keep]
        )


def joined(parts: Sequence[Found]) -> Found:
    """All rows."""
    none = np.empty(0, np.int64)
    return Found(
        group=np.concatenate([none, *(p.group for p in parts)]),
        number=np.concatenate([none, *(p.number for p in parts)]),
        member=np.concatenate([none, *(p.member for p in parts)]),
        row=np.concatenate([none, *(p.row for p in parts)]),
    )


def by_sequence(found: Found) -> Found:
    """From sequence numbers (in `number`) to collectives.

    One call may run several kernels (a coalesced one): the n-th of them on every member is one collective,
    unless members differ in how many they ran.
    """
    nth = occurrence(found.group, found.number, found.member)
    _, call = row_keys(found.group, found.number, found.member)
    kernels = np.bincount(call, minlength=int(call.max(initial=-1)) + 1)[call]
    _, number = row_keys(found.group, found.number, nth)
    order = np.argsort(number, kind="stable")
    first = np.flatnonzero(np.diff(number[order], prepend=-1))
    if not len(first):
        return found
    same = np.minimum.reduceat(kernels[order], first) == np.maximum.reduceat(kernels[order], first)
    return Found(group=found.group, number=number, member=found.member, row=found.row).take(same[number])


def assemble(
    found: Found,
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

    operation, kind, dimension: of each row of `found`; members of a collective must agree in the kind, and
    the collective is the first operation that any of them says.
    """
    order = np.lexsort((found.member, found.number, found.group))
    group, number = found.group[order], found.number[order]
    fresh = np.ones(len(order), bool)
    fresh[1:] = (group[1:] != group[:-1]) | (number[1:] != number[:-1])
    first = np.flatnonzero(fresh)
    if not len(first):
        first = np.empty(0, np.int64)
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
    rows = np.repeat(keep, count)
    return Matches(
        state="measured" if keep.any() else "not_measured",
        reason="",
        remedy="",
        members=members,
        groups=groups,
        operations=operations,
        first=np.concatenate(([0], np.cumsum(count[keep]))),
        member=found.member[order][rows].astype(np.int32),
        row=found.row[order][rows],
        group=group[first][keep].astype(np.int32),
        operation=extreme(operation, largest=False)[keep].astype(np.int32),
        dimension=agreed[keep].astype(np.int8),
        is_complete=(count == callers[group[first]])[keep] if len(first) else np.empty(0, bool),
        rows_total=rows_total,
    )
