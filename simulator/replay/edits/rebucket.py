"""Larger buckets: fewer collectives, for gradients and for the weights that are gathered in the same buckets.

A merged reduction starts when its last gradients are ready: its last part carries it. A merged gather has to
be there before the first layer that needs any of it. It is sent for one bucket ahead, as Megatron's is: when
what was gathered before it is first awaited. So the part that was sent for there carries it, and what awaited
its first part awaits it. Buckets fill from the end of the model, and none reaches over a chunk of it.
"""

from __future__ import annotations

import numpy as np

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.beside import with_less_beside
from perfdoc.simulator.replay.edits.bucket_calls import without_merged_calls
from perfdoc.simulator.replay.edits.edit import Edit, with_durations
from perfdoc.simulator.replay.edits.latency import bucket_lines
from perfdoc.simulator.replay.edits.rewiring import Rewiring, is_transfer
from perfdoc.simulator.replay.edits.split_gathers import sequences, usual_bytes
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

_UNCERTAINTY_FRAC = 0.5
"""The line is fitted to few sizes, and bytes beyond the largest seen are extrapolated; by which algorithm so
many are sent is not known."""
_FULL_FRAC = 1.001
"""Parts of a bucket are cut to whole elements on every rank."""


def rebucketed(bucket_bytes: int, *, dimension: str = "dp") -> Edit:
    """Consecutive collectives of one rank are merged until a bucket is full, and take latency + bytes /
    bandwidth by the capture's own of their kind.

    bucket_bytes: the message of a usual reduction; gathers and the reductions of other groups (experts) grow
    by the same ratio. ValueError for a size below 1. Smaller buckets than the capture's are refused when
    applied: when parts of a bucket would be ready another edit works out (split.py).
    """
    if bucket_bytes < 1:
        raise ValueError(f"rebucketed: {bucket_bytes} bytes")

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        ours = is_transfer(rebuilt, dimension) & (rebuilt.bytes > 0)
        rows = np.flatnonzero(ours)
        takes_ns = bucket_lines(rebuilt, rows, dimension)
        if len(rows) and bucket_bytes < np.median(rebuilt.bytes[rows]):
            raise ValueError(f"buckets of {bucket_bytes:,} bytes are smaller than those of the capture")
        gathers = rebuilt.reduces[rows] == 0
        ratio = bucket_bytes / usual_bytes(rebuilt.bytes[rows[~gathers] if not gathers.all() else rows])
        awaited_ns = _awaited_ns(rebuilt, rows)
        whole = np.full(len(rebuilt.start_ns), -1, np.int64)
        """By part: that which carries its bucket."""
        first = np.zeros(len(whole), bool)
        duration = rebuilt.graph.duration_ns.copy()
        for mine in sequences(rebuilt, rows):
            is_gather = bool(rebuilt.reduces[mine[0]] == 0)
            part = _parts(rebuilt, mine, awaited_ns if is_gather else None)
            full = ratio * usual_bytes(rebuilt.bytes[mine]) * _FULL_FRAC
            bucket = _buckets(rebuilt.bytes[mine], part, full, ahead=is_gather)
            begins = np.append(True, bucket[1:] != bucket[:-1])
            starts = np.flatnonzero(begins)
            carrier = np.append(starts[1:], len(mine)) - 1
            if is_gather:
                carrier = np.maximum(
                    np.append(starts[:1], starts[:-1] + 1), _first_of_step(rebuilt, mine)[starts]
                )
            total, count = np.bincount(bucket, rebuilt.bytes[mine]), np.bincount(bucket)
            takes = [
                takes_ns(task, size) if many > 1 else int(rebuilt.graph.duration_ns[alone])
                for task, size, many, alone in zip(
                    mine[carrier].tolist(), total.tolist(), count.tolist(), mine[starts].tolist(), strict=True
                )
            ]
            duration[mine] = 0
            duration[mine[carrier]] = takes
            whole[mine] = mine[carrier[bucket]]
            first[mine] = begins
        free = with_less_beside(rebuilt, rows, duration)
        made = without_merged_calls(with_durations(rebuilt, free), whole)
        return _awaited_anew(made, whole, first, duration)

    return Edit(
        name=f"{dimension} buckets of {bucket_bytes:,} bytes",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=(f"exposed_comm.{dimension}", "idle.host", "idle.launch_latency"),
        assumptions=(
            "a collective takes latency + bytes / bandwidth, as those of its kind in the capture do",
            "a reduction starts when the last of what it holds would have, a gather one bucket ahead",
            "a CPU rank computes slower beside communication as long as that lasts, as it does now",
            "only collectives of one pass, or between the same two starts of step or optimizer, are merged",
        ),
        may_cost=True,
    )


