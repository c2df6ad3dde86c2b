"""The process groups of a job with what every captured rank uses them for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import field
from functools import cached_property

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.known_groups import CallGroup
from perfdoc.analyzers.communication.patterns import SCALAR_BYTES
from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE
from perfdoc.analyzers.device.dimension_names import degrees_of_group, dimension_of_function
from perfdoc.analyzers.device.launches import group_sizes
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.records import dataclass
from perfdoc.results.degrees import STRENGTHS, Strength
from perfdoc.results.figures import plural
from perfdoc.results.names import shorten
from perfdoc.traces.table import unique

_PATTERNS = {
    "tp": "every layer's forward and backward",
    "dp": "few layers' passes, or weights gathered in both and reduced in one",
    "cp": "the products around attention",
    "ep": "the stretches between attentions",
    "pp": "messages of one way between passes",
}
"""Where communication stands that is known by its pattern (communication/patterns.py)."""
_MOST_USES = 1024
"""A hostile capture has as many groups as kernels."""


@dataclass(frozen=True, kw_only=True)
class GroupUse:
    """Communication of one rank over one group for one dimension."""

    group: CallGroup
    """With what is known of it; of one that only its stream tells from others its size, if that is known."""
    lane: int
    """Number of its stream where nothing else tells the group, else -1."""
    dimension: str
    """One of DIMENSIONS."""
    evidence: str
    """One of EVIDENCE."""
    said_by: str
    """The name that tells the dimension: of the group, a range, an operator; empty where none does."""
    operation: str
    """What it does most often."""
    count: int
    most_bytes: int
    """Of its largest message; -1 unknown."""


def group_uses(view: DeviceView, calls: CollectiveCalls) -> tuple[GroupUse, ...]:
    """A row for each group, dimension and evidence, of the whole capture."""
    if not len(calls):
        return ()
    comm = view.activity.communication
    if view.activity.on_host:
        named = np.array([bool(g.description) for g in calls.groups] + [False])
        by_name = named[calls.group]
        evidence = np.where(by_name, EVIDENCE.index("group_description"), EVIDENCE.index("range"))
        size = np.full(len(calls), -1, np.int64)
    else:
        evidence, size = comm.evidence, group_sizes(view.trace, comm.payload, comm.communicator)
    lane = np.where(calls.group < 0, calls.lane, -1).astype(np.int64)
    first, key = row_keys(calls.group.astype(np.int64), lane, calls.dimension.astype(np.int64), evidence)
    order = np.argsort(key, kind="stable")
    ends = np.searchsorted(key[order], np.arange(1, len(first) + 1)).tolist()
    found = []
    for example, begin, end in list(zip(first.tolist(), [0, *ends], ends, strict=False))[:_MOST_USES]:
        rows = order[begin:end]
        sizes = unique(size[rows])
        by_stream = CallGroup(size=int(sizes[0]) if len(sizes) == 1 and sizes[0] > 0 else None)
        at = int(calls.group[example])
        often = Counter(calls.operation[rows].tolist()).most_common(1)[0][0]
        found.append(
            GroupUse(
                group=by_stream if at < 0 else calls.groups[at],
                lane=int(lane[example]),
                dimension=DIMENSIONS[int(calls.dimension[example])],
                evidence=EVIDENCE[int(evidence[example])],
                said_by=_said_by(view, calls, EVIDENCE[int(evidence[example])], rows),
                operation=calls.operations[often],
                count=len(rows),
                most_bytes=int(calls.bytes[rows].max()),
            )
        )
    return tuple(found)


def _said_by(view: DeviceView, calls: CollectiveCalls, evidence: str, rows: I64) -> str:
    """The innermost name at launch that tells the dimension of the first of these rows of which one does."""
    if evidence in ("communicator", "group_description"):
        at = int(calls.group[rows[0]])
        return calls.groups[at].description if at >= 0 else ""
    if evidence == "pattern":
        return _PATTERNS.get(DIMENSIONS[int(calls.dimension[rows[0]])], "")
    if evidence not in ("range", "operator") or view.activity.on_host:
        return ""
    trace, comm = view.trace, view.activity.communication
    wanted = DIMENSIONS[int(calls.dimension[rows[0]])]
    tables = (trace.ranges,) if evidence == "range" else (trace.operators, trace.python_calls)
    for row in (rows[0], rows[len(rows) // 2], rows[-1]):
        at_ns, thread = int(comm.launch_start_ns[row]), int(comm.launch_thread[row])
        for table in tables:
            around = np.flatnonzero(
                (table.start_ns <= at_ns) & (table.end_ns > at_ns) & (table.thread == thread)
            )
            for i in around[::-1].tolist():
                name = trace.strings[table.name[i]]
                if dimension_of_function(name) == wanted:
                    return shorten(name, 80)
    return ""


_OF_LAYERS = 8
"""Of communication of which not even the operation is known, fewer calls are no layer's."""
_POSSIBLE = {
    "all_reduce": ("tp", "dp"),
    "reduce": ("tp", "dp"),
    "broadcast": ("tp", "dp"),
    "all_gather": ("dp", "tp", "cp", "ep"),
    "reduce_scatter": ("dp", "tp", "cp", "ep"),
    "send_recv": ("pp", "cp", "ep"),
    "send": ("pp", "cp"),
    "recv": ("pp", "cp"),
    "all_to_all": ("ep", "cp"),
}
_DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")
_STRENGTHS: dict[str, Strength] = {
    **dict.fromkeys(("communicator", "group_description", "range", "operator"), "named"),
    "structure": "derived",
    "pattern": "pattern",
}


