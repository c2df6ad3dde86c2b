"""The communication of one device in columns that other ranks' can be matched with.

It runs where the capture was read; the result is small and travels to the process that compares ranks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.communication.rows import CallGroup, CallRows, device_rows, host_rows
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.traces.table import I8, I32, Bool
from perfdoc.traces.validate import MAX_TIME_NS

_NUMBER = re.compile(r"(\d{1,18})$")
"""The number of a step at the end of its range's name."""


@dataclass(frozen=True, kw_only=True)
class CollectiveCalls:
    """All communication of one device over its whole capture, by start time."""

    clock: str
    """Path of the capture. Devices of one capture share its clock."""
    label: str
    """What to call it where its rank is not known."""
    process: int
    rank: int | None
    """Global rank, as the capture says; never from the file's name."""
    rank_evidence: str
    world_size: int | None
    utc_origin_ns: int | None
    """UTC of time 0 of the capture's clock; None unknown."""
    on_host: bool
    """A rank that trains on the CPU."""
    groups: tuple[CallGroup, ...]
    operations: tuple[str, ...]
    start_ns: I64
    """On the capture's own clock, like end_ns."""
    end_ns: I64
    compute_before_ns: I64
    """Time in which the device had computed before each start, since its window began; negative before."""
    group: I32
    """Index into `groups`; -1 where the capture does not say."""
    operation: I32
    """Index into `operations`."""
    dimension: I8
    """Index into activity.DIMENSIONS."""
    bytes: I64
    """Message size; -1 unknown."""
    sequence: I64
    """Number within the group, the same on every member; -1 unknown."""
    peer: I32
    """Other side of a send or receive; -1 unknown. The global rank if `has_global_peers` or the group's ranks
    are known, else the rank within the group."""
    has_global_peers: bool
    """PyTorch tells the other side's global rank, NCCL its rank within the communicator."""
    lane: I32
    """Streams by their first communication, from 0."""
    step: I64
    """Number of the step that it was launched in; -1 unknown."""
    in_window: Bool
    """Whether it began inside the window."""
    end_is_exact: Bool
    """False where the end is only the end of a wait for it: sends, receives and reduce-scatters of gloo."""

    def __len__(self) -> int:
        return len(self.start_ns)


def collective_calls(view: DeviceView) -> CollectiveCalls:
    """The communication of a device, compact and picklable (about 70 bytes a row)."""
    activity, device, trace = view.activity, view.device, view.trace
    rows = host_rows(view) if activity.on_host else device_rows(view)
    window, origin = view.window, trace.utc_origin_ns
    return CollectiveCalls(
        clock=str(trace.path),
        label=f"device {device.ordinal} of process {device.process} in {trace.path.name}",
        process=device.process,
        rank=device.rank,
        rank_evidence=device.rank_evidence,
        world_size=trace.world_size or view.facts.world_size,
        # Further, and sums of two times leave the range of int64.
        utc_origin_ns=origin if origin is not None and 0 <= origin < MAX_TIME_NS else None,
        on_host=activity.on_host,
        groups=rows.groups,
        operations=rows.operations,
        start_ns=rows.start_ns,
        end_ns=rows.end_ns,
        compute_before_ns=(
            activity.compute.covered_before(rows.start_ns)
            - activity.compute.covered_before(np.array([window.start_ns]))
        ),
        group=rows.group.astype(np.int32),
        operation=rows.operation.astype(np.int32),
        dimension=rows.dimension.astype(np.int8),
        bytes=rows.bytes,
        sequence=rows.sequence,
        peer=np.where(rows.peer < 2**31, rows.peer, -1).astype(np.int32),
        has_global_peers=activity.on_host or trace.peers_are_global,
        lane=_lanes(rows.stream),
        step=_steps(view, rows),
        in_window=(rows.start_ns >= window.start_ns) & (rows.start_ns < window.end_ns),
        end_is_exact=rows.end_is_exact,
    )


def _lanes(stream: I64) -> I32:
    streams, first, code = np.unique(stream, return_index=True, return_inverse=True)
    position = np.empty(len(streams), np.int32)
    position[np.argsort(first)] = np.arange(len(streams), dtype=np.int32)
    return position[code.ravel()]


def _steps(view: DeviceView, rows: CallRows) -> I64:
    """Number of the last step to open before each launch; -1 where steps have no numbers."""
    steps, ranges = view.window.step_list, view.step_ranges
    found = [_NUMBER.search(s.name) for s in steps]
    number = np.array([int(f[1]) for f in found if f is not None], np.int64)
    # Numbers that come again (those of an epoch) name no step.
    if not steps or len(number) < len(steps) or (np.diff(number) <= 0).any():
        return np.full(len(rows.start_ns), -1, np.int64)
    at = np.searchsorted(ranges.start_ns, rows.launch_ns, "right") - 1
    inside = (at >= 0) & (rows.launch_ns >= 0) & (rows.launch_ns < ranges.end_ns[-1])
    return np.where(inside, number[np.maximum(at, 0)], -1)
