"""The ledger's idle.host by what launching threads did: CUDA calls by kind, computing, waiting, unknown.

Where another thread launched what ran before, the launching one may wait for that one: then both must wait
for the time to count as waiting, and either that computes makes it computing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from perfdoc.analyzers.base.intervals import EMPTY, I64, Intervals, union
from perfdoc.analyzers.base.rows import row_keys, sum_by
from perfdoc.analyzers.device.offload import pauses_with_sent
from perfdoc.analyzers.device.stalls import ThreadTimes, WaitKind, thread_times
from perfdoc.analyzers.device.view import DeviceView
from perfdoc.analyzers.host.calls import CallKind, HostCalls, is_graph_launch, plain_name
from perfdoc.analyzers.host.idle import BLOCKING, HostIdle, ThreadIdle
from perfdoc.records import dataclass
from perfdoc.results.host import CallIdle, HostSplit, ThreadWait
from perfdoc.results.quality import MEASURED
from perfdoc.traces.model import CopyKind
from perfdoc.traces.table import among

MAX_WAITS = 12
LAUNCHING_MAX_NS = 10_000_000
"""Python takes microseconds to milliseconds from one launch to the next. Without a CUDA call for longer, the
host does or waits for something else."""
MIN_COPY_BYTES = 1 << 12
"""Of a batch: 512 tokens of 8 bytes. What is smaller is a scalar or a mask."""
_SPARSE_MAX_NS = 1_000_000
"""The same of a thread whose launches mostly lie further apart than this: it is not busy with launching. And
of one that seldom takes as long."""
_IN_TURN, _NEAR, _MOST = 24, 3, 0.9
"""Kernels, as many as a layer has, launched so late each, two others between them at most: the host launches
slowly there, as in a debugger or beside a tracer. So many of these times are what launching takes."""
_RARE_FRAC, _RARE_A_STEP = 0.005, 4
"""Of the times between calls, or so many a step: where no more are so long, launching does not take them, and
a graph of each layer, which has all others, leaves them."""
_FEW_FRAC = 0.1
"""Of the times between calls: where no more are longer than all others by far, as one a micro-batch."""
_OUTLIER, _TIMES = 2, 20
"""Times as long as the longest of the others, and as the median, that a rare one is."""
_GRAPHS_MAX_NS = 100_000
"""The same of a thread that mostly launches whole graphs: one call has no others to be late for."""
_GRAPHS_A_STEP = 2
"""Of prefill and decoding, or of forward and backward."""
_MAX_PAIRS = 1_000
"""Of the thread that launched before and the one that launched after: a program has a few."""


@dataclass(frozen=True, kw_only=True)
class PythonSplit:
    """Parts of HostSplit.python_ns, as it has them."""

    computing_ns: int | None
    waiting_ns: int | None
    between_steps_ns: int | None
    pausing_ns: int
    before_copies_ns: int | None
    offloaded_ns: int | None
    waits: list[ThreadWait]


def slow_launching_ns(kernel_ns: I64, between_end_ns: I64, between_ns: I64, steps: int) -> int:
    """The longest time between calls where many kernels of a step in turn are launched late, 0 where none
    are: from the starts of their launches, ascending, and ends and lengths of all times between calls."""
    before = np.bincount(np.searchsorted(kernel_ns, between_end_ns), between_ns, len(kernel_ns) + 1)
    late = np.flatnonzero(before[:-1] > _SPARSE_MAX_NS)
    if not steps or len(late) <= _RARE_A_STEP * steps:
        return 0
    runs = np.split(late, np.flatnonzero(np.diff(late) > _NEAR) + 1)
    slow = [before[run] for run in runs if len(run) >= _IN_TURN]
    return _OUTLIER * int(np.quantile(np.concatenate(slow), _MOST)) if slow else 0


def launching_max_ns(launch_ns: I64, between_ns: I64, steps: int, slow_ns: int) -> int:
    """The longest time from one call of a thread to the next that counts as launching, from the starts of its
    launches, ascending, the times between its calls in so many steps, and slow_launching_ns."""
    usual = float(np.median(np.diff(launch_ns), overwrite_input=True)) if len(launch_ns) > 1 else 0.0
    if usual > _SPARSE_MAX_NS and not slow_ns:
        return _SPARSE_MAX_NS
    rare = max(round(_RARE_FRAC * len(between_ns)), _RARE_A_STEP * steps)
    if not steps or rare >= len(between_ns):  # no step, nothing that could be seldom in it
        return LAUNCHING_MAX_NS
    few = min(max(rare, round(_FEW_FRAC * len(between_ns))), len(between_ns) - 1)
    longest = -np.sort(np.partition(-between_ns, few)[: few + 1])
    apart_by_far = longest[:-1] >= np.maximum(_OUTLIER * longest[1:], max(_TIMES * usual, _SPARSE_MAX_NS))
    breaks = np.flatnonzero(apart_by_far)
    other = int(longest[max(rare, int(breaks[-1]) + 1 if len(breaks) else 0)])
    return min(max(_OUTLIER * other, round(_TIMES * usual), slow_ns, _SPARSE_MAX_NS), LAUNCHING_MAX_NS)


def python_split(
    view: DeviceView, idle: HostIdle, calls: HostCalls, threads: Sequence[ThreadIdle]
) -> PythonSplit:
    """Divide what of a device's idle.host lies in no CUDA call."""
    between = view.idle_inputs.stalls.pauses if len(view.step_ranges.met.start_ns) > 1 else None
    traced = view.trace.capabilities["thread_states"].available or len(view.trace.os_calls) > 0  # MPI alone

    @cache
    def times_of(thread: int) -> ThreadTimes:
        return thread_times(view.trace, view.known, thread)

    in_steps = union(view.step_ranges.start_ns, view.step_ranges.end_ns)
    by_graphs = False
    copied = _before_copies(view, idle)
    scheduled = known = computing_ns = waiting_ns = between_ns = pausing_ns = copied_ns = offloaded_ns = 0
    waits: dict[tuple[WaitKind, str | None], int] = defaultdict(int)
    for thread, before, outside in _outside_calls(idle, calls, threads):
        waiting = EMPTY
        if traced:
            own, other = times_of(thread), times_of(thread if before < 0 else before)
            scheduled += any(t.scheduled for t in (own, other))
            known += any(t.scheduled or len(t.waiting) for t in (own, other))
            computing = own.computing | other.computing
            waiting = _inside(outside, own.waiting) if own is other else _both(outside, own, other)
            waiting = waiting - computing
            computing_ns += computing.overlap_ns(outside)
            waiting_ns += waiting.total_ns
            copied_ns += copied.overlap_ns(waiting)
            rest = waiting
            for call, kind, in_call in own.calls:
                waits[kind, call] += in_call.overlap_ns(waiting)
                rest = rest - in_call
            waits["other", None] += rest.total_ns
        rest = outside - waiting
        if between is not None:
            between_ns += between.overlap_ns(rest)
            rest = rest - between
        long = _pauses(calls, thread, outside, view)
        silent = long if between is None else long | between
        sent = pauses_with_sent(view.trace, view.activity.device, silent, view.window.steps)
        offloaded_ns += sent.overlap_ns(outside)
        pauses = _inside(long, rest)
        copied_ns += copied.overlap_ns(pauses)
        if most_ns := _graphs_max_ns(view, calls, thread):
            pauses = _inside(_pauses(calls, thread, rest, view, most_ns), rest)
            between_ns += (pauses - in_steps).total_ns
            pauses, by_graphs = _inside(pauses, in_steps), True
        pausing_ns += pauses.total_ns
    ranked = sorted(waits.items(), key=lambda w: (-w[1], w[0][1] or ""))
    return PythonSplit(
        computing_ns=computing_ns if scheduled else None,
        waiting_ns=waiting_ns if known else None,
        between_steps_ns=None if between is None and not by_graphs else between_ns,
        pausing_ns=pausing_ns,
        before_copies_ns=copied_ns if len(view.trace.copies) else None,
        offloaded_ns=offloaded_ns if len(view.trace.copies) else None,
        waits=[ThreadWait(kind=k, call=c, idle_ns=ns) for (k, c), ns in ranked[:MAX_WAITS] if ns],
    )


