"""Whether a capture holds all that its devices ran: calls whose work is not in it, work whose call is not.

A subsampled or filtered file shows idle time where kernels were left out. What tells: a call that launches
work long enough before the last activity has a row of that work under its correlation id, and a kernel that
starts long enough after the first launch has a row of its launch. Long enough: longer than any work of the
process stood in the queue, so that the ends of a capture accuse nobody (host_bound_2gpu_h100 runs 439 ms
ahead: half of its kernels have no launch in the file, and none is missing).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, union
from perfdoc.analyzers.base.rows import ascends, kept, picked, said_by_names
from perfdoc.analyzers.device.launches import Launches
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.results.figures import per_cent
from perfdoc.results.names import opening
from perfdoc.results.quality import NO_EVENTS, EventCounts
from perfdoc.traces import Capability, Copies, GraphLaunches, Kernels, Note, Trace
from perfdoc.traces.model import Operators
from perfdoc.traces.table import Bool, among, distinct, unique

MIN_COUNTED = 20
"""Of fewer calls or kernels no share is taken."""
MAX_MISSING_FRAC = 0.05
"""Figures may be as far off: as much as the replay may (DESIGN section 3)."""
SAMPLED_FRAC = 0.5
"""With so few launches left the file was sampled, and kernels most likely with them."""
_FEWEST_SAMPLED = 5
"""Launches without a kernel and kernels without a launch, where most of both are: alone they may be of the
ends of a capture, both at once are not."""

_LAUNCH = pattern_of(
    r"^(cuda|cu|hip|musa|tops)(Ext)?(Module)?Launch(Cooperative)?Kernel|^(ur|pi)Enqueue\w*KernelLaunch"
)
# Sets are left out: those of 0 bytes leave no row (21 of 22 in bert_small_forward_h100).
_COPY = pattern_of(r"^(cuda|cu|hip)Memcpy")
_LAUNCHING = pattern_of(
    r"aten::(mm|addmm|bmm|baddbmm|_scaled_mm|_?convolution|(cudnn|miopen)_convolution|convolution_backward|gelu|"
    r"(native|cudnn)_batch_norm|native_(layer_norm|dropout)|_(log_)?softmax|_(flash|efficient)_attention_forward)"
    r"(_backward)?(,|$)"
)
"""Operators that launch a kernel on a GPU, each time: 22,000 of 22,000 in 22 whole traces do. Also as a range
of emit_nvtx."""
_RECORDING = pattern_of(r"^(cuda|cu|hip)Stream(Begin|End)Capture")

REMEDY = (
    "Give the whole file: neither filtered nor subsampled. If it is whole, capture fewer steps at a time."
)


@dataclass(frozen=True, kw_only=True)
class Launched:
    """The kernel launches of one process, by time; of those near the ends of the capture too."""

    begin_ns: I64
    without_work: Bool
    untimed: Bool
    """Of these, whose kernel is in the file and was set aside for its times: nobody left it out."""

    @property
    def all_there(self) -> bool:
        """Whether hardly any lacks its kernel."""
        missing = self.without_work & ~self.untimed
        return len(self.begin_ns) > 0 and bool(missing.mean() <= MAX_MISSING_FRAC)

    def share_between(self, start_ns: I64, end_ns: I64) -> tuple[I64, I64]:
        """How many launches begin in each of these stretches, and how many of them have no kernel."""
        ends = [np.searchsorted(self.begin_ns, at, "left") for at in (start_ns, end_ns)]
        lost = np.concatenate(([0], np.cumsum(self.without_work)))
        return ends[1] - ends[0], lost[ends[1]] - lost[ends[0]]


_NONE = np.empty(0, bool)
NO_LAUNCHED = Launched(begin_ns=np.empty(0, np.int64), without_work=_NONE, untimed=_NONE)


def event_counts(trace: Trace, launches: Launches, process: int) -> tuple[EventCounts, Launched]:
    """What does not correspond, of a process that used a device."""
    api = trace.api_calls
    every = trace.calls_of(trace.threads_of(process))
    (own,) = kept(picked(api.correlation, every) >= 0, every)
    name = picked(api.name, own)
    launching, copying, recorded = (
        own[trace.call_names_with(pattern)[name]] for pattern in (_LAUNCH, _COPY, _RECORDING)
    )
    if not len(launching):
        return NO_EVENTS, NO_LAUNCHED
    devices = [i for i, d in enumerate(trace.devices) if d.process == process]
    work: tuple[tuple[Kernels | Copies | GraphLaunches, I64], ...] = (
        (trace.kernels, launches.kernels),
        (trace.copies, launches.copies),
        (trace.graph_launches, launches.graph_launches),
    )
    mine = [among(table.device, devices) & (table.correlation >= 0) for table, _ in work]
    of_work = [kept(m, t.start_ns, t.correlation, row) for (t, row), m in zip(work, mine, strict=True)]
    start, ids, call = (np.concatenate(parts) for parts in zip(*of_work, strict=True))
    if not len(start):
        return NO_EVENTS, NO_LAUNCHED
    # Queued at most; of work whose call is known.
    started, called = kept(call >= 0, start, call)
    queued_ns = int((started - api.start_ns[called]).max(initial=0))
    del started, called
    last_ns, first_ns = int(start.max()), int(api.start_ns[launching].min())
    recording = _recording(trace, own, recorded)
    untimed = trace.untimed.correlation[among(trace.untimed.device, devices)]

    def calls_without_work(rows: I64, unlinked: int) -> tuple[int, int, Launched]:
        """Calls that count, and those of them whose work is not there; and all of them. unlinked: rows of
        such work whose call is not known, as ROCm's communication kernels may be: they are there."""
        rows, matched = _outermost(trace, rows, among(api.correlation[rows], ids))
        begin, number = api.start_ns[rows], api.correlation[rows]
        real = recording.covered_within(begin, begin + 1) == 0
        counts = (begin + queued_ns < last_ns) & real
        counts &= (number >= ids.min()) & (number <= ids.max())  # else the ids do not refer to one another
        order = np.argsort(begin[real], kind="stable")
        of_all = Launched(
            begin_ns=begin[real][order],
            without_work=~matched[real][order],
            untimed=(~matched & among(number, untimed))[real][order],
        )
        known = NO_LAUNCHED if unlinked or not matched.any() else of_all
        return int(counts.sum()), max(int((counts & ~matched).sum()) - unlinked, 0), known

    unlinked_kernels, unlinked_copies = (
        int((among(t.device, devices) & (t.correlation < 0)).sum()) for t in (trace.kernels, trace.copies)
    )
    begins, number, launch = of_work[0]
    late = begins > first_ns + queued_ns
    late &= (number >= api.correlation[launching].min()) & (number <= api.correlation[launching].max())
    counted, without, launched = calls_without_work(launching, unlinked_kernels)
    copies, copies_without, _ = calls_without_work(copying, unlinked_copies)
    kernels, alone = int(late.sum()), int((late & (launch < 0)).sum())
    launches_missing = _missing(alone, kernels, "kernels", "launch call")
    sampled = min(counted, kernels) >= _FEWEST_SAMPLED and min(
        without / max(counted, 1), alone / max(kernels, 1)
    )
    launching = every[trace.call_names_with(_LAUNCH)[picked(api.name, every)]]  # with an id or without
    operators, idle_operators = _operators_without_launch(trace, launching)
    found = EventCounts(
        launches=counted,
        launches_without_work=without,
        copy_calls=copies,
        copy_calls_without_work=copies_without,
        kernels=kernels,
        kernels_without_launch=alone,
        work_missing=_missing(without, counted, "kernel launches", "kernel")
        or _missing(copies_without, copies, "copy calls", "copy")
        or _missing(idle_operators, operators, "operators that launch kernels", "launch")
        or (launches_missing if counted < MIN_COUNTED and alone > SAMPLED_FRAC * kernels else "")
        or (_share(without, counted, "kernel launches", "kernel") if sampled > SAMPLED_FRAC else ""),
        launches_missing=launches_missing,
    )
    return found, launched


