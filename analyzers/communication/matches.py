"""Which rows of which ranks are one collective: the result of matching, in columns."""

from __future__ import annotations

from functools import cached_property
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.records import dataclass
from perfdoc.traces.table import I8, I32, Bool

SYNCHRONISING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no member can leave before every member has come: each needs something of all."""

MatchedBy = Literal["sequence", "order", "step", "world_order"]
"""sequence: number within the group. order: the n-th call of the group, after the captures' beginnings were
aligned. step: the n-th of the group in a step of the same number. world_order: as order, where no group is
known and all ranks list the same operations."""


@dataclass(frozen=True, kw_only=True)
class Member:
    """One device that takes part; members are in the order in which they were given."""

    rank: int | None
    rank_evidence: str
    label: str
    clock: int
    """Members with one number share a clock: they are in one capture."""

    @property
    def name(self) -> str:
        """`rank 3`, or the device and its capture."""
        return self.label if self.rank is None else f"rank {self.rank}"


@dataclass(frozen=True, kw_only=True)
class MatchGroup:
    """A process group of the job, or one direction between two of its ranks."""

    label: str
    size: int | None
    """Ranks of the group; None unknown."""
    members: tuple[int, ...]
    """Members of the analysis that called it."""
    matched_by: MatchedBy | None = None
    """None: nothing of it could be matched."""
    reason: str = ""
    """What of it cannot be matched, and why; empty if nothing."""

    @property
    def missing(self) -> int:
        """Ranks of the group of which no capture was given, as far as its size is known."""
        return max(0, (self.size or 0) - len(self.members))


@dataclass(frozen=True, kw_only=True)
class Matches:
    """Collectives with the rows of at least two members. Rows are sorted by collective, then member."""

    state: Literal["measured", "not_measured"]
    reason: str
    remedy: str
    members: tuple[Member, ...]
    groups: tuple[MatchGroup, ...]
    operations: tuple[str, ...]
    first: I64
    """Row at which each collective begins, and the number of rows at the end."""
    member: I32
    """Index into members, by row."""
    row: I64
    """Row of that member's CollectiveCalls."""
    group: I32
    """Index into groups, by collective."""
    operation: I32
    """Index into operations, by collective."""
    dimension: I8
    """Index into activity.DIMENSIONS, by collective; `unknown` where members disagree."""
    is_complete: Bool
    """Whether every given member of its group is in it, by collective."""
    rows_total: int
    """Rows of communication that all members have together, those of groups of one rank aside."""

    def __len__(self) -> int:
        return len(self.group)

    @cached_property
    def count(self) -> I64:
        """Rows of each collective."""
        return np.diff(self.first)

    @cached_property
    def collective(self) -> I64:
        """Collective of each row."""
        return np.repeat(np.arange(len(self)), self.count)

    @cached_property
    def of_member(self) -> list[I64]:
        """The rows of each member."""
        if not self.members:
            return []
        order = np.argsort(self.member, kind="stable")
        return np.split(order, np.searchsorted(self.member[order], np.arange(1, len(self.members))))

    @cached_property
    def is_synchronising(self) -> Bool:
        """Whether no rank can leave a collective before all have joined, by collective."""
        return np.array([o in SYNCHRONISING for o in self.operations], bool)[self.operation]


def no_matches(reason: str, remedy: str, members: tuple[Member, ...] = ()) -> Matches:
    """A result without collectives."""
    nothing = np.empty(0, np.int64)
    return Matches(
        state="not_measured",
        reason=reason,
        remedy=remedy,
        members=members,
        groups=(),
        operations=(),
        first=np.zeros(1, np.int64),
        row=nothing,
        **dict.fromkeys(("member", "group", "operation"), nothing.astype(np.int32)),
        dimension=nothing.astype(np.int8),
        is_complete=nothing.astype(bool),
        rows_total=0,
    )
