"""The communication table of one device: how much of it was hidden under compute, and how much was not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.activity import DIMENSIONS, PEER_COPY, Activity
from perfdoc.analyzers.intervals import I64, union
from perfdoc.traces import Trace


@dataclass(frozen=True, kw_only=True)
class CommunicationRow:
    """Communication of one dimension, transport, collective and group inside a window.

    Durations are unions: hidden + exposed = total. Rows of one dimension may overlap one another in
    time, so they sum to at least the dimension's own union.
    """

    dimension: str
    transport: str
    collective: str
    element_type: str
    """Where the kernel's name carries it (NCCL's reductions); empty otherwise."""
    group: str
    """Process-group description, else its name; empty where the capture says neither."""
    count: int
    total_ns: int
    hidden_ns: int
    exposed_ns: int
    bytes: int | None
    """Sum of message sizes; None unless every one of them is known."""
    evidence: str


def communication_table(
    trace: Trace, activity: Activity, start_ns: int, end_ns: int
) -> list[CommunicationRow]:
    """Rows by falling exposed time."""
    comm = activity.communication
    # A zero-length row counts too: it moved something in less than a tick of the clock.
    instant = comm.start_ns == comm.end_ns
    inside = np.flatnonzero(
        (comm.start_ns < end_ns) & ((comm.end_ns > start_ns) | (instant & (comm.start_ns >= start_ns)))
    )
    payload = (
        _payload_of_kernel(trace)[comm.kernel[inside]] if len(trace.kernels) else np.full(len(inside), -1)
    )
    payload[comm.kernel[inside] < 0] = -1
    group = _group_of(trace, payload)
    labels = [
        (k.transport, k.collective, k.element_type) if k else (PEER_COPY, "peer_copy", "") for k in comm.kinds
    ]
    distinct_labels = sorted(set(labels))
    label = np.array([distinct_labels.index(x) for x in labels], np.int64)[comm.kind[inside]]
    keys = np.stack((comm.dimension[inside], label, group), axis=1)
    unique, member = np.unique(keys, axis=0, return_inverse=True)
    compute = activity.compute.clip(start_ns, end_ns)
    rows = []
    for i, (dimension, label_index, group_name) in enumerate(unique.tolist()):
        mine = inside[member.ravel() == i]
        covered = union(comm.start_ns[mine], comm.end_ns[mine]).clip(start_ns, end_ns)
        hidden = int(compute.covered_within(covered.start_ns, covered.end_ns).sum())
        transport, collective, element_type = distinct_labels[label_index]
        rows.append(
            CommunicationRow(
                dimension=DIMENSIONS[dimension],
                transport=transport,
                collective=collective,
                element_type=element_type,
                group=trace.strings[group_name],
                count=len(mine),
                total_ns=covered.total_ns,
                hidden_ns=hidden,
                exposed_ns=covered.total_ns - hidden,
                bytes=_bytes(trace, payload[member.ravel() == i]),
                evidence=_evidence(DIMENSIONS[dimension]),
            )
        )
    return sorted(rows, key=lambda r: (-r.exposed_ns, -r.total_ns, r.transport, r.collective, r.group))


def _evidence(dimension: str) -> str:
    """How the dimension is known. Attribution is not made yet, so nothing is claimed."""
    return "none" if dimension == "unknown" else "given"


def _payload_of_kernel(trace: Trace) -> I64:
    index = np.full(len(trace.kernels), -1, np.int64)
    rows = np.flatnonzero(trace.payloads.kernel >= 0)
    index[trace.payloads.kernel[rows]] = rows
    return index


def _group_of(trace: Trace, payload: I64) -> I64:
    """Name index of each activity's process group; 0 (the empty string) where none is known."""
    if not len(trace.payloads):
        return np.zeros(len(payload), np.int64)
    description = trace.payloads.group_description[np.maximum(payload, 0)].astype(np.int64)
    name = trace.payloads.group_name[np.maximum(payload, 0)].astype(np.int64)
    return np.where(payload >= 0, np.where(description > 0, description, name), 0)


def _bytes(trace: Trace, payload: I64) -> int | None:
    """Message sizes summed; None where one is unknown (a peer copy has no payload)."""
    if not len(trace.payloads) or (payload < 0).any():
        return None
    sizes = trace.payloads.bytes[payload]
    return None if (sizes < 0).any() else int(sizes.sum())