@dataclass(frozen=True, kw_only=True)
class RankUses:
    """One rank, and what it uses its groups for."""

    rank: int | None
    uses: Sequence[GroupUse]


@dataclass(kw_only=True)
class JobGroup:
    """A group of the job, by all ranks that show it."""

    uses: list[GroupUse] = field(default_factory=list)
    members: set[int] = field(default_factory=set)
    """Positions of the ranks that show it."""

    @cached_property
    def size(self) -> int | None:
        """Ranks that it has; None unknown, or where ranks differ."""
        sizes = {u.group.size or len(u.group.ranks) for u in self.uses} - {0, None}
        return sizes.pop() if len(sizes) == 1 else None

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Global; empty unknown."""
        return next((u.group.ranks for u in self.uses if u.group.ranks), ())

    @cached_property
    def description(self) -> str:
        """PyTorch's; empty unknown."""
        return next((u.group.description for u in self.uses if u.group.description), "")

    @cached_property
    def factors(self) -> tuple[str, ...]:
        """Degrees whose product its size is, as its description says."""
        return degrees_of_group(self.description)

    @cached_property
    def dimension(self) -> str:
        """Of most of what it does; `unknown` where that is none."""
        count = Counter({u.dimension: u.count for u in self.uses if u.dimension in _DIMENSIONS})
        return count.most_common(1)[0][0] if count else "unknown"

    @property
    def strength(self) -> Strength:
        """Of the strongest evidence of its dimension."""
        said = [
            _STRENGTHS[u.evidence]
            for u in self.uses
            if u.dimension == self.dimension and u.evidence in _STRENGTHS
        ]
        return min(said, key=STRENGTHS.index, default="unknown")

    @property
    def is_whole(self) -> bool:
        """Whether every rank of it was captured."""
        return self.size is not None and len(self.members) == self.size


