"""Host time in which tensors are put into one buffer for a message, and taken out of it again.

Known by PyTorch's own names: `flatten_dense_tensors` and its reverse are how DDP broadcasts a module's
buffers, and how programs send many tensors as one; the reducer's `copy_bucket_to_grad` copies each reduced
gradient out of its bucket. Each takes a few operators a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

from perfdoc.analyzers.base.intervals import I64, Intervals, union
from perfdoc.analyzers.device.view import DeviceView, launches_missing
from perfdoc.analyzers.host.calls import host_bounds, host_calls
from perfdoc.analyzers.host.idle import by_thread, host_idle
from perfdoc.patterns import pattern_of
from perfdoc.records import dataclass
from perfdoc.traces.table import Bool

PackingKind = Literal["buffers", "tensors", "gradients"]
"""What DDP broadcasts before a forward; what is flattened elsewhere; gradients out of DDP's buckets."""

_WORDS = ("flatten_dense_tensors", "copy_bucket_to_grad")
_FLAT = pattern_of(r"(?:aten::|^)_?(?:un)?flatten_dense_tensors\b")
_OUT_OF_BUCKET = pattern_of(r"\breducer::copy_bucket_to_grad\b")
_FORWARD = pattern_of(r"DistributedDataParallel\.forward\b")
"""DDP reduces gradients in the backward; what it packs in the forward are buffers."""


@dataclass(frozen=True, kw_only=True)
class Packing:
    """One kind of packing in the window, on the threads that launch a device's work."""

    kind: PackingKind
    count: int
    """Operators, those inside another one left out."""
    host_ns: int
    idle_ns: int
    """The ledger's idle.host inside of them."""
    device_ns: int
    """Kernels and copies that they launched."""


def packing(view: DeviceView) -> list[Packing]:
    """By kind, the longest first; nothing where the capture has no such operators, or no launches."""
    trace = view.trace
    if (
        not any(word in text for text in trace.unlike_strings for word in _WORDS)
        or launches_missing(view) is not None
    ):
        return []
    flat, out, forward = (_named(trace.strings, pattern) for pattern in (_FLAT, _OUT_OF_BUCKET, _FORWARD))
    calls, idle = host_calls(view), host_idle(view)
    low, high = host_bounds(view)
    totals: dict[PackingKind, I64] = {}
    for of in by_thread(idle, calls):
        inside = _spans(view, forward, of.thread)
        packs, copies = _spans(view, flat, of.thread), _spans(view, out, of.thread)
        in_forward = inside.covered_within(packs.start_ns, packs.end_ns) > 0
        kinds: tuple[tuple[PackingKind, Intervals], ...] = (
            ("buffers", Intervals(packs.start_ns[in_forward], packs.end_ns[in_forward])),
            ("tensors", Intervals(packs.start_ns[~in_forward], packs.end_ns[~in_forward])),
            ("gradients", copies),
        )
        for kind, spans in kinds:
            clipped = spans.clip(low, high)
            if len(clipped):
                start, end = clipped.start_ns, clipped.end_ns
                figures = (
                    len(clipped),
                    clipped.total_ns,
                    of.inside_ns(start, end).sum(),
                    _launched_ns(view, of.thread, clipped),
                )
                totals[kind] = totals.get(kind, np.zeros(4, np.int64)) + np.array(figures, np.int64)
    found = [
        Packing(kind=kind, count=count, host_ns=host, idle_ns=idled, device_ns=device)
        for kind, (count, host, idled, device) in ((k, total.tolist()) for k, total in totals.items())
    ]
    return sorted(found, key=lambda p: -p.host_ns)


def _named(strings: Sequence[str], pattern: re.Pattern[str]) -> Bool:
    return np.array([pattern.search(text[:512]) is not None for text in strings], bool)


def _spans(view: DeviceView, named: Bool, thread: int) -> Intervals:
    """Outermost operators and ranges of these names on a thread."""
    parts = []
    for table in (view.trace.operators, view.trace.ranges):
        mine = np.flatnonzero((table.thread == thread) & named[table.name])
        parts.append((table.start_ns[mine], table.end_ns[mine]))
    return union(np.concatenate([p[0] for p in parts]), np.concatenate([p[1] for p in parts]))


def _launched_ns(view: DeviceView, thread: int, spans: Intervals) -> int:
    """Device time of what the thread launched in these stretches, inside the window."""
    api, window = view.trace.api_calls, view.window
    total = 0
    for table, call in (
        (view.trace.kernels, view.launches.kernels),
        (view.trace.copies, view.launches.copies),
    ):
        rows = np.flatnonzero((call >= 0) & (table.device == view.activity.device))
        made = api.start_ns[call[rows]]
        inside = (api.thread[call[rows]] == thread) & (spans.covered_within(made, made + 1) > 0)
        start, end = table.start_ns[rows[inside]], table.end_ns[rows[inside]]
        lengths = np.minimum(end, window.end_ns) - np.maximum(start, window.start_ns)
        total += int(np.maximum(lengths, 0).sum())
    return total