def _before_copies(view: DeviceView, idle: HostIdle) -> Intervals:
    """Host idle of gaps that a copy to the device ended, of `MIN_COPY_BYTES` at least where that is known."""
    copies = view.trace.copies
    large = (copies.bytes < 0) | (copies.bytes >= MIN_COPY_BYTES)
    rows = (copies.device == view.activity.device) & (copies.kind == CopyKind.HOST_TO_DEVICE) & large
    ended = among(idle.gap_end_ns, copies.start_ns[rows])[idle.piece_gap]
    return union(idle.piece_start_ns[ended], idle.piece_end_ns[ended])


def _graphs_max_ns(view: DeviceView, calls: HostCalls, thread: int) -> int:
    """The longest time between calls that counts as launching on a thread that launches whole graphs, as of
    an iteration: two a step at most; where none is known, two for each wait for the device. 0 of any other: a
    graph a layer is launched as kernels are. TensorRT's code launches in microseconds."""
    if view.program.is_tensorrt:
        return _SPARSE_MAX_NS
    mine = calls.of_thread(thread)
    often = view.window.steps or int(np.count_nonzero(calls.kind[mine] == CallKind.SYNCHRONISING))
    launches = calls.kind[mine] == CallKind.LAUNCH
    name, count = np.unique(calls.name[mine][launches], return_counts=True)
    graphs = np.array([is_graph_launch(view.trace.strings[i]) for i in name.tolist()], np.bool_)
    launched = int(count[graphs].sum())
    if not 0 < launched <= _GRAPHS_A_STEP * often:
        return 0
    whole, kernels = (
        int((t.end_ns - t.start_ns)[t.device == view.activity.device].sum())
        for t in (view.trace.graph_launches, view.trace.kernels)
    )
    mostly = 2 * launched > int(count.sum())
    return _GRAPHS_MAX_NS if mostly else _SPARSE_MAX_NS if whole > kernels else 0


