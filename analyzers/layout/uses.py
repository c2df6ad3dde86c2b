"""What one rank uses each of its process groups for: the small table from which the job's layout is read."""

from __future__ import annotations

from collections import Counter

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import row_keys
from perfdoc.analyzers.communication.calls import CollectiveCalls
from perfdoc.analyzers.communication.known_groups import CallGroup
from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE
from perfdoc.analyzers.device.dimension_names import dimension_of_function
from perfdoc.analyzers.device.launches import group_sizes
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.records import dataclass
from perfdoc.results.names import shorten

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
        sizes = np.unique(size[rows])
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
