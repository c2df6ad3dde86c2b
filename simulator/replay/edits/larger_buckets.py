"""Larger buckets: fewer collectives, for gradients and for the weights gathered in the same buckets.

On a rank that trains on the CPU, threads of the backend and the kernel's copies need cores too. A step tells
how much: of passes of one kind, those that gradients are reduced beside compute longer than those without
(with several micro-batches only the last backward reduces). It is at most the time that the transfer lasts:
then the pass stands still.

A merged reduction starts when its last gradients are ready: its last part carries it. A merged gather has to
be there before the first layer that needs any of it. It is sent for one bucket ahead, as Megatron's is: when
what was gathered before it is first awaited. So the part that was sent for there carries it, and what awaited
its first part awaits it. Buckets fill from the end of the model, and none reaches over a chunk of it.
"""

from __future__ import annotations

import numpy as np

from perfdoc.analyzers.base.intervals import Intervals
from perfdoc.simulator.engine import EdgeKind, TaskKind
from perfdoc.simulator.engine.graph import I64
from perfdoc.simulator.replay.edits.edit import Edit, between_calls, with_durations, with_lags
from perfdoc.simulator.replay.edits.messages import FULL_FRAC, bucket_lines, sequences, usual_bytes
from perfdoc.simulator.replay.edits.rewiring import Rewiring, arrivals, awaiting, is_transfer, launching
from perfdoc.simulator.replay.rebuilt import Rebuilt
from perfdoc.traces.table import F64, Bool

_BESIDE_FRAC = 0.01
"""A pass that communicates for less of its time is one without."""


def with_less_beside(rebuilt: Rebuilt, rows: I64, duration_ns: I64) -> I64:
    """The durations with the computation of passes of CPU ranks shorter (or longer) by what the communication
    `rows` no longer takes of it, if it lasts as these durations say. Where no two passes can be compared,
    nothing changes."""
    found = duration_ns.copy()
    for i, (frame, own) in enumerate(zip(rebuilt.ranks, rebuilt.by_rank(rows), strict=True)):
        mine = rows[own]
        if not frame.on_host or not len(frame.passes) or not len(mine):
            continue
        beside, share = _share_taken(rebuilt, i, mine)
        before, after = (int(d[mine].sum()) for d in (rebuilt.graph.duration_ns, duration_ns))
        if share is None or before <= 0:
            continue
        tasks, at, computed = _computing(rebuilt, i)
        less = share * beside * (1 - after / before)
        factor = 1 - np.minimum(less / np.maximum(computed, 1), 1)
        found[tasks] = np.round(rebuilt.graph.duration_ns[tasks] * factor[at]).astype(np.int64)
    return found


def _share_taken(rebuilt: Rebuilt, rank: int, mine: I64) -> tuple[F64, float | None]:
    """Time of a rank's communication in each of its passes, and what share of it the passes compute longer by
    than those of their kind without; None where there are not both."""
    passes = rebuilt.ranks[rank].passes
    order = np.argsort(rebuilt.start_ns[mine], kind="stable")
    start, end = rebuilt.start_ns[mine[order]], rebuilt.end_ns[mine[order]]
    start = np.maximum(start, np.concatenate((start[:1], np.maximum.accumulate(end)[:-1])))
    running = Intervals(start_ns=start[end > start], end_ns=end[end > start])
    beside = running.covered_within(passes.start_ns, passes.end_ns).astype(np.float64)
    with_it = beside > _BESIDE_FRAC * (passes.end_ns - passes.start_ns)
    _, _, computed = _computing(rebuilt, rank)
    longer, of = 0.0, 0.0
    for forward in (True, False):
        kind = passes.is_forward == forward
        some, none = kind & with_it, kind & ~with_it
        if some.any() and none.any():
            longer += float((computed[some] - computed[none].mean()).sum())
            of += float(beside[some].sum())
    return beside, min(max(longer / of, 0.0), 1.0) if of else None


def _computing(rebuilt: Rebuilt, rank: int) -> tuple[I64, I64, F64]:
    """Computations in the passes of a rank, the pass of each, and what every pass computes in all."""
    graph, passes = rebuilt.graph, rebuilt.ranks[rank].passes
    tasks = np.flatnonzero((graph.kind == TaskKind.COMPUTE) & (graph.rank == rank))
    at = passes.at(rebuilt.launch_ns[tasks])
    tasks, at = tasks[at >= 0], at[at >= 0]
    computed = np.zeros(len(passes), np.float64)
    np.add.at(computed, at, graph.duration_ns[tasks])
    return tasks, at, computed


_LONGER = 3.0
"""Than the median between two parts: the host was kept from them by something else."""


