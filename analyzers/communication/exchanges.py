"""All-to-alls that run as NCCL's send/receive kernels: their names are those of a pipeline's messages.

NCCL has no kernel for an all-to-all: PyTorch sends to every rank and receives from every rank in one group.
What tells is the operation on the kernel, a range around its launch, or a group of calls with more than two
peers: a stage of a pipeline has two neighbours, and so has a rank of a ring.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.payloads import most_peers
from perfdoc.analyzers.device.activity import Communication
from perfdoc.analyzers.device.launches import innermost_at_launch
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import Bool

NEIGHBOURS = 2
"""Of a rank in a pipeline or a ring: a group that speaks with more ranks is an exchange among all."""
_SAID = re.compile(
    r"(?i)(?<![a-z])all[ _-]?(?:to|2)[ _-]?all(?:[ _-]?v)?(?![a-z])|(?<![a-z])a2a(?![a-z])|alltoall"
)


def with_exchanges(trace: Trace, comm: Communication, payload: I64) -> Communication:
    """The same, with send/receive kernels of an all-to-all named so.

    payload: row of Trace.payloads; -1 none.
    """
    kinds = list(comm.kinds)
    ambiguous = [i for i, k in enumerate(kinds) if k is not None and k.collective == "send_recv"]
    rows = np.flatnonzero(np.isin(comm.kind, ambiguous))
    if not len(rows):
        return comm
    is_exchange = _by_operation(trace, payload) | _by_range(trace, comm)
    is_exchange[rows] |= most_peers(trace, comm, rows) > NEIGHBOURS
    rows = rows[is_exchange[rows]]
    kind = comm.kind.copy()
    for i in np.unique(kind[rows]).tolist():
        known = kinds[i]
        assert known is not None  # a copy is no send/receive kernel
        kind[rows[comm.kind[rows] == i]] = len(kinds)
        kinds.append(replace(known, collective="all_to_all"))
    return replace(comm, kind=kind, kinds=kinds)


def _by_operation(trace: Trace, payload: I64) -> Bool:
    """PyTorch writes the operation on the kernel."""
    known = payload >= 0
    if not known.any():
        return known
    operation = trace.payloads.operation[np.maximum(payload, 0)]
    names = [i for i in np.unique(operation[known]).tolist() if _SAID.search(trace.strings[i])]
    return known & np.isin(operation, names)


def _by_range(trace: Trace, comm: Communication) -> Bool:
    """Inside a range that says so: PyTorch's `nccl:all_to_all`, `c10d::alltoall_base_`, or a user's."""
    used = trace.range_names.tolist()
    names = [i for i in used if _may_say(trace.strings[i]) and _SAID.search(trace.strings[i][:512])]
    ranges = np.flatnonzero(np.isin(trace.ranges.name, names) & (trace.ranges.kind != RangeKind.MARK))
    if not len(ranges):
        return np.zeros(len(comm.kind), bool)
    return innermost_at_launch(trace, ranges, comm) >= 0


def _may_say(name: str) -> bool:
    lower = name[:512].lower()
    return "a2a" in lower or "all" in lower