def _operators_without_launch(trace: Trace, launching: I64) -> tuple[int, int]:
    """Operators that launch kernels, of threads that launch any, and those that launched none: there a launch
    and its kernel were left out together. Of those of one name and shape that never launch nothing is known:
    they may run on the CPU."""
    api, counted, idle = trace.api_calls, 0, 0
    threads = np.flatnonzero(np.bincount(api.thread[launching]))
    for table in (trace.operators, trace.ranges):
        rows, names = kept(among(table.thread, threads), np.arange(len(table)), table.name)
        launches = said_by_names(
            trace.strings, names, lambda n: _LAUNCHING.match(n) is not None, False, trace.alike
        )
        rows = rows[launches]
        if not len(rows):
            continue
        launched = np.zeros(len(rows), bool)
        for thread in unique(table.thread[rows]).tolist():
            of = np.flatnonzero(table.thread[rows] == thread)
            begin = np.sort(api.start_ns[launching[api.thread[launching] == thread]])
            first, last = (
                np.searchsorted(begin, at[rows[of]], "left") for at in (table.start_ns, table.end_ns)
            )
            launched[of] = last > first
        shape = table.dims[rows] if isinstance(table, Operators) else np.zeros(len(rows), np.int32)
        _, kind = distinct(table.name[rows].astype(np.int64) << 32 | shape)
        does = np.bincount(kind, launched, minlength=1)[kind] > 0
        counted, idle = counted + int(does.sum()), idle + int((does & ~launched).sum())
    return counted, idle


