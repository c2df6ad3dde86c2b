"""What PyTorch's DistributedDataParallel sends, by where it is launched.

Its reducer is a hook of autograd's AccumulateGrad nodes: the node whose gradient completes a bucket launches
the bucket's all-reduce. Other parallelism reduces in the node of its own function (FSDP2, tensor parallelism,
SyncBatchNorm), but hooks of other programs run in AccumulateGrad too: so only captures with DDP's own names
count, and there a group that is all ranks, or the only one that reduces so. DDP broadcasts the module's
buffers over the same group as its forward begins.
"""

from __future__ import annotations

import re

import numpy as np

from perfdoc.analyzers.base.intervals import I64, union
from perfdoc.analyzers.base.rows import said_by_names
from perfdoc.analyzers.device.activity import Communication
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.traces import RangeKind, Trace
from perfdoc.traces.table import Bool, unique

_FORWARD = "DistributedDataParallel.forward"
_REDUCER = "reducer::"
"""Operators that copy gradients into buckets and out of them: `torch::distributed::reducer::mul_out`."""
_SEARCH = "reducer::search_unused_parameters"
"""What find_unused_parameters=True does after each forward."""
_NODE = "AccumulateGrad"
_SUM, _UPDATE = pattern_of("c10d::allreduce_$|nccl:all_reduce$"), pattern_of("Optimizer.step#")
_LONGEST = 512
"""Characters of a name that are looked at."""
_ENDS = r"(?=$|[,#<\s])"
"""emit_nvtx adds `, seq = 3, op_id = 41` to a name."""
_IN_FORWARD = pattern_of(rf"{re.escape(_FORWARD)}{_ENDS}")
_IN_NODE = pattern_of(rf"(?:autograd::engine::evaluate_function: )?(?:torch::autograd::)?{_NODE}{_ENDS}")
_OF_REDUCER = pattern_of(rf"torch(?:::|\.)distributed(?:::|\.ddp\.){_REDUCER}")


def sent_by_ddp(trace: Trace, comm: Communication, group: I64, group_size: I64) -> Bool:
    """Of a capture that shows DDP, which communication is DDP's: all-reduces of gradients, broadcasts of
    buffers.

    group: one number for each group, whatever it is, -1 unknown. group_size: ranks, -1 unknown.
    """
    asked = (comm.launch_start_ns >= 0) & (group >= 0)
    reduces = _launched_inside(trace, comm, asked & _is(comm, "all_reduce"), _IN_NODE)
    if trace.world_size is not None:
        reduces &= (group_size <= 0) | (group_size == trace.world_size)
    said = (group_size > 0) & (group_size == (trace.world_size or 0))
    if len(unique(group[reduces])) > 1:
        reduces &= said
    same_group = asked & np.isin(group, group[reduces])
    return reduces | _launched_inside(trace, comm, same_group & _is(comm, "broadcast"), _IN_FORWARD)


@dataclass(frozen=True, kw_only=True)
class Ddp:
    """What a capture shows of DistributedDataParallel."""

    searches: bool
    """Whether it looks for parameters that a step does not use."""
    sums_an_update: float = 0.0
    """Backward passes that reduce gradients for each step of an optimizer; 0 unknown."""


def find_ddp(trace: Trace) -> Ddp | None:
    """None where no range and no operator is DDP's own."""
    found = searches = False
    for text in trace.unlike_strings:
        if (_FORWARD in text and _IN_FORWARD.match(text) is not None) or (
            _REDUCER in text and _OF_REDUCER.match(text) is not None
        ):
            found = True
            searches = searches or _SEARCH in text[:_LONGEST]
    return Ddp(searches=searches, sums_an_update=_sums_an_update(trace)) if found else None


def _sums_an_update(trace: Trace) -> float:
    """Between the forwards of micro-batches: with no_sync() only the last has sums of gradients behind it."""
    (_, forward, _), (_, update, _), (thread, at, _) = (
        _spans(trace, name) for name in (_IN_FORWARD, _UPDATE, _SUM)
    )
    inside = _inside(trace, thread, at, _IN_NODE)
    passes = unique(np.searchsorted(np.sort(forward), at[inside]))
    return float(np.count_nonzero(passes) / len(update)) if len(update) > 1 else 0.0


def _is(comm: Communication, collective: str) -> Bool:
    table = [kind is not None and kind.collective == collective for kind in comm.kinds]
    return np.array(table, bool)[comm.kind] if table else np.zeros(len(comm.kind), bool)


def _launched_inside(trace: Trace, comm: Communication, asked: Bool, name: re.Pattern[str]) -> Bool:
    """Those of the asked that were launched inside an operator or a range of such a name."""
    found, rows = np.zeros(len(asked), bool), np.flatnonzero(asked)
    found[rows] = _inside(trace, comm.launch_thread[rows], comm.launch_start_ns[rows], name)
    return found


def _inside(trace: Trace, threads: I64, times_ns: I64, name: re.Pattern[str]) -> Bool:
    """Which of these times of threads lie inside an operator or a range of such a name."""
    found = np.zeros(len(threads), bool)
    if not len(threads):
        return found
    thread, start, end = _spans(trace, name)
    of_thread = {t: slice(a, b) for t, a, b in _runs(thread)}
    order = np.argsort(threads, kind="stable")
    for t, a, b in _runs(threads[order]):
        if (mine := of_thread.get(t)) is not None:
            at = times_ns[order[a:b]]
            found[order[a:b]] = union(start[mine], end[mine]).covered_within(at, at + 1) > 0
    return found


def _runs(sorted_values: I64) -> list[tuple[int, int, int]]:
    """(value, first, end) of each run of equal ones."""
    values, first = np.unique(sorted_values, return_index=True)
    ends = [*first.tolist()[1:], len(sorted_values)] if len(first) else []
    return list(zip(values.tolist(), first.tolist(), ends, strict=True))


def _spans(trace: Trace, name: re.Pattern[str]) -> tuple[I64, I64, I64]:
    """(thread, start, end) of operators and ranges of such a name, by thread."""
    ranges, operators = trace.ranges, trace.operators
    usable = (ranges.kind != RangeKind.MARK) & ~ranges.never_closed
    parts = []
    for table, rows in ((ranges, np.flatnonzero(usable)), (operators, np.arange(len(operators)))):
        named = said_by_names(
            trace.strings, table.name[rows], lambda text: name.match(text) is not None, False
        )
        mine = rows[named]
        parts.append((table.thread[mine], table.start_ns[mine], table.end_ns[mine]))
    thread, start, end = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(thread, kind="stable")
    return thread[order], start[order], end[order]
