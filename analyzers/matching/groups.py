"""The process groups of a job, put together from what every rank's capture knows of its own.

A communicator id is the same on every member. PyTorch's names are unique within one process only, so where
the members are known a group goes by its description and members; by name alone only where the ranks that
show the name are not more than the group has.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.known_groups import CallGroup
from perfdoc.analyzers.communication.matches import MatchGroup, Member
from perfdoc.analyzers.device.activity import DIMENSIONS
from perfdoc.records import dataclass

_WAYS = {"send": 1, "recv": 2, "send_recv": 3}
_OF_ALL = tuple(DIMENSIONS.index(d) for d in ("ep", "cp"))


@dataclass(frozen=True, kw_only=True)
class JobGroups:
    """The groups, and the group of every row of every member; -1 for a row that tells none."""

    groups: tuple[MatchGroup, ...]
    of_row: tuple[I64, ...]


_Key = tuple[object, ...]


def job_groups(ranks: Sequence[CollectiveCalls], members: Sequence[Member]) -> JobGroups:
    """Put the groups of all ranks together. `members` gives the ranks their numbers."""
    known: dict[_Key, list[tuple[int, CallGroup]]] = defaultdict(list)
    rows: list[I64] = []
    ids: dict[_Key, int] = {}
    for at, calls in enumerate(ranks):
        keys = _keys(calls)
        for key, group in zip(keys, calls.groups, strict=True):
            ids.setdefault(key, len(ids))
            known[key].append((at, group))
        table = np.array([*(ids[k] for k in keys), -1], np.int64)
        rows.append(table[calls.group])
    groups = [_group(known[key]) for key in ids]
    return _with_directions(ranks, members, groups, rows)


def _keys(calls: CollectiveCalls) -> list[_Key]:
    """What identifies each of a rank's groups in the whole job."""
    keys: list[_Key] = []
    twins: dict[_Key, list[str]] = defaultdict(list)
    for group in calls.groups:
        if group.ranks and not group.communicator:
            twins[group.description, group.ranks].append(group.name)
    # Two groups of one description and the same ranks: the names' order tells them apart.
    place = {
        (*twin, name): at
        for twin, names in twins.items()
        for at, name in enumerate(sorted(set(names), key=lambda n: (len(n), n)))
    }
    for group in calls.groups:
        if group.communicator:
            keys.append(("communicator", group.communicator))
        elif group.ranks:
            at = place[group.description, group.ranks, group.name]
            keys.append(("ranks", group.description, group.ranks, at))
        else:
            keys.append(("name", group.description, group.name, group.size))
    return keys


def _group(known: Sequence[tuple[int, CallGroup]]) -> MatchGroup:
    first = known[0][1]
    members = tuple(at for at, _ in known)
    sizes = {g.size for _, g in known if g.size is not None}
    size = sizes.pop() if len(sizes) == 1 else None
    label = first.description or first.name or (f"0x{first.communicator:016x}" if first.communicator else "")
    if first.ranks:
        label = f"{label} {_listed(first.ranks)}"
    reason = ""
    if size is not None and len(members) > size:
        reason = f"{len(members)} ranks show a group of this name that has {size} ranks"
    elif size is None and not first.communicator and not first.ranks:
        reason = "its ranks and size are unknown, and its name may be that of another group too"
    return MatchGroup(label=label, size=size, members=members, reason=reason)


def _listed(ranks: tuple[int, ...]) -> str:
    text = ",".join(map(str, ranks[:8]))
    return f"[{text}]" if len(ranks) <= 8 else f"[{text},… {len(ranks)} ranks]"