def without_merged_calls(rebuilt: Rebuilt, whole: I64) -> Rebuilt:
    """whole: by task that which carries its bucket, -1 for what is no part of one.

    Between the launches of two parts of one bucket, where nothing else is launched, the host does nothing
    but what has nothing to do with buckets: it collects garbage, loads data, or is away for longer than
    between other parts. On a CPU rank the issue of the second takes no time.
    """
    graph, edges = rebuilt.graph, rebuilt.graph.edges
    parts = np.flatnonzero(whole >= 0)
    call = launching(rebuilt)[0]
    ready = arrivals(rebuilt)
    of_part = call[ready[parts]]
    parts, of_part = parts[of_part >= 0], of_part[of_part >= 0]
    launches = np.zeros(len(whole), bool)
    launches[edges.source[edges.kind == EdgeKind.LAUNCH]] = True
    calls = np.flatnonzero(launches)
    duration, lag = graph.duration_ns.copy(), edges.lag_ns.copy()
    held = np.flatnonzero(between_calls(rebuilt) & (lag > 0))
    hosts = np.flatnonzero(graph.kind == TaskKind.HOST)
    gone = np.zeros(len(duration), bool)
    of_ranks = map(rebuilt.by_rank, (of_part, calls, hosts, edges.target[held]))
    for i, (mine, own_calls, own_hosts, own_held) in enumerate(zip(*of_ranks, strict=True)):
        mine = mine[np.argsort(rebuilt.start_ns[of_part[mine]], kind="stable")]
        earlier, later = of_part[mine[:-1]], of_part[mine[1:]]
        same = (whole[parts[mine[1:]]] == whole[parts[mine[:-1]]]) & (later != earlier)
        if rebuilt.ranks[i].on_host:
            pieces = later[same]
            duration[pieces[graph.kind[pieces] == TaskKind.HOST]] = 0
            continue
        own = np.sort(rebuilt.start_ns[calls[own_calls]])
        place = np.searchsorted(own, rebuilt.start_ns[later]) - np.searchsorted(
            own, rebuilt.start_ns[earlier]
        )
        same &= place == 1
        begin, finish = rebuilt.start_ns[earlier[same]], rebuilt.start_ns[later[same]]
        host = hosts[own_hosts]
        at = np.searchsorted(begin, rebuilt.start_ns[host], "left") - 1
        inside = (at >= 0) & (rebuilt.start_ns[host] <= np.append(finish, 0)[at])
        gone[host[inside]] = True
        duration[host[inside]] = 0
        between = held[own_held]
        between = between[gone[edges.target[between]]]
        lag[between] = _other_work_ns(rebuilt, i, between)
    return with_durations(with_lags(rebuilt, lag), duration)


def _other_work_ns(rebuilt: Rebuilt, rank: int, between: I64) -> I64:
    """Of the host's time on these edges between calls of a rank what is no work for buckets."""
    edges, frame = rebuilt.graph.edges, rebuilt.ranks[rank]
    lag = edges.lag_ns[between]
    begin, end = rebuilt.end_ns[edges.source[between]], rebuilt.start_ns[edges.target[between]]
    other = np.zeros(len(between), np.int64)
    for what in frame.host:
        other += frame.held_ns(what, begin, end)
    own = np.maximum(lag - other, 0)
    most = int(_LONGER * np.median(own)) if len(own) else 0
    return np.asarray(lag - np.minimum(own, most))


_UNCERTAINTY_FRAC = 0.5
"""The line is fitted to few sizes, and bytes beyond the largest seen are extrapolated; by which algorithm so
many are sent is not known."""


def rebucketed(bucket_bytes: int) -> Edit:
    """Consecutive collectives of one rank are merged until a bucket is full, and take latency + bytes /
    bandwidth by the capture's own of their kind.

    bucket_bytes: the message of a usual reduction; gathers and the reductions of other groups (experts) grow
    by the same ratio. Smaller buckets than the capture's are refused when applied: see split_buckets.
    """

    def apply(rebuilt: Rebuilt) -> Rebuilt:
        ours = is_transfer(rebuilt, "dp") & (rebuilt.bytes > 0)
        rows = np.flatnonzero(ours)
        takes_ns = bucket_lines(rebuilt, rows, "dp")
        if len(rows) and bucket_bytes < np.median(rebuilt.bytes[rows]):
            raise ValueError(f"buckets of {bucket_bytes:,} bytes are smaller than those of the capture")
        gathers = rebuilt.reduces[rows] == 0
        ratio = bucket_bytes / usual_bytes(rebuilt.bytes[rows[~gathers] if not gathers.all() else rows])
        waits = awaiting(rebuilt, rows)
        awaited_ns = np.where(waits >= 0, rebuilt.launch_ns[waits], -1)
        whole = np.full(len(rebuilt.start_ns), -1, np.int64)
        """By part: that which carries its bucket."""
        first = np.zeros(len(whole), bool)
        duration = rebuilt.graph.duration_ns.copy()
        for mine in sequences(rebuilt, rows):
            is_gather = bool(rebuilt.reduces[mine[0]] == 0)
            part = _parts(rebuilt, mine, awaited_ns if is_gather else None)
            full = ratio * usual_bytes(rebuilt.bytes[mine]) * FULL_FRAC
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
        name=f"dp buckets of {bucket_bytes:,} bytes",
        apply=apply,
        uncertainty_frac=_UNCERTAINTY_FRAC,
        leaves=("exposed_comm.dp", "idle.host", "idle.launch_latency"),
        assumptions=(
            "a collective takes latency + bytes / bandwidth, as fitted to its kind in the capture",
            "a reduction starts when its last gradient is ready; an all-gather runs one bucket ahead",
            "a CPU rank computes slower during communication, as measured",
            "only collectives of one pass, or between the same step or optimizer starts, are merged",
        ),
        may_cost=True,
    )


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
    return np.asarray(np.flatnonzero(begins)[np.cumsum(begins) - 1])


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
    return wires.made("this would create a dependency cycle (an all-gather)")