def _awaited_ns(rebuilt: Rebuilt, rows: I64) -> I64:
    """By task: when the first computation that waits for it was launched; -1 none."""
    edges = rebuilt.graph.edges
    found = np.full(len(rebuilt.start_ns), np.iinfo(np.int64).max, np.int64)
    ours = np.zeros(len(found), bool)
    ours[rows] = True
    computes = (rebuilt.graph.kind == TaskKind.COMPUTE) & (rebuilt.launch_ns >= 0)
    mine = ours[edges.source] & computes[edges.target]
    np.minimum.at(found, edges.source[mine], rebuilt.launch_ns[edges.target[mine]])
    return np.where(found == np.iinfo(np.int64).max, -1, found)


def _parts(rebuilt: Rebuilt, mine: I64, awaited_ns: I64 | None) -> I64:
    """Number of the stretch that each part lies in; buckets do not reach over its end. Gathers belong to the
    pass that awaits them."""
    frame = rebuilt.ranks[int(rebuilt.graph.rank[mine[0]])]
    bounds = np.concatenate((frame.step_starts_ns, frame.optimizer_starts_ns, frame.passes.start_ns))
    at = rebuilt.launch_ns[mine]
    if awaited_ns is not None:
        own = awaited_ns[mine]
        # What nothing awaits goes with the next that something does.
        known = np.append(own, at[-1])[_next_known(own >= 0)]
        at = np.where(known >= 0, np.maximum(known, at), at)
    part: I64 = np.searchsorted(np.sort(bounds), at, "right")
    return np.maximum.accumulate(part)


def _first_of_step(rebuilt: Rebuilt, mine: I64) -> I64:
    """By part: the first that was launched in the same step, or since the same optimizer began."""
    frame = rebuilt.ranks[int(rebuilt.graph.rank[mine[0]])]
    bounds = np.sort(np.concatenate((frame.step_starts_ns, frame.optimizer_starts_ns)))
    stretch = np.maximum.accumulate(np.searchsorted(bounds, rebuilt.launch_ns[mine], "right"))
    begins = np.append(True, stretch[1:] != stretch[:-1])
    first: I64 = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    return first


def _next_known(known: Bool) -> I64:
    """Index of the next that is known, its own if it is; the length where none follows."""
    at = np.where(known, np.arange(len(known)), len(known))
    return np.minimum.accumulate(at[::-1])[::-1]


def _buckets(size_bytes: I64, part: I64, bucket_bytes: float, *, ahead: bool) -> I64:
    """Number of the bucket of each collective: a new one where the old is full or another part begins.

    ahead: they come in the order of the forward, so that buckets fill from the last on.
    """
    sizes, parts = size_bytes.tolist(), part.tolist()
    if ahead:
        sizes, parts = sizes[::-1], parts[::-1]
    found = np.empty(len(sizes), np.int64)
    held, bucket, before = 0, -1, -1
    for i, (size, of_part) in enumerate(zip(sizes, parts, strict=True)):
        if of_part != before or held + size > bucket_bytes:
            held, bucket, before = 0, bucket + 1, of_part
        held += size
        found[i] = bucket
    return found if not ahead else bucket - found[::-1]


def _awaited_anew(rebuilt: Rebuilt, whole: I64, first: I64, duration_ns: I64) -> Rebuilt:
    """What waited for a bucket's first part waits for the bucket; later parts hold nothing up, and between
    parts that are gone no time passes."""
    wires = Rewiring(rebuilt)
    source, target = wires.source, wires.target
    moved = (whole[source] >= 0) & (whole[source] != source)
    behind = wires.kind == EdgeKind.STREAM_ORDER
    gone = (whole[source] >= 0) & (duration_ns[source] == 0)
    wires.lag_ns[gone & behind] = np.minimum(wires.lag_ns[gone & behind], 0)
    awaits = moved & ~behind & (whole[target] < 0)
    awaits &= np.isin(wires.kind, (EdgeKind.EVENT, EdgeKind.INFERRED, EdgeKind.HOST_SYNC))
    wires.source = np.where(awaits, whole[source], source)
    return wires.made("a gather would wait for what waits for it")