def _pauses(calls: HostCalls, thread: int, idle: Intervals, view: DeviceView, most_ns: int = 0) -> Intervals:
    """When a thread was in no CUDA call for longer than launching takes, or most_ns, from the window's begin
    to the end of the idle time."""
    mine = calls.of_thread(thread)
    if not len(idle):
        return EMPTY
    apart = calls.covered.get(thread, EMPTY).gaps(view.window.start_ns, int(idle.end_ns[-1]))
    length = apart.end_ns - apart.start_ns
    if not most_ns:
        activity = view.activity
        kernels = (activity.kernel >= 0) & (activity.launch_thread == thread)
        launched, steps = activity.launch_start_ns[kernels], view.window.steps
        launched.sort()
        # Before a late launch half as long goes by since the last one, or in one time between calls.
        half = _SPARSE_MAX_NS // 2
        late = 1 + sum(np.count_nonzero(times > half) for times in (np.diff(launched), length))
        rare = late <= _RARE_A_STEP * steps
        slow_ns = 0 if rare else slow_launching_ns(launched, apart.end_ns, length, steps)
        del launched, kernels  # for which the next takes as much
        launches = calls.start_ns[mine][calls.kind[mine] == CallKind.LAUNCH]
        most_ns = launching_max_ns(launches, length, steps, slow_ns)
    some = length > most_ns
    return Intervals(apart.start_ns[some], apart.end_ns[some])