def within(counts: EventCounts, launched: Launched, start_ns: int, end_ns: int) -> EventCounts:
    """The counts of a stretch of the host's time from which whole steps were taken: what is missing outside
    of it does not matter."""
    of, without = (int(n[0]) for n in launched.share_between(*(np.array([t]) for t in (start_ns, end_ns))))
    missing = _missing(without, of, "kernel launches", "kernel")
    return replace(counts, launches=of, launches_without_work=without, work_missing=missing)


def _missing(without: int, of: int, what: str, other: str) -> str:
    if of < MIN_COUNTED or without <= MAX_MISSING_FRAC * of:
        return ""
    return _share(without, of, what, other)


def _share(without: int, of: int, what: str, other: str) -> str:
    return (
        f"the file holds only part of the events: {per_cent(without / of)} of {of:,} {what} have no {other}"
    )


def _outermost(trace: Trace, rows: I64, matched: Bool) -> tuple[I64, Bool]:
    """Calls that lie in no other one of their thread, such as a driver call inside a runtime call; and
    whether work is known of the call or of one inside it."""
    api = trace.api_calls
    if not len(rows):
        return rows, matched
    start_ns, of = picked(api.start_ns, rows), picked(api.thread, rows)
    if not ascends(of, start_ns, strictly=True):
        order = np.lexsort((-api.end_ns[rows], start_ns, of))
        rows, matched = rows[order], matched[order]
    end_ns, thread = api.end_ns.take(rows), api.thread.take(rows)
    outer = np.ones(len(rows), bool)
    firsts = np.flatnonzero(np.diff(thread, prepend=thread[0] - 1)).tolist()
    for first, last in pairwise([*firsts, len(rows)]):
        of_thread = end_ns[first:last]
        outer[first + 1 : last] = of_thread[1:] > np.maximum.accumulate(of_thread)[:-1]
    if outer.all():
        return rows, matched
    heads = np.flatnonzero(outer)
    return rows[heads], np.logical_or.reduceat(matched, heads)


def _recording(trace: Trace, own: I64, rows: I64) -> Intervals:
    """Stretches in which calls are recorded into a CUDA graph: they launch nothing."""
    api = trace.api_calls
    rows = rows[np.argsort(api.start_ns[rows], kind="stable")]
    begin = np.array(["Begin" in name for name in trace.names(api.name[rows])], bool)
    first = int(picked(api.start_ns, own).min())
    starts, ends, opened = [], [], [first] if len(rows) and not begin[0] else []
    for starts_here, at in zip(begin.tolist(), api.start_ns[rows].tolist(), strict=True):
        if starts_here:
            opened.append(at)
        elif opened:
            starts.append(opened.pop())
            ends.append(at)
    starts += opened  # never ended: to the end of the capture
    ends += [int(picked(api.end_ns, own).max())] * len(opened)
    return union(np.array(starts, np.int64), np.array(ends, np.int64))


def limited(capabilities: Mapping[str, Capability], counts: Sequence[EventCounts]) -> dict[str, Capability]:
    """Capabilities of a capture: without all launches and all work nothing can be said of launches."""
    why = next((c.partial for c in counts if c.partial), "")
    if not why:
        return dict(capabilities)
    return {**capabilities, "launch_correlation": Capability(available=False, reason=why, remedy=REMEDY)}


def partial_notes(counts: Sequence[EventCounts]) -> list[Note]:
    """What a reader of the figures must know of a file that holds a part of the events."""
    work = next((c.work_missing for c in counts if c.work_missing), "")
    calls = next((c.launches_missing for c in counts if c.launches_missing), "")
    if not work and not calls:
        return []
    lost = "Idle time and all shares of the window are unknown" if work else "Causes of idle time are unknown"
    said = work or calls
    return [
        Note(
            code="partial-capture",
            message=f"{opening(said)} in it. {lost}, and no gain is predicted.",
            remedy=REMEDY,
        )
    ]
