"""Messages in other bytes or buckets; of smaller ones gradients are reduced while the backward still runs.

A gathered bucket of n parts: the first is sent for when the whole was, ahead of time. The others are sent for
when the first is awaited, which is where a layer already waits: they are exposed. Gathers that are sent for
all at once stay so: their parts run in order.

A reduced bucket of n parts: the first is ready when 1 / n of the time has passed in which its gradients came,
the last with the last of them, and the parts run in order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64, NONE
from perfdoc.simulator.replay.edits.edit import Change, Edit, with_durations
from perfdoc.simulator.replay.edits.larger_buckets import rebucketed
from perfdoc.simulator.replay.edits.messages import (
    FULL_FRAC,
    beyond_latency,
    latency_of,
    sequences,
    usual_bytes,
)
from perfdoc.simulator.replay.edits.rewiring import (
    NOT_BY_DDP,
    NOT_BY_ZERO,
    Begins,
    arrivals,
    awaiting,
    in_parts,
    is_transfer,
    neighbours,
)
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import Bool

_SPLIT_UNCERTAINTY_FRAC = 1.0
"""Gradients do not come evenly (an embedding's come at once, at the end), and communication beside the
backward slows both down."""


def split_buckets(bucket_bytes: int) -> Edit:
    """Reductions of gradients larger than this are cut into equal parts of at most this, each reduced as
    soon as it is ready in the last backward pass before it; gathers by the same ratio.

    Reductions are what is launched from the first backward pass of a step to its optimizer.
    """

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        latency_ns = latency_of(rebuilt, "dp")
        ours = is_transfer(rebuilt, "dp") & (rebuilt.bytes > 0)
        gathers = np.flatnonzero(ours & (rebuilt.reduces == 0))
        large = ours & (rebuilt.bytes > bucket_bytes)
        chosen = np.concatenate([_reductions(rebuilt, i, large) for i in range(len(rebuilt.ranks))])
        if not len(chosen):
            raise ValueError(
                f"no dp reduction of more than {bucket_bytes:,} bytes between the backward and the optimizer"
            )
        ratio = bucket_bytes / usual_bytes(rebuilt.bytes[chosen])
        parts = np.ones(len(ours), np.int64)
        parts[chosen] = -(-rebuilt.bytes[chosen] // bucket_bytes)
        first = _first_ready(rebuilt, chosen, arrivals(rebuilt)[chosen], parts[chosen])
        parts[gathers] = _parts_of_gathers(rebuilt, gathers, ratio)
        return in_parts(rebuilt, parts, latency_ns, first=first, second=_sent_for(rebuilt, gathers))

    return Edit(
        name=f"dp buckets of at most {bucket_bytes:,} bytes",
        apply=apply,
        uncertainty_frac=_SPLIT_UNCERTAINTY_FRAC,
        leaves=("exposed_comm.dp",),
        assumptions=(
            "gradients become ready evenly over the backward pass between buckets",
            "a smaller bucket takes the latency of the capture's collectives and its share of the rest",
            "weights are all-gathered in the same buckets: less is prefetched, the rest is waited for",
            "no contention between communication and compute",
        ),
        may_cost=True,
    )


def _parts_of_gathers(rebuilt: Rebuilt, gathers: I64, ratio: float) -> I64:
    """Into how many each is cut, so that a usual one of its stream has at most `ratio` of its size."""
    parts = np.ones(len(rebuilt.start_ns), np.int64)
    for mine in sequences(rebuilt, gathers):
        full = ratio * usual_bytes(rebuilt.bytes[mine]) * FULL_FRAC
        parts[mine] = np.maximum(np.ceil(rebuilt.bytes[mine] / full), 1)
    return parts[gathers]


def _sent_for(rebuilt: Rebuilt, gathers: I64) -> Begins:
    """The second part is sent for as the first is awaited, behind the kernel before the one that waits, where
    the next gather is so too."""
    waiting, (before, _) = awaiting(rebuilt, gathers), neighbours(rebuilt)
    ahead = []
    for mine in sequences(rebuilt, gathers):
        waits, later = waiting[mine[:-1]], rebuilt.launch_ns[mine[1:]]
        since = np.where(before[waits] >= 0, rebuilt.launch_ns[before[waits]], np.iinfo(np.int64).min)
        at_wait = (waits >= 0) & (since <= later) & (later <= rebuilt.launch_ns[waits])
        # The last one is as the one before it; a single one shows nothing, and stays as sent for now.
        ahead.append(mine[np.append(at_wait, at_wait[-1:].any()) & (waiting[mine] >= 0)])
    task = np.concatenate(ahead) if ahead else gathers
    return Begins(task=task, after=before[waiting[task]], lag_ns=0)


def _reductions(rebuilt: Rebuilt, rank: int, ours: Bool) -> I64:
    """Of these tasks those of a rank launched from a step's first backward to its optimizer, by launch."""
    frame = rebuilt.ranks[rank]
    rows = np.flatnonzero(ours & (rebuilt.graph.rank == rank))
    begin, _ = frame.passes.backward
    if not len(rows):
        return rows
    if not len(begin):
        raise ValueError("no range of the capture shows the backward pass")
    launch = rebuilt.launch_ns[rows]
    last_backward = np.append(begin, 0)[np.searchsorted(begin, launch, "right") - 1]
    bounds = np.sort(np.concatenate((np.array(frame.step_starts_ns, np.int64), frame.optimizer_starts_ns)))
    last_bound = np.append(bounds, np.iinfo(np.int64).min)[np.searchsorted(bounds, launch, "right") - 1]
    kept = (np.searchsorted(begin, launch, "right") > 0) & (last_backward >= last_bound)
    return rows[kept][np.argsort(launch[kept], kind="stable")]


def _first_ready(rebuilt: Rebuilt, chosen: I64, arrival: I64, parts: I64) -> Begins:
    """After which computation each bucket's first part is ready."""
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    # When all of it was ready, as measured: the end of what it waited for that is no communication.
    ready = np.full(len(graph.duration_ns), np.iinfo(np.int64).min, np.int64)
    own = ~np.isin(graph.kind[edges.source], (TaskKind.COMMUNICATION, TaskKind.MEETING))
    # A launch waits for no gradient on a GPU; on a CPU rank it is all there is.
    own &= (edges.kind != EdgeKind.LAUNCH) | rebuilt.on_host[edges.source]
    np.maximum.at(ready, edges.target[own], rebuilt.end_ns[edges.source[own]])
    until = np.where(ready[arrival] > np.iinfo(np.int64).min, ready[arrival], rebuilt.start_ns[arrival])
    source, since = np.full(len(chosen), NONE, np.int64), np.zeros(len(chosen), np.int64)
    computing = np.flatnonzero(graph.kind == TaskKind.COMPUTE)
    of_ranks = rebuilt.by_rank(chosen), rebuilt.by_rank(computing)
    for frame, mine, own_work in zip(rebuilt.ranks, *of_ranks, strict=True):
        if not len(mine):
            continue
        work = computing[own_work]
        work = work[np.argsort(rebuilt.end_ns[work], kind="stable")]
        begin, _ = frame.passes.backward
        at = np.searchsorted(begin, rebuilt.launch_ns[chosen[mine]], "right") - 1
        passed = _begun(rebuilt, work, begin, frame.passes.backward[1])[at]
        order = np.lexsort((until[mine], at))
        before = np.concatenate(([NONE], order[:-1]))
        same = np.concatenate(([False], at[order[1:]] == at[order[:-1]]))
        since_ns = passed.copy()
        since_ns[order[same]] = np.maximum(passed[order[same]], until[mine[before[same]]])
        since_ns = np.minimum(since_ns, until[mine])
        first_ns = since_ns + (until[mine] - since_ns) // parts[mine]
        last = np.searchsorted(rebuilt.end_ns[work], first_ns, "right") - 1
        known = last >= 0
        source[mine[known]] = work[last[known]]
        since[mine[known]] = first_ns[known] - rebuilt.end_ns[work[last[known]]]
    return Begins(task=chosen, after=source, lag_ns=since)


def _begun(rebuilt: Rebuilt, work: I64, begin: I64, end: I64) -> I64:
    """When each backward began on the device: the first computation launched in it."""
    launch = rebuilt.launch_ns[work]
    at = np.searchsorted(begin, launch, "right") - 1
    inside = (at >= 0) & (launch < end[np.maximum(at, 0)])
    first = np.full(len(begin), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(first, at[inside], rebuilt.start_ns[work[inside]])
    return np.where(first == np.iinfo(np.int64).max, begin, first)


_BYTES_UNCERTAINTY_FRAC = 0.2
"""A smaller message may be sent by another algorithm, and casting takes time on both sides."""


def other_bytes(factor: float, *, at_least_bytes: int = 1, reducing: bool = False) -> Edit:
    """Data-parallel messages hold `factor` times the bytes; their latency stays.

    at_least_bytes: smaller messages stay as they are (a scalar that is agreed on is no gradient).
    reducing: only collectives that are known to reduce: gradients change their type, gathered weights do not.
    """

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        graph = rebuilt.graph
        latency_ns = latency_of(rebuilt, "dp")
        ours = is_transfer(rebuilt, "dp") & (rebuilt.bytes >= at_least_bytes)
        if reducing:
            ours &= rebuilt.reduces == 1
        if not ours.any():
            what = "reduction" if reducing else "message"
            raise ValueError(f"no dp {what} of at least {at_least_bytes:,} bytes")
        takes = np.round(beyond_latency(graph.duration_ns, latency_ns, factor)).astype(np.int64)
        return with_durations(rebuilt, np.where(ours, takes, graph.duration_ns))

    return Edit(
        name=f"dp {'reductions, ' if reducing else ''}bytes x {factor:g}",
        apply=apply,
        uncertainty_frac=_BYTES_UNCERTAINTY_FRAC,
        leaves=("exposed_comm.dp",),
        assumptions=("message time beyond latency is proportional to bytes", "the cast takes no time"),
        may_cost=factor > 1,
    )


_LARGER, _SMALLER = 4.0, 0.25
"""Buckets, as a multiple of the usual size, which their titles say. They say no bytes: a message is one
rank's piece of a bucket, and the setting counts the elements of the whole."""


def _usual_bytes(rebuilt: Rebuilt) -> int:
    size = rebuilt.bytes[is_transfer(rebuilt, "dp") & (rebuilt.bytes > 0)]
    usual = int(usual_bytes(size)) if len(size) else 0
    if not usual:
        raise ValueError("the capture shows no dp communication of known size")
    return usual


def _of_buckets(key: str, title: str, make: Callable[[Rebuilt], Edit]) -> Change:
    return Change(
        key=key,
        title=title,
        settings="bucket_size",
        words={
            "pytorch": "DDP's bucket_cap_mb",
            "FSDP": "layers in a unit of fully_shard",
            "DeepSpeed's file": "reduce_bucket_size",
            **NOT_BY_DDP,
            **NOT_BY_ZERO,
        },
        family="buckets",
        rule="PD101",
        time="exposed_comm.dp",
        make=make,
    )


CHANGES = (
    _of_buckets(
        "buckets_x4",
        "DP buckets 4 times as large",
        lambda rebuilt: rebucketed(round(_LARGER * _usual_bytes(rebuilt))),
    ),
    _of_buckets(
        "buckets_x0.25",
        "DP buckets a quarter as large",
        lambda rebuilt: split_buckets(max(round(_SMALLER * _usual_bytes(rebuilt)), 1)),
    ),
    Change(
        key="dp_half_bytes",
        title="gradient reduction in half the bytes",
        settings="grad_reduce_in_fp32",
        words={
            "pytorch": "DDP's bf16_compress_hook",
            "FSDP": "reduce_dtype of FSDP's mixed precision",
            "DeepSpeed's file": "communication_data_type",
            **NOT_BY_DDP,
        },
        family="dp_bytes",
        rule="PD101",
        time="exposed_comm.dp",
        exact=False,
        ways=({"grad_reduce_in_fp32": False},),
        make=lambda rebuilt: other_bytes(
            0.5, at_least_bytes=max(_usual_bytes(rebuilt) // 2, 1), reducing=True
        ),
    ),
)