def _outside_calls(
    idle: HostIdle, calls: HostCalls, threads: Sequence[ThreadIdle]
) -> Iterator[tuple[int, int, Intervals]]:
    """Idle in no CUDA call, as HostSplit.python_ns counts it, by the thread that launched what ended the gap
    and the one that launched what ran before."""
    blocked = EMPTY
    for thread in threads:
        if not len(thread.handed):
            continue
        mine = calls.of_thread(thread.thread)
        start, end, kind = calls.start_ns[mine], calls.end_ns[mine], calls.kind[mine]
        blocking = np.isin(kind, BLOCKING)
        blocked = blocked | _inside(thread.handed, union(start[blocking], end[blocking]))
    thread_of, before_of = idle.thread[idle.piece_gap], idle.before_thread[idle.piece_gap]
    first, pair = row_keys(thread_of, before_of)
    if len(first) > _MAX_PAIRS:
        return
    pairs = zip(thread_of[first].tolist(), before_of[first].tolist(), range(len(first)), strict=True)
    for thread_at, before_at, i in sorted(pairs):
        rows = np.flatnonzero(pair == i)
        pieces = union(idle.piece_start_ns[rows], idle.piece_end_ns[rows])
        yield thread_at, before_at, pieces - blocked - calls.covered.get(thread_at, EMPTY)


def _both(times: Intervals, one: ThreadTimes, other: ThreadTimes) -> Intervals:
    return _inside(_inside(times, one.waiting), other.waiting)


def _inside(times: Intervals, of: Intervals) -> Intervals:
    return times - (times - of)


MAX_CALLS = 12


def split_host_idle(
    view: DeviceView, idle: HostIdle, calls: HostCalls, threads: Sequence[ThreadIdle]
) -> HostSplit:
    """Partition the host idle of one device."""
    python = python_split(view, idle, calls, threads)  # takes most memory: what follows has none yet
    inside_ns = np.zeros(len(calls.start_ns), np.int64)
    by_kind = np.zeros(len(CallKind), np.int64)
    for thread in threads:
        mine = calls.of_thread(thread.thread)
        inside_ns[mine] = thread.inside_ns(calls.start_ns[mine], calls.end_ns[mine])
        idled = mine.start + np.flatnonzero(inside_ns[mine])
        by_kind += thread.kinds_ns(calls.start_ns[idled], calls.end_ns[idled], calls.kind[idled])
    python_ns = idle.total_ns - int(by_kind.sum())
    assert python_ns >= 0, (idle.total_ns, by_kind)
    return HostSplit(
        **MEASURED,
        python_ns=python_ns,
        **vars(python),
        synchronising_ns=int(by_kind[CallKind.SYNCHRONISING]),
        allocation_ns=int(by_kind[CallKind.ALLOCATION]),
        module_load_ns=int(by_kind[CallKind.MODULE_LOAD]),
        launch_ns=int(by_kind[CallKind.LAUNCH]),
        stream_allocation_ns=int(by_kind[CallKind.STREAM_ALLOCATION]),
        other_call_ns=int(by_kind[CallKind.OTHER]),
        host_ns=idle.total_ns,
        calls=_by_call(calls, inside_ns, view.trace.strings),
    )


def _by_call(calls: HostCalls, inside_ns: I64, strings: Sequence[str]) -> list[CallIdle]:
    idled = np.flatnonzero(inside_ns)
    names, code = np.unique(calls.name[idled], return_inverse=True)
    total = sum_by(code, inside_ns[idled], len(names)).tolist()
    count = np.bincount(code, minlength=len(names)).tolist()
    found: dict[str, tuple[int, int]] = {}
    for i, n, ns in zip(names.tolist(), count, total, strict=True):
        name = plain_name(strings[i])
        before = found.get(name, (0, 0))
        found[name] = before[0] + n, before[1] + ns
    ranked = sorted(found.items(), key=lambda item: (-item[1][1], item[0]))[:MAX_CALLS]
    return [CallIdle(call=name, count=n, idle_ns=ns) for name, (n, ns) in ranked]