class _Pairs:
    """Groups that are made of others: one direction between two ranks, or what two ranks exchange."""

    def __init__(self, groups: Sequence[MatchGroup]) -> None:
        self._whole = groups
        self._ids: dict[tuple[int, object], int] = {}
        self.made: list[MatchGroup] = []
        self._callers: dict[int, dict[int, None]] = defaultdict(dict)

    def direction(self, group: int, sender: int, receiver: int, caller: int) -> int:
        """The group of what `sender` sends to `receiver`."""
        label = f"{self._whole[group].label} {sender}→{receiver}"
        return self._of(group, (sender, receiver), caller, label=label, size=2)

    def between(self, group: int, one: int, other: int, caller: int) -> int:
        """The group of what two ranks send each other at once."""
        low, high = sorted((one, other))
        label = f"{self._whole[group].label} {low}↔{high}"
        return self._of(group, ("both", low, high), caller, label=label, size=2)

    def unsaid(self, group: int, caller: int) -> int:
        """The group of sends and receives whose other side is not said."""
        whole = self._whole[group]
        label = f"{whole.label} send/receive"
        if self.is_pair(group):
            return self._of(group, "pair", caller, label=label, size=2)
        reason = "the peer of its sends and receives is unknown"
        return self._of(group, "many", caller, label=label, size=whole.size, reason=reason)

    def is_pair(self, group: int) -> bool:
        """Whether the other side can only be the other member."""
        whole = self._whole[group]
        return len(whole.members) == 2 and whole.size in (None, 2)

    def _of(
        self, group: int, kind: object, caller: int, *, label: str, size: int | None, reason: str = ""
    ) -> int:
        at = self._ids.get((group, kind))
        if at is None:
            at = self._ids[group, kind] = len(self._whole) + len(self.made)
            self.made.append(
                MatchGroup(label=label, size=size, members=(), reason=self._whole[group].reason or reason)
            )
        self._callers[at][caller] = None
        return at

    def all(self) -> tuple[MatchGroup, ...]:
        """The whole groups, then the made ones with their callers."""
        first = len(self._whole)
        callers = (tuple(self._callers[first + i]) for i in range(len(self.made)))
        return (
            *self._whole,
            *(replace(g, members=members) for g, members in zip(self.made, callers, strict=True)),
        )


def _with_directions(
    ranks: Sequence[CollectiveCalls],
    members: Sequence[Member],
    groups: Sequence[MatchGroup],
    rows: Sequence[I64],
) -> JobGroups:
    """Take sends and receives out of the groups into groups of two."""
    pairs = _Pairs(groups)
    of_row = []
    for at, calls in enumerate(ranks):
        names = [*calls.operations, ""]
        kind = np.array([_WAYS.get(name, 0) for name in names], np.int64)[calls.operation]
        # Expert parallelism's send/receive kernels are all-to-all, and a context ring is walked by all.
        kind[(kind == _WAYS["send_recv"]) & np.isin(calls.dimension, _OF_ALL)] = 0
        some = np.flatnonzero((kind > 0) & (rows[at] >= 0))
        first, key = row_keys(rows[at][some], kind[some], calls.peer[some].astype(np.int64))
        table = np.empty(len(first), np.int64)
        for i, row in enumerate(some[first].tolist()):
            group, peer = int(rows[at][row]), int(calls.peer[row])
            own = _own(calls, calls.groups[int(calls.group[row])], members[at].rank)
            both_ways = kind[row] == _WAYS["send_recv"]
            if own is None or peer < 0 or (both_ways and pairs.is_pair(group)):
                table[i] = pairs.unsaid(group, at)
            elif both_ways:
                table[i] = pairs.between(group, own, peer, at)
            elif kind[row] == _WAYS["send"]:
                table[i] = pairs.direction(group, own, peer, at)
            else:
                table[i] = pairs.direction(group, peer, own, at)
        mine = rows[at].copy()
        mine[some] = table[key]
        of_row.append(mine)
    return JobGroups(groups=pairs.all(), of_row=tuple(of_row))


def _own(calls: CollectiveCalls, group: CallGroup, rank: int | None) -> int | None:
    """This rank as its sends and receives count ranks."""
    return rank if calls.has_global_peers or group.ranks else group.own_in_group
