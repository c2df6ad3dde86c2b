"""The process groups that one rank's capture knows of, and their members.

Sources: the trainer's group marks, Kineto's list of groups, the creation of NCCL communicators where it was
captured, and the run directory's manifest.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.profiling import vocabulary
from perfdoc.profiling.marks import parse_group_marks
from perfdoc.records import dataclass


@dataclass(frozen=True, kw_only=True)
class CallGroup:
    """A process group or NCCL communicator as one rank's capture knows it."""

    communicator: int = 0
    """NCCL's id, the same on every member; 0 unknown."""
    name: str = ""
    """PyTorch's name, unique within one process only; empty unknown."""
    description: str = ""
    ranks: tuple[int, ...] = ()
    """Global ranks in the group's order; empty unknown."""
    size: int | None = None
    """Number of ranks."""
    own_in_group: int | None = None
    """This rank within the group."""


class GroupList:
    """Finds what is known of a group from the little that a communication says."""

    def __init__(self, groups: Iterable[CallGroup], rank: int | None) -> None:
        self._groups = tuple(dict.fromkeys(groups))
        self._rank = rank
        # Look-ups: a capture may name as many groups as it has kernels.
        self._of_communicator: dict[int, list[int]] = defaultdict(list)
        self._of_name: dict[str, list[int]] = defaultdict(list)
        self._nameless: dict[str, list[int]] = defaultdict(list)
        for i, group in enumerate(self._groups):
            self._of_communicator[group.communicator].append(i)
            if group.name:
                self._of_name[group.name].append(i)
            else:
                self._nameless[group.description].append(i)

    def find(self, communicator: int, name: str, description: str) -> CallGroup:
        """The group with everything known of it: by communicator, else by name and description."""
        group = CallGroup(communicator=communicator, name=name, description=description)
        for i in self._fitting(communicator, name, description):
            group = _filled(group, self._groups[i])
        if self._rank is not None and self._rank in group.ranks:
            group = replace(group, own_in_group=group.ranks.index(self._rank))
        return group

    def _fitting(self, communicator: int, name: str, description: str) -> list[int]:
        """In the order in which they were given."""
        if communicator:
            return self._of_communicator.get(communicator, [])
        named = [
            i
            for i in self._of_name.get(name, ())
            if not description or self._groups[i].description in ("", description)
        ]
        # The manifest's groups have no names: those are another process's.
        return sorted([*named, *(self._nameless.get(description, ()) if description else ())])


def known_groups(view: DeviceView) -> GroupList:
    """Everything in and beside the capture that says something of this device's groups."""
    rank = view.device.rank
    named = (_of_ranks(g.ranks, 0, g.name, g.description) for g in view.trace.groups)
    entries = (*_marked(view), *named, *_created(view), *_of_manifest(view))
    # A group of others that has the name of an own one must not speak for it.
    return GroupList((g for g in entries if rank is None or not g.ranks or rank in g.ranks), rank)


def _filled(group: CallGroup, other: CallGroup) -> CallGroup:
    """The group with what it lacks and the other has."""
    ranks = group.ranks or other.ranks
    return replace(
        group,
        name=group.name or other.name,
        description=group.description or other.description,
        ranks=ranks,
        size=len(ranks) or group.size or other.size,
        own_in_group=group.own_in_group if group.own_in_group is not None else other.own_in_group,
    )


def _of_ranks(ranks: tuple[int, ...], communicator: int, name: str, description: str) -> CallGroup:
    return CallGroup(
        communicator=communicator, name=name, description=description, ranks=ranks, size=len(ranks) or None
    )


def _marked(view: DeviceView) -> list[CallGroup]:
    trace = view.trace
    if view.device.rank_evidence != "mark":
        return []  # The trainer marks rank and groups together.
    names = trace.range_names_like(lambda name: name.startswith(vocabulary.GROUP_MARK))
    threads = trace.threads_of(view.device.process)
    rows = np.flatnonzero(np.isin(trace.ranges.name, names) & np.isin(trace.ranges.thread, threads))
    own = np.unique(trace.ranges.name[rows]).tolist()
    marks = parse_group_marks(trace.strings[i] for i in own)
    return [_of_ranks(m.ranks, m.communicator or 0, m.name, m.description) for m in marks]


def _created(view: DeviceView) -> list[CallGroup]:
    """By what the payloads of this process say of a group's size and of the own rank in it.

    The own rank counts from NCCL's calls only: Kineto's `Rank` of a broadcast is the root's.
    """
    trace, payloads = view.trace, view.trace.payloads
    stating = np.flatnonzero((payloads.group_size > 0) | (payloads.rank >= 0))
    by_call = payloads.range[stating] >= 0
    mine = np.zeros(len(stating), bool)
    threads, device = trace.threads_of(view.device.process), view.activity.device
    mine[by_call] = np.isin(trace.ranges.thread[payloads.range[stating[by_call]]], threads)
    mine[~by_call] = trace.kernels.device[payloads.kernel[stating[~by_call]]] == device
    stating, by_call = stating[mine], by_call[mine]
    # A few hundred groups at most, though every kernel may state its own again.
    columns = (payloads.communicator, payloads.group_name, payloads.group_description, payloads.group_size)
    numbers = [c[stating].astype(np.int64) for c in columns] + [np.where(by_call, payloads.rank[stating], -1)]
    first, _ = row_keys(*numbers)
    sizes: dict[tuple[int, str, str], set[int]] = defaultdict(set)
    ranks: dict[tuple[int, str, str], set[int]] = defaultdict(set)
    for i in first.tolist():
        row = stating[i]
        key = (
            int(payloads.communicator[row]),
            trace.strings[payloads.group_name[row]],
            trace.strings[payloads.group_description[row]],
        )
        sizes[key].add(int(numbers[3][i]))
        ranks[key].add(int(numbers[4][i]))
    return [
        CallGroup(
            communicator=key[0],
            name=key[1],
            description=key[2],
            size=_only(sizes[key] - {-1}),
            own_in_group=_only(ranks[key] - {-1}),
        )
        for key in sizes
    ]


def _only(values: Iterable[int]) -> int | None:
    """The one value; None where there is none or they disagree."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _of_manifest(view: DeviceView) -> list[CallGroup]:
    """Groups of run.json that this rank is in, where the description tells them apart."""
    rank = view.device.rank
    mine = [g for g in view.facts.groups if rank in g.ranks]
    count = Counter(g.description for g in mine)
    return [_of_ranks(tuple(g.ranks), 0, "", g.description) for g in mine if count[g.description] == 1]
