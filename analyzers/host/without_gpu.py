"""What a capture without GPU activity holds: the host's operators and ranges by self time, threads, steps."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from perfdoc.analyzers.base.intervals import I64
from perfdoc.analyzers.base.rows import sum_by
from perfdoc.analyzers.device.proposed_ranges import group_of
from perfdoc.analyzers.device.range_names import find_known_ranges
from perfdoc.analyzers.kernels.nesting import nest
from perfdoc.records import dataclass
from perfdoc.results.figures import brief, plural
from perfdoc.results.names import shorten
from perfdoc.traces import RangeKind, Trace

_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class HostTime:
    """Operators or ranges of one name."""

    name: str
    """Without what counts: `#` for numbers in which names differ."""
    count: int
    threads: int
    self_ns: int
    """Time inside, outside of the operators and ranges nested in it; summed over threads."""


@dataclass(frozen=True, kw_only=True)
class HostContents:
    """What the host did, as far as the capture shows it."""

    span_ns: int
    """From the first start to the last end of an operator or a range."""
    threads: int
    steps: list[tuple[str, int]]
    """(name, duration in ns) of the ranges that name steps."""
    times: list[HostTime]
    """The most self time first; steps are no part of it."""

    @property
    def words(self) -> list[str]:
        """A line each: how much, and what takes most of it. Empty where there is nothing."""
        return list(self._said())

    def _said(self) -> Iterator[str]:
        if not self.threads:
            return
        steps = f", {plural(len(self.steps), 'step')}" if self.steps else ", no step ranges"
        if self.steps:
            longest = max(self.steps, key=lambda s: s[1])
            which = "" if len(self.steps) == 1 else ", the longest"
            steps += f"{which} `{shorten(longest[0], 48)}` of {brief(longest[1])}"
        yield f"holds {brief(self.span_ns)} of host activity on {plural(self.threads, 'thread')}{steps}"
        named = [
            f"{shorten(t.name, 64)} {brief(t.self_ns)} ({t.count:,} on {plural(t.threads, 'thread')})"
            for t in self.times[:_SHOWN]
        ]
        if named:
            yield f"most self time on the host: {', '.join(named)}"


def host_contents(trace: Trace) -> HostContents:
    """Operators and nested ranges of all threads. Ranges that never closed are left out."""
    ranges, operators = trace.ranges, trace.operators
    known = find_known_ranges(trace)
    steps = next((rows for _, rows in known.steps if len(rows)), np.empty(0, np.int64))
    nested = (ranges.thread >= 0) & (ranges.kind == RangeKind.PUSH_POP) & ~ranges.never_closed
    named = np.flatnonzero(operators.thread >= 0)
    name, thread, start, end = (
        np.concatenate((getattr(ranges, c)[nested], getattr(operators, c)[named])).astype(np.int64)
        for c in ("name", "thread", "start_ns", "end_ns")
    )
    is_step = np.concatenate((np.isin(np.flatnonzero(nested), steps), np.zeros(len(named), bool)))
    order = np.argsort(thread, kind="stable")
    each = np.split(order, np.flatnonzero(np.diff(thread[order])) + 1) if len(order) else []
    own = np.zeros(len(start), np.int64)
    for mine in each:
        nesting = nest(start[mine], end[mine])
        rows = mine[nesting.row]
        own[rows] = _self_ns(start[rows], end[rows], nesting.parent)
    return HostContents(
        span_ns=int(end.max() - start.min()) if len(start) else 0,
        threads=len(each),
        steps=[(trace.strings[ranges.name[r]], int(ranges.end_ns[r] - ranges.start_ns[r])) for r in steps],
        times=_by_name(trace, *(column[~is_step] for column in (name, thread, own))),
    )


def _by_name(trace: Trace, name: I64, thread: I64, own_ns: I64) -> list[HostTime]:
    keys: dict[str, int] = {}
    key_of = np.zeros(len(trace.strings), np.int64)
    for i in np.unique(name).tolist():
        key_of[i] = keys.setdefault(group_of(trace.strings[i]), len(keys))
    key = key_of[name]
    count = np.bincount(key, minlength=len(keys))
    total = sum_by(key, own_ns, len(keys))
    threads = np.bincount(np.unique(np.stack((key, thread)), axis=1)[0], minlength=len(keys))
    times = [
        HostTime(name=text, count=int(count[k]), threads=int(threads[k]), self_ns=int(total[k]))
        for text, k in keys.items()
    ]
    return sorted(times, key=lambda t: (-t.self_ns, t.name))


def _self_ns(start: I64, end: I64, parent: I64) -> I64:
    """Of spans of one thread that nest, cut where they cross: what their children leave."""
    until = end.copy()
    inner = np.flatnonzero(parent >= 0)
    np.minimum(until, np.where(parent >= 0, end[np.maximum(parent, 0)], until), out=until)
    own = until - start
    np.subtract.at(own, parent[inner], (until - start)[inner])
    return np.asarray(np.maximum(own, 0))


_APPLE = "torch.profiler records no kernels of Apple's GPUs (MPS): torch.mps.profiler and Instruments do."
_CAPTURED = "It shows graphs being captured; their kernels run as they are replayed: give a trace of that."
_TRACED = (
    "Capture with the GPU traced (torch.profiler: activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA]; nsys: --trace=cuda,nvtx)."
)
_ON_CPU = "Its layers ran on the CPU: move model and batches to the GPU, or go by the self times above."
_REMEDIES = {
    r"aten::\w*(?<![a-z])mps(?![a-z])": _APPLE,
    r"(?:cu|cuda|hip)(?:GraphLaunch|LaunchKernel)": _TRACED,
    r"(?:cuda|hip)StreamBeginCapture|capture_\d+_(?:decode|prefill|mixed)": _CAPTURED,
    r"(?:aten::)?(?:mkldnn_|mkldnn::|mkl::|onednn::|(?:graph_\d+_)?cpp_fused_|\w+_for_cpu)": _ON_CPU,
}
"""By how names of operators, calls and ranges begin: Apple's GPUs; launches; captures, as in vLLM; CPUs."""


def remedy_without_gpu(trace: Trace) -> str:
    """How to capture the GPU that the program uses, or that it cannot be."""
    said = (words for form, words in _REMEDIES.items() if any(map(re.compile(form).match, trace.strings)))
    return next(said, _TRACED)
