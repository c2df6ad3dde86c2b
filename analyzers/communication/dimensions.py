"""Whose communication it is: the parallel dimension of each activity, and how that is known.

Strongest evidence first: `communicator` (NCCL's communicator id, which a group mark of the trainer ties to a
process group), `group_description` (PyTorch's process-group description on the kernel), `range` (the
innermost range at launch whose name tells a dimension, where all such on the stream agree), `structure`
(what the communication is and how large its group, against the job's layout), else none. A kernel's name
alone tells no dimension: send/receive is pipeline, context and expert parallelism alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.kept import kept
from perfdoc.analyzers.communication.blocking import blocked_since
from perfdoc.analyzers.communication.comm_payloads import CommPayloads, find_payloads
from perfdoc.analyzers.communication.group_size import group_sizes
from perfdoc.analyzers.communication.structure import by_structure
from perfdoc.analyzers.device.activity import DIMENSIONS, EVIDENCE, UNKNOWN_DIMENSION, Activity
from perfdoc.analyzers.device.dimension_names import dimension_of_group
from perfdoc.analyzers.device.enclosing import innermost_at_launch
from perfdoc.analyzers.device.known_ranges import KnownRanges
from perfdoc.analyzers.device.launches import Launches
from perfdoc.traces import Trace
from perfdoc.traces.arrow import distinct
from perfdoc.traces.job_facts import JobFacts
from perfdoc.traces.table import U64

_NONE = EVIDENCE.index("none")


def attribute_dimensions(
    trace: Trace,
    activity: Activity,
    known: KnownRanges,
    launches: Launches,
    facts: JobFacts | None = None,
) -> Activity:
    """The same activity with everything about its communication filled in that the capture shows."""
    comm = activity.communication
    payloads = find_payloads(trace, activity)
    dimension = np.full(len(comm.kernel), UNKNOWN_DIMENSION, np.int64)
    evidence = np.full(len(comm.kernel), _NONE, np.int64)
    levels = (
        ("communicator", _by_communicator(payloads, known.communicators)),
        ("group_description", _by_description(trace, payloads)),
        ("range", _by_range(trace, activity, known, payloads.communicator)),
        (
            "structure",
            by_structure(
                comm,
                _group_of(trace, activity, payloads),
                group_sizes(trace, payloads.payload, payloads.communicator),
                facts or JobFacts(),
            ),
        ),
    )
    for name, found in levels:
        new = (evidence == _NONE) & (found >= 0)
        dimension[new] = found[new]
        evidence[new] = EVIDENCE.index(name)
    return replace(
        activity,
        communication=replace(
            comm,
            dimension=dimension,
            evidence=evidence,
            payload=payloads.payload,
            communicator=payloads.communicator,
            bytes=payloads.bytes,
            bytes_of_one_operation=payloads.of_one_operation,
            blocked_since_ns=blocked_since(trace, activity, launches),
        ),
    )


def _group_of(trace: Trace, activity: Activity, payloads: CommPayloads) -> I64:
    """One number for each group that a communication is known to belong to; -1 unknown.

    NCCL's communicator, else PyTorch's name of the group, else the stream, if nothing computes on it.
    """
    comm = activity.communication
    on_stream = ~np.isin(comm.stream, _computing_streams(trace, activity)) & (comm.kernel >= 0)
    name = np.zeros(len(comm.stream), np.int64)
    if len(trace.payloads):
        row = np.maximum(payloads.payload, 0)
        name = np.where(payloads.payload >= 0, trace.payloads.group_name[row].astype(np.int64), 0)
    group = np.full(len(comm.stream), -1, np.int64)
    # The later and stronger overwrites; each kind of identity has its own numbers.
    for known, identity in (
        (on_stream, comm.stream),
        (name > 0, name),
        (payloads.communicator > 0, payloads.communicator),
    ):
        first = group.max(initial=-1) + 1
        group[known] = np.unique(identity[known], return_inverse=True)[1] + first
    return group


def _computing_streams(trace: Trace, activity: Activity) -> I64:
    (rows,) = kept(~activity.kernel_is_comm, activity.kernel_rows)
    return np.sort(distinct(trace.kernels.stream[rows])[0])


def _by_communicator(payloads: CommPayloads, dimensions: Mapping[int, str]) -> I64:
    value, at = np.unique(payloads.communicator, return_inverse=True)
    known = [dimensions.get(communicator) for communicator in value.tolist()]
    return np.array([-1 if d is None else DIMENSIONS.index(d) for d in known], np.int64)[at]


def _by_description(trace: Trace, payloads: CommPayloads) -> I64:
    if not len(trace.payloads):
        return np.full(len(payloads.payload), -1, np.int64)
    description = trace.payloads.group_description[np.maximum(payloads.payload, 0)].astype(np.int64)
    description = np.where(payloads.payload >= 0, description, 0)
    dimension_of = np.full(len(trace.strings), -1, np.int64)
    for i in np.unique(description).tolist():
        dimension = dimension_of_group(trace.strings[i])
        if dimension is not None:
            dimension_of[i] = DIMENSIONS.index(dimension)
    return dimension_of[description]


def _by_range(trace: Trace, activity: Activity, known: KnownRanges, communicator: U64) -> I64:
    """By names at launch. A stream on which nothing computes belongs to one process group, so there all names
    must agree and then speak for the whole stream; on a compute stream each speaks for itself."""
    comm, rows = activity.communication, known.comm
    if not len(rows):
        return np.full(len(comm.kernel), -1, np.int64)
    at = innermost_at_launch(trace, rows, comm)
    found = np.where(at >= 0, known.comm_dimension[at], -1)
    alone = ~np.isin(comm.stream, _computing_streams(trace, activity))
    found[alone] = _agreed(comm.stream[alone], found[alone])
    # One communicator is one group: where its names agree, they hold for what it did without a name too.
    known_group = communicator > 0
    agreed = _agreed(communicator[known_group], found[known_group])
    found[known_group] = np.where(agreed >= 0, agreed, found[known_group])
    return found


def _agreed(group: np.ndarray, found: I64) -> I64:
    """For each row what all rows of its group say that say anything (-1 does not); -1 where they differ."""
    value, at = np.unique(group, return_inverse=True)
    least, most = np.full(len(value), len(DIMENSIONS)), np.full(len(value), -1)
    said = found >= 0
    np.minimum.at(least, at[said], found[said])
    np.maximum.at(most, at[said], found[said])
    return np.where(least == most, most, -1)[at]