@dataclass(frozen=True, kw_only=True)
class JobUses:
    """All groups of a job."""

    ranks: Sequence[RankUses]
    groups: Sequence[JobGroup]

    @classmethod
    def of(cls, ranks: Sequence[RankUses]) -> JobUses:
        """Those of several ranks are one by their communicator or their ranks, else each rank has its own."""
        found: dict[object, JobGroup] = defaultdict(JobGroup)
        for at, rank in enumerate(ranks):
            for use in rank.uses:
                group = use.group
                if group.size == 1 or len(group.ranks) == 1:
                    continue  # nobody to communicate with
                key: object = (at, group.name, group.description, use.lane)
                if group.communicator:
                    key = group.communicator
                elif group.ranks:
                    key = (group.ranks, group.description, group.name if not group.description else "")
                found[key].uses.append(use)
                found[key].members.add(at)
        return cls(ranks=ranks, groups=list(found.values()))

    @cached_property
    def seen(self) -> dict[str, str]:
        """Dimensions that communicate, and what shows it: `84 all-reduces a rank in _AllToAll`."""
        found: dict[str, str] = {}
        for dimension in _DIMENSIONS:
            uses = [u for g in self.groups for u in g.uses if u.dimension == dimension]
            if not uses:
                continue
            told = min(
                uses, key=lambda u: (STRENGTHS.index(_STRENGTHS.get(u.evidence, "unknown")), not u.said_by)
            )
            count: Counter[str] = Counter()
            for use in uses:
                count[use.operation] += use.count
            operation, total = count.most_common(1)[0]
            each = max(1, round(total / len(self.ranks)))
            by = f" in {told.said_by}" if told.said_by else f" by their {told.evidence.replace('_', ' ')}"
            found[dimension] = f"{plural(each, operation.replace('_', '-'))} a rank{by}"
        return found

    @cached_property
    def _open(self) -> list[GroupUse]:
        """What is of no known dimension, but for scalars."""
        return [
            u
            for g in self.groups
            for u in g.uses
            if u.dimension == "unknown"
            and not 0 <= u.most_bytes <= SCALAR_BYTES
            and (u.operation in _POSSIBLE or u.count >= _OF_LAYERS)
        ]

    @property
    def is_open(self) -> bool:
        """Whether some communication is of no known dimension."""
        return bool(self._open)

    def open_uses(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """What some communication may be of, and which communication that is."""
        count: Counter[tuple[str, int | None]] = Counter()
        for use in self._open:
            count[use.operation, use.group.size] += use.count
        for (operation, size), n in count.most_common(3):
            of = f" over {size} ranks" if size else ""
            dimensions = _POSSIBLE.get(operation, _DIMENSIONS)
            each = max(1, round(n / len(self.ranks)))
            named = f"{plural(each, operation.replace('_', '-'))} a rank{of}"
            yield dimensions, f"{named} may be {' or '.join(dimensions)}"

    @cached_property
    def absent(self) -> list[str]:
        """Dimensions that would communicate, and of which no communication is or may be."""
        possible = {d for u in self._open for d in _POSSIBLE.get(u.operation, _DIMENSIONS)}
        return [d for d in ("tp", "cp", "pp", "ep") if d not in self.seen and d not in possible]

    @cached_property
    def closed(self) -> int | None:
        """How many ranks were captured, where every group is among them and joins them all; else None."""
        if len(self.ranks) < 2 or not self.groups or not all(g.is_whole for g in self.groups):
            return None
        parts = _joined([g.members for g in self.groups])
        return len(self.ranks) if parts and len(parts[0]) == len(self.ranks) else None

    def chained(self, dimension: str) -> int | None:
        """Ranks that groups of a dimension join: NCCL may have a communicator for every two neighbours. None
        where that is not known, or differs."""
        groups = [g for g in self.groups if g.dimension == dimension]
        listed = all(g.ranks for g in groups)
        if not listed and not all(g.is_whole for g in groups):
            sizes = {g.size for g in groups}
            size = sizes.pop() if len(sizes) == 1 else None
            # PyTorch says the size of the process group, NCCL that of a communicator.
            of_two = any(u.group.communicator for g in groups for u in g.uses)
            return size if size is not None and (size > 2 or not of_two) else None
        parts = _joined([set(g.ranks) if listed else g.members for g in groups])
        counts = {len(part) for part in parts}
        return counts.pop() if len(counts) == 1 else None

    def data_parallel_ranks(self) -> int | None:
        """Where gradients are reduced over groups of several sizes: the largest, if the others are parts of
        it (experts); all together, if each crosses the others (shards and replicas). None unknown."""
        groups = [g for g in self.groups if g.dimension == "dp" and g.size]
        if not all(g.ranks or g.is_whole for g in groups):
            return None
        listed = all(g.ranks for g in groups)
        members = [set(g.ranks) if listed else g.members for g in groups]
        largest = max(members, key=len)
        around = [m for m in members if m & largest and m is not largest and len(m) < len(largest)]
        if all(m <= largest for m in around):
            return len(largest)
        if all(len(m & largest) == 1 for m in around) and len({len(m) for m in around}) == 1:
            return len(largest) * len(around[0])
        return None


def _joined(sets: Sequence[set[int]]) -> list[set[int]]:
    """Sets that overlap, directly or through others, put together."""
    part_of: dict[int, int] = {}

    def root(item: int) -> int:
        while (above := part_of.setdefault(item, item)) != item:
            part_of[item] = item = part_of[above]
        return item

    for one in sets:
        first = min(one)
        for item in one:
            part_of[root(item)] = root(first)
    parts: dict[int, set[int]] = defaultdict(set)
    for item in list(part_of):
        parts[root(item)].add(item)
    return list(parts.values())
